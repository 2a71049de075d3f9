"""Convert a published source to a pack: read the chunks of a plan, in parallel, and assemble them in one file.

A chunk that was read is kept as a file in `<pack>.partial/`, named by its key, until the pack is written. A conversion
that was interrupted therefore resumes where it stopped, and a source that was replaced in the meantime is read again.
"""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import torch

from .._files import atomic_replace, first_line, locked, make_folder, read_json, write_file
from .pack import DataError, write_pack
from .plan import PARSE_ERRORS, Chunk, ChunkContent, Plan
from .rows import PackRows

DESCRIPTION = tuple(field.name for field in fields(ChunkContent) if field.name != "rows")  # of a chunk, kept as JSON


class DamagedError(DataError):
    """A conversion that found missing or damaged files; `lines` has one line for each."""

    def __init__(self, message: str, lines: Sequence[str]) -> None:
        super().__init__(message)
        self.lines = list(lines)


def convert_plan(
    path: Path,
    name: str,
    plan: Plan,
    *,
    workers: int = 0,
    skip_damaged: bool | float = False,
    drop_overlap: bool = False,
    overwrite: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Read all chunks of a plan and write them as one pack, which replaces an older one at the end.

    A file that the system does not give, as without permission, is not damaged: it stops the conversion.

    Args:
        path: the pack to write.
        name: the data set it belongs to.
        plan: what to read.
        workers: number of processes; below 2, this process reads.
        skip_damaged: leave out damaged files: all (True), none (False: nothing is written), or up to this fraction.
        drop_overlap: leave out of the training set what is also in the validation or test set, and out of the
            validation set what is also in the test set.
        overwrite: convert even if the pack exists. Of several processes that convert the same pack one does and the
            others wait for it; without `overwrite` they use its result.
        progress: called with the number of shapes that have been read, and their total.
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

    def report_wait(holder: str) -> None:
        print(f"waiting for {path}, {holder}", file=sys.stderr)

    with locked(path.with_suffix(".lock"), on_wait=report_wait):
        if not overwrite and path.is_file():
            return
        folder.mkdir(exist_ok=True)
        try:
            files = _read_chunks(folder, plan.chunks, workers, progress)
            _assemble(path, name, plan, files, skip_damaged, drop_overlap)
            for file in folder.iterdir():
                with suppress(OSError):
                    file.unlink()
        finally:
            with suppress(OSError):  # chunks are kept for the next run
                folder.rmdir()


def _assemble(
    path: Path, name: str, plan: Plan, files: Mapping[str, Path], skip_damaged: bool | float, drop_overlap: bool
) -> None:
    """Write the chunks as one pack, unless too many shapes are damaged."""
    described = {key: read_json(file.with_suffix(".json")) for key, file in files.items()}
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
    # Shapes of two splits are the same if their identities are: digests, or names where these are the publisher's.
    identities = {c.key: described[c.key]["digests"] or described[c.key]["names"] for c in plan.chunks}
    by_split = {s: [x for c in plan.chunks if c.split == s for x in identities[c.key]] for s in splits}
    overlap = {}
    for a, b in _pairs(splits):
        in_b = set(by_split[b])
        if shared := sorted({name for name, x in zip(names[a], by_split[a], strict=True) if x in in_b}):
            overlap[f"{a} and {b}"] = shared
    without_normals = [name for chunk in plan.chunks for name in described[chunk.key]["without_normals"]]
    rows: list[PackRows] = []
    kept: dict[str, list[str]] = {split: [] for split in splits}
    for split in splits:
        later = {x for other in splits[splits.index(split) + 1 :] for x in by_split[other]} if drop_overlap else set()
        for chunk in (c for c in plan.chunks if c.split == split and described[c.key]["names"]):
            stored = described[chunk.key]["names"]
            keep = [i for i, x in enumerate(identities[chunk.key]) if x not in later]
            read = _load_chunk(files[chunk.key])
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
        "without_normals": without_normals[0] if 0 < len(without_normals) < sum(map(len, names.values())) else None,
        **plan.about,
    }
    write_pack(path, about, rows)


def _pairs(splits: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for i, a in enumerate(splits) for b in splits[i + 1 :])


def _read_chunks(
    folder: Path, chunks: Sequence[Chunk], workers: int, progress: Callable[[int, int], None]
) -> dict[str, Path]:
    """Read the chunks that were not read before; returns the file of each by its key."""
    files = {chunk.key: folder / f"{chunk.key}.safetensors" for chunk in chunks}
    total = sum(chunk.size for chunk in chunks)
    missing = [chunk for chunk in chunks if not _is_saved(files[chunk.key])]
    done = total - sum(chunk.size for chunk in missing)
    progress(done, total)
    if workers < 2:
        for chunk in missing:
            _read_and_save(files[chunk.key], chunk)
            done += chunk.size
            progress(done, total)
        return files
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    # Not fork: torch and libigl run threads of their own, which a forked process would lack.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_start_worker) as pool:
        tasks = {pool.submit(_read_and_save, files[chunk.key], chunk): chunk for chunk in missing}
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


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles it, and stops this one
    torch.set_num_threads(1)  # the processes already fill the cores


def _read_and_save(file: Path, chunk: Chunk) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        content = chunk.read()
    except DataError:
        raise
    except PARSE_ERRORS as error:
        raise DataError(f"{chunk.file or chunk.split} is damaged: {first_line(error)}") from error
    try:
        with atomic_replace(file) as part:
            save_file({name: x.contiguous() for name, x in content.rows.items()}, part)
    except SafetensorError as error:
        raise DataError(f"{file.parent} cannot be written: {first_line(error)}") from error
    # The description comes last: a chunk that has one is complete.
    write_file(file.with_suffix(".json"), json.dumps({name: getattr(content, name) for name in DESCRIPTION}))


def _is_saved(file: Path) -> bool:
    """Test whether a chunk was saved by an earlier run. One with damaged shapes is read again: they may be repaired."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt"):  # compares the length of the file with what its header announces
            described = read_json(file.with_suffix(".json"))
            return set(DESCRIPTION) <= set(described) and not described["damaged"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return False


def _load_chunk(file: Path) -> PackRows:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise DataError(f"{file} is damaged: remove {file.parent}, and run it again") from error
