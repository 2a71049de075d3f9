"""From a published folder to a pack: a plan of chunks, read one by one or in parallel, kept until all are there.

A chunk that was read is a file in `<pack>.partial/`, named after everything that went into it (names, options, size and
time of its sources). A conversion that was stopped therefore goes on where it was, and a source that was replaced in
the meantime is read again.
"""

import hashlib
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import first_line, locked, make_folder, read_json, replacing, sha256, write_file
from ..mesh import MeshWarning
from ..mesh.stored import patiently
from .pack import FORMAT, DataError, write_pack

Rows = dict[str, Tensor]  # what is known about some shapes, one row for each
FILES_PER_CHUNK = 64
UNFORESEEN = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    AttributeError,
    EOFError,
)  # what damaged arrays make readers stumble over


@dataclass(frozen=True)
class Content:
    """What reading a chunk gave: rows, the names of their shapes, and one line for every shape that is damaged.

    Shapes of two splits are the same if their `contents` are equal, or their names where names are the publisher's.
    `bare` are the names of shapes without normals, `notes` say what of a file was not used.
    """

    rows: Rows
    names: list[str]
    damaged: list[str] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


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
    again: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Carry out a plan and write its pack. Nothing is written to `path` before everything has been read.

    With damaged files nothing is written at all, unless `skip_damaged`: True leaves them out, a number does so as long
    as at most that share is damaged. A file that the system does not give is not damaged: it stops the conversion.
    `drop_overlap` leaves out of the training set what also stands in the validation
    or test set, and out of the validation set what stands in the test set. Of processes that build the same pack one
    does and the others wait for it; without `again` they take what it made.
    """
    if not plan.size:
        raise DataError(f"there are no shapes to convert in the {plan.layout}")
    for split in plan.published:
        if not any(chunk.size for chunk in plan.chunks if chunk.split == split):
            raise DataError(f"the {plan.layout} is incomplete: its {split} set has no shapes, get it again")
    folder = path.with_suffix(".partial")
    make_folder(path.parent)
    if path.is_dir():
        raise DataError(f"{path} is a folder: a pack needs another name")

    def say(holder: str) -> None:
        print(f"waiting for {path}, {holder}", file=sys.stderr)

    with locked(path.with_suffix(".lock"), waiting=say):
        if not again and path.is_file():
            return
        folder.mkdir(exist_ok=True)
        try:
            files = _read_all(folder, plan.chunks, workers, progress)
            _assemble(path, name, plan, files, skip_damaged, drop_overlap)
            for file in folder.iterdir():
                with suppress(OSError):
                    file.unlink()
        finally:
            with suppress(OSError):  # what was read is kept for the next time
                folder.rmdir()


def _assemble(
    path: Path, name: str, plan: Plan, files: Mapping[str, Path], skip_damaged: bool | float, drop_overlap: bool
) -> None:
    """Write what was read as one pack, unless too much of it is damaged."""
    described = {chunk: read_json(file.with_suffix(".json")) for chunk, file in files.items()}
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
    known = {c.key: described[c.key]["contents"] or described[c.key]["names"] for c in plan.chunks}
    contents = {s: [x for c in plan.chunks if c.split == s for x in known[c.key]] for s in splits}
    overlap = {}
    for a, b in _pairs(splits):
        there = set(contents[b])
        if shared := sorted({name for name, x in zip(names[a], contents[a], strict=True) if x in there}):
            overlap[f"{a} and {b}"] = shared
    bare = [name for chunk in plan.chunks for name in described[chunk.key]["bare"]]
    rows: list[Rows] = []
    kept: dict[str, list[str]] = {split: [] for split in splits}
    for split in splits:
        later = {x for other in splits[splits.index(split) + 1 :] for x in contents[other]} if drop_overlap else set()
        for chunk in (c for c in plan.chunks if c.split == split and described[c.key]["names"]):
            stored = described[chunk.key]["names"]
            keep = [i for i, x in enumerate(known[chunk.key]) if x not in later]
            read = _load(files[chunk.key])
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
        "notes": [line for chunk in plan.chunks for line in described[chunk.key]["notes"]],
        "without_normals": bare[0] if 0 < len(bare) < sum(map(len, names.values())) else None,
        **plan.about,
    }
    write_pack(path, about, rows)


def _load(file: Path) -> Rows:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise DataError(f"{file} is damaged: remove {file.parent}, and run it again") from error


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
            described = read_json(file.with_suffix(".json"))
            return "notes" in described and not described["damaged"]  # another version wrote less about a chunk
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return False


def _start() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is told, and stops it
    torch.set_num_threads(1)  # the processes already fill the cores


def _keep(file: Path, chunk: Chunk) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        content = chunk.read()
    except DataError:
        raise
    except UNFORESEEN as error:
        raise DataError(f"{chunk.file or chunk.split} is damaged: {first_line(error)}") from error
    try:
        with replacing(file) as part:
            save_file({name: x.contiguous() for name, x in content.rows.items()}, part)
    except SafetensorError as error:
        raise DataError(f"{file.parent} cannot be written: {first_line(error)}") from error
    # The description comes last: a chunk that has one is complete.
    about = {name: x for name, x in vars(content).items() if name != "rows"}
    write_file(file.with_suffix(".json"), json.dumps(about))


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
    by_content: bool = False,
) -> list[Chunk]:
    """Chunks of shapes that have a file each: `(name, file, label)`; `read` gives the single row of one of them.

    Of shapes that have a folder each, `members` are the files that are read: repairing one does not touch its folder.
    `by_content` finds the same shape in two splits by what is in the file, where names mean nothing.
    """
    chunks = []
    for start in range(0, len(files), FILES_PER_CHUNK):
        some = files[start : start + FILES_PER_CHUNK]
        labelled = [(name, label) for name, _, label in some]
        sources = [source for _, file, _ in some for source in ([file / m for m in members] or [file])]
        key = key_of(split, labelled, *options, by_content, files=sources)
        chunks.append(Chunk(split, len(some), partial(_read_files, read, some, by_content), key))
    return chunks


def _read_files(
    read: Callable[[str, Path, int], Rows], files: Sequence[tuple[str, Path, int]], by_content: bool
) -> Content:
    shapes, names, damaged, contents, notes = [], [], [], [], []
    for name, file, label in files:
        try:
            if not file.exists():
                raise DataError(f"{file} is missing")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", MeshWarning)
                shape = patiently(partial(read, name, file, label)) | {"label": torch.tensor([label])}
            if by_content:
                contents.append(patiently(partial(sha256, file))[:16])
            shapes.append(shape)
            names.append(name)
            notes += [str(warning.message) for warning in caught if issubclass(warning.category, MeshWarning)]
        except OSError as error:  # which says nothing about the file
            line = first_line(error)
            named = line if str(file) in line else f"{file}: {line}"
            raise DataError(f"{named}; no pack was written: run the same command again when it can be read") from error
        except UNFORESEEN as error:
            line = first_line(error)
            damaged.append(line if str(file) in line else f"{file}: {line}")
    bare = [name for name, shape in zip(names, shapes, strict=True) if "normals" not in shape]
    return Content(joined(shapes), names, damaged, contents, bare, notes)


def joined(shapes: Sequence[Rows]) -> Rows:
    """Rows one after the other, with what is known about all of them."""
    known = set.intersection(*map(set, shapes)) if shapes else set()
    return {key: torch.cat([shape[key] for shape in shapes]) for key in known}
