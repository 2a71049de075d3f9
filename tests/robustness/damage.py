"""Seeded damage of files: what disks, networks, editors, other programs and attackers leave behind."""

import os
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path, random.Random], None]
NUMBERS = (
    b"-1",
    b"0",
    b"1e9",
    b"999999999999",
    b"nan",
    b"-inf",
    b"1e400",
    b"9" * 400,
    b"x",
    b"",
    b"null",
    b"[]",
    b"{}",
)


def truncate(file: Path, rng: random.Random) -> None:
    """End too early."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))] if content else b"")


def flip(file: Path, rng: random.Random) -> None:
    """Change some bits."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 20))):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def flip_early(file: Path, rng: random.Random) -> None:
    """Change some bits of the header."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 3))):
        if content:
            content[rng.randrange(min(len(content), 200))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def zero(file: Path, rng: random.Random) -> None:
    """Lose a stretch to zeros, as a crash of the system does."""
    content = bytearray(file.read_bytes())
    start = rng.randrange(len(content) + 1)
    stop = min(len(content), start + rng.choice((4, 64, 4096)))
    content[start:stop] = bytes(stop - start)
    file.write_bytes(content)


def cut_out(file: Path, rng: random.Random) -> None:
    """Lose a stretch."""
    content = file.read_bytes()
    start = rng.randrange(len(content) + 1)
    file.write_bytes(content[:start] + content[start + rng.choice((1, 16, 500)) :])


def repeat(file: Path, rng: random.Random) -> None:
    """Have a stretch twice."""
    content = file.read_bytes()
    start = rng.randrange(len(content) + 1)
    stop = start + rng.choice((1, 16, 500))
    file.write_bytes(content[:stop] + content[start:stop] + content[stop:])


def insert(file: Path, rng: random.Random) -> None:
    """Have something in it that does not belong there."""
    content = file.read_bytes()
    start = rng.randrange(len(content) + 1)
    file.write_bytes(content[:start] + rng.randbytes(rng.choice((1, 16, 500))) + content[start:])


def change_number(file: Path, rng: random.Random) -> None:
    """Have another number in a text, or in a header that is text."""
    content = file.read_bytes()
    digits = [i for i in range(min(len(content), 4000)) if content[i : i + 1].isdigit()]
    if not digits:
        return flip(file, rng)
    start = stop = rng.choice(digits)
    while start > 0 and content[start - 1 : start].isdigit():
        start -= 1
    while content[stop : stop + 1].isdigit():
        stop += 1
    file.write_bytes(content[:start] + rng.choice(NUMBERS) + content[stop:])


def noise(file: Path, rng: random.Random) -> None:
    """Be something else altogether."""
    file.write_bytes(rng.randbytes(rng.choice((1, 100, 10_000))))


def empty(file: Path, rng: random.Random) -> None:
    """Be empty, as after a crash of the system."""
    file.write_bytes(b"")


def gone(file: Path, rng: random.Random) -> None:
    """Not be there."""
    file.unlink()


def no_file(file: Path, rng: random.Random) -> None:
    """Be a folder, a pipe, an endless device, or a link to itself."""
    file.unlink()
    kind = rng.choice(("folder", "pipe", "device", "loop"))
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if kind == "device" else file.name)


HARM: tuple[Damage, ...] = (flip_early, zero, cut_out, repeat, insert, noise, empty, gone, no_file)
EVERY: tuple[Damage, ...] = (truncate, truncate, flip, flip, change_number, change_number, *HARM)
