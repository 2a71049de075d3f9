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


def truncate(file: Path, draw: random.Random) -> None:
    """End too early."""
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))] if content else b"")


def flip(file: Path, draw: random.Random) -> None:
    """Change some bits."""
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 1, 3, 20))):
        if content:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def flip_early(file: Path, draw: random.Random) -> None:
    """Change some bits of the header."""
    content = bytearray(file.read_bytes())
    for _ in range(draw.choice((1, 3))):
        if content:
            content[draw.randrange(min(len(content), 200))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def zero(file: Path, draw: random.Random) -> None:
    """Lose a stretch to zeros, as a crash of the system does."""
    content = bytearray(file.read_bytes())
    start = draw.randrange(len(content) + 1)
    stop = min(len(content), start + draw.choice((4, 64, 4096)))
    content[start:stop] = bytes(stop - start)
    file.write_bytes(content)


def cut_out(file: Path, draw: random.Random) -> None:
    """Lose a stretch."""
    content = file.read_bytes()
    start = draw.randrange(len(content) + 1)
    file.write_bytes(content[:start] + content[start + draw.choice((1, 16, 500)) :])


def repeat(file: Path, draw: random.Random) -> None:
    """Have a stretch twice."""
    content = file.read_bytes()
    start = draw.randrange(len(content) + 1)
    stop = start + draw.choice((1, 16, 500))
    file.write_bytes(content[:stop] + content[start:stop] + content[stop:])


def insert(file: Path, draw: random.Random) -> None:
    """Have something in it that does not belong there."""
    content = file.read_bytes()
    start = draw.randrange(len(content) + 1)
    file.write_bytes(content[:start] + draw.randbytes(draw.choice((1, 16, 500))) + content[start:])


def change_number(file: Path, draw: random.Random) -> None:
    """Have another number in a text, or in a header that is text."""
    content = file.read_bytes()
    digits = [i for i in range(min(len(content), 4000)) if content[i : i + 1].isdigit()]
    if not digits:
        return flip(file, draw)
    start = stop = draw.choice(digits)
    while start > 0 and content[start - 1 : start].isdigit():
        start -= 1
    while content[stop : stop + 1].isdigit():
        stop += 1
    file.write_bytes(content[:start] + draw.choice(NUMBERS) + content[stop:])


def noise(file: Path, draw: random.Random) -> None:
    """Be something else altogether."""
    file.write_bytes(draw.randbytes(draw.choice((1, 100, 10_000))))


def empty(file: Path, draw: random.Random) -> None:
    """Be empty, as after a crash of the system."""
    file.write_bytes(b"")


def gone(file: Path, draw: random.Random) -> None:
    """Not be there."""
    file.unlink()


def no_file(file: Path, draw: random.Random) -> None:
    """Be a folder, a pipe, an endless device, or a link to itself."""
    file.unlink()
    kind = draw.choice(("folder", "pipe", "device", "loop"))
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if kind == "device" else file.name)


HARM: tuple[Damage, ...] = (flip_early, zero, cut_out, repeat, insert, noise, empty, gone, no_file)
EVERY: tuple[Damage, ...] = (truncate, truncate, flip, flip, change_number, change_number, *HARM)
