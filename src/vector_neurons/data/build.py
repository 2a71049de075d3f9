"""From a published folder to a pack: a plan of chunks, read one by one or in parallel, kept until all are there.

A chunk that was read is a file in `<pack>.partial/`, named after everything that went into it (names, options, size and
time of its sources). A conversion that was stopped therefore goes on where it was, and a source that was replaced in
the meantime is read again.
"""

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .pack import FORMAT, DataError, one_line, write_pack

Rows = dict[str, Tensor]  # what is known about some shapes, one row for each
FILES_PER_CHUNK = 64
UNFORESEEN = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    RuntimeError,
)  # what damaged arrays make readers stumble over


@dataclass(frozen=True)
class Content:
    """What reading a chunk gave: rows, the names of their shapes, and one line for every shape that is damaged."""

    rows: Rows
    names: list[str]
    damaged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chunk:
    """Some shapes of one split that are read together. `read` is picklable; `key` tells when it would read the same.

    `file` is what is named when reading fails in a way that no check foresaw.
    """

    split: str
    size: int
    read: Callable[[], Content]
    key: str
    file: Path | None = None


@dataclass(frozen=True)
class Plan:
    """What was found in a source, before any shape is read."""

    layout: str
    classes: tuple[str, ...]
    chunks: list[Chunk]
    published: Mapping[str, int] = field(default_factory=dict)  # how many shapes the publisher's splits have
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many shapes there are to read."""
        return sum(chunk.size for chunk in self.chunks)


class DamagedError(DataError):
    """A conversion that found missing or damaged files; `lines` has one line for each."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = list(lines)


def build(
    path: Path,
    name: str,
    plan: Plan,
    *,
    workers: int = 0,
    skip_damaged: bool | float = False,
    drop_overlap: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Carry out a plan and write its pack. Nothing is written to `path` before everything has been read.

    With damaged files nothing is written at all, unless `skip_damaged`: True leaves them out, a number does so as long
    as at most that share is damaged. `drop_overlap` leaves out of the training set what also stands in the validation
    or test set, and out of the validation set what stands in the test set.
    """
    from safetensors.torch import load_file

    if not plan.size:
        raise DataError(f"there are no shapes to convert in the {plan.layout}")
    for split in plan.published:
        if not any(chunk.size for chunk in plan.chunks if chunk.split == split):
            raise DataError(f"the {plan.layout} is incomplete: its {split} set has no shapes, get it again")
    folder = path.with_suffix(".partial")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        files = _read_all(folder, plan.chunks, workers, progress)
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # if nothing is in it
        raise
    described = {chunk: json.loads(file.with_suffix(".json").read_text()) for chunk, file in files.items()}
    damaged = [line for chunk in plan.chunks for line in described[chunk.key]["damaged"]]
    allowed = skip_damaged if isinstance(skip_damaged, float) else float(skip_damaged)
    if len(damaged) > allowed * plan.size or len(damaged) == plan.size:
        remedy = "repair them" if skip_damaged else "repair them, or leave them out with --skip-damaged"
        raise DamagedError(
            f"{len(damaged):,} of {plan.size:,} shapes are missing or damaged, no pack was written: {remedy}", damaged
        )
    splits = list(dict.fromkeys(chunk.split for chunk in plan.chunks))
    names = {s: [n for c in plan.chunks if c.split == s for n in described[c.key]["names"]] for s in splits}
    if lost := [split for split in plan.published if not names[split]]:
        raise DamagedError(f"every shape of the {lost[0]} set is damaged, no pack was written: repair them", damaged)
    overlap = {f"{a} and {b}": n for a, b in _pairs(splits) if (n := sorted(set(names[a]) & set(names[b])))}
    rows: list[Rows] = []
    kept: dict[str, list[str]] = {split: [] for split in splits}
    for split in splits:
        later = {n for other in splits[splits.index(split) + 1 :] for n in names[other]} if drop_overlap else set()
        for chunk in (c for c in plan.chunks if c.split == split and described[c.key]["names"]):
            stored = described[chunk.key]["names"]
            keep = [i for i, shape in enumerate(stored) if shape not in later]
            read = load_file(files[chunk.key])
            rows.append(read if len(keep) == len(stored) else {key: x[keep] for key, x in read.items()})
            kept[split] += [stored[i] for i in keep]
    about = {
        "name": name,
        "layout": plan.layout,
        "classes": plan.classes,
        "splits": {split: len(kept[split]) for split in splits},
        "published": dict(plan.published),
        "damaged": damaged,
        "overlap": overlap,
        "overlap_dropped": drop_overlap,
        "ids": kept,
        **plan.about,
    }
    write_pack(path, about, rows)
    del rows  # closes the memory-mapped chunks, which some systems refuse to delete while they are open
    shutil.rmtree(folder, ignore_errors=True)


def _pairs(splits: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for i, a in enumerate(splits) for b in splits[i + 1 :])


def _read_all(
    folder: Path, chunks: Sequence[Chunk], workers: int, progress: Callable[[int, int], None]
) -> dict[str, Path]:
    files = {chunk.key: folder / f"{chunk.key}.safetensors" for chunk in chunks}
    total = sum(chunk.size for chunk in chunks)
    missing = [chunk for chunk in chunks if not _is_kept(files[chunk.key])]
    done = total - sum(chunk.size for chunk in missing)
    progress(done, total)
    if workers < 2:
        for chunk in missing:
            _keep(files[chunk.key], chunk)
            done += chunk.size
            progress(done, total)
        return files
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not fork: torch and libigl run threads of their own, which a forked process would lack.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start) as pool:
        tasks = {pool.submit(_keep, files[chunk.key], chunk): chunk for chunk in missing}
        try:
            for task in as_completed(tasks):
                task.result()
                done += tasks[task].size
                progress(done, total)
        except BrokenProcessPool as error:
            raise DataError("a process that read files was killed: run it again with fewer --workers") from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return files


def _is_kept(file: Path) -> bool:
    """Whether a chunk was read before and can be used. One with damaged shapes cannot: they may be repaired by now."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt"):  # compares the length of the file with what its header announces
            return not json.loads(file.with_suffix(".json").read_text())["damaged"]
    except (OSError, ValueError, KeyError, SafetensorError):
        return False


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is told, and stops it
    torch.set_num_threads(1)  # the processes already fill the cores


def _keep(file: Path, chunk: Chunk) -> None:
    from safetensors.torch import save_file

    try:
        content = chunk.read()
    except DataError:
        raise
    except UNFORESEEN as error:
        raise DataError(f"{chunk.file or chunk.split} is damaged: {one_line(error)}") from error
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    save_file({name: x.contiguous() for name, x in content.rows.items()}, part)
    os.replace(part, file)
    # The description comes last: a chunk that has one is complete.
    part.write_text(json.dumps({"names": content.names, "damaged": content.damaged}))
    os.replace(part, file.with_suffix(".json"))


def key_of(*parts: object, files: Iterable[Path] = ()) -> str:
    """The name of a chunk: a digest of what goes into it, and of the size and time of its files."""

    def state(file: Path) -> tuple[str, int, int]:
        try:
            found = file.stat()
            return str(file), found.st_size, found.st_mtime_ns
        except OSError:
            return str(file), -1, -1

    text = json.dumps([FORMAT, *map(str, parts), [state(file) for file in files]])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def file_chunks(
    split: str,
    files: Sequence[tuple[str, Path, int]],
    read: Callable[[str, Path, int], Rows],
    *options: object,
    members: Sequence[str] = (),
) -> list[Chunk]:
    """Chunks of shapes that have a file each: `(name, file, label)`; `read` gives the single row of one of them.

    Of shapes that have a folder each, `members` are the files that are read: repairing one does not touch its folder.
    """
    chunks = []
    for start in range(0, len(files), FILES_PER_CHUNK):
        some = files[start : start + FILES_PER_CHUNK]
        labelled = [(name, label) for name, _, label in some]
        sources = [source for _, file, _ in some for source in ([file / m for m in members] or [file])]
        key = key_of(split, labelled, *options, files=sources)
        chunks.append(Chunk(split, len(some), partial(_read_files, read, some), key))
    return chunks


def _read_files(read: Callable[[str, Path, int], Rows], files: Sequence[tuple[str, Path, int]]) -> Content:
    shapes, names, damaged = [], [], []
    for name, file, label in files:
        try:
            if not file.exists():
                raise DataError(f"{file} is missing")
            shapes.append(read(name, file, label) | {"label": torch.tensor([label])})
            names.append(name)
        except (*UNFORESEEN, OSError) as error:
            line = one_line(error)
            damaged.append(line if str(file) in line else f"{file}: {line}")
    return Content(joined(shapes), names, damaged)


def joined(shapes: Sequence[Rows]) -> Rows:
    """Rows one after the other, with what is known about all of them."""
    known = set.intersection(*map(set, shapes)) if shapes else set()
    return {key: torch.cat([shape[key] for shape in shapes]) for key in known}
