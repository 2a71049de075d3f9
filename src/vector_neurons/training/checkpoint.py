"""Checkpoints that are either there and whole, or not there.

A checkpoint is a folder in the format of `models.store`, with the checksums of its files, and in `last/` the state of
the training beside the weights. It is written to `NAME.part`, flushed to the disk and renamed; the one before stays as
`NAME.previous`. Whatever is interrupted or damaged, one of them can be read.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..models import Model, store

STATE, CHECKSUMS = "state.pt", "checksums.json"


class CheckpointError(ValueError):
    """No checkpoint that can be read; the message is one line."""


def write(folder: Path, model: Model, meaning: store.Meaning, state: dict[str, Any] | None = None) -> None:
    """Replace the checkpoint `folder` by this one, keeping the one that was there as `.previous`.

    `state` is made of tensors, numbers, strings and containers of these: nothing that would have to be unpickled.
    """

    def fill(part: Path) -> None:
        store.save(model, part, meaning)
        if state is not None:
            torch.save(state, part / STATE)

    replace_folder(folder, fill)


def read(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """The folder of the newest checkpoint that is whole, and the state in it; warns if it is not the last one."""
    reasons = []
    for candidate in (folder, _part(folder), _previous(folder)):
        try:
            verify(candidate)
            path = candidate / STATE
            state = torch.load(path, weights_only=True) if path.exists() else None
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if reasons:
            warnings.warn(f"{reasons[0]}; going on from {candidate}", stacklevel=2)
        return candidate, state
    raise CheckpointError(f"there is no checkpoint to go on from: {reasons[0]}")


def load(folder: Path) -> torch.nn.Module:
    """The model of the newest checkpoint that is whole, in full precision: results may be kept in half."""
    return store.load(read(folder)[0]).float()


def verify(folder: Path) -> None:
    """Refuse a checkpoint with a file that is missing or changed."""
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}")
    try:
        expected = json.loads((folder / CHECKSUMS).read_text())
        damaged = [name for name, digest in expected.items() if _digest(folder / name) != digest]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}") from error
    if damaged:
        raise CheckpointError(f"{folder} is damaged: {', '.join(damaged)} changed after it was written")


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a folder anew, whole or not at all: the old one is moved aside only when the new one is on the disk."""
    part, previous = _part(folder), _previous(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        fill(part)
        files = sorted(part.iterdir())
        (part / CHECKSUMS).write_text(json.dumps({file.name: _digest(file) for file in files}, indent=2))
        for path in (*files, part / CHECKSUMS, part):
            _flush(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    os.rename(part, folder)
    _flush(folder.parent)


def write_file(path: Path, text: str) -> None:
    """Write a small file, whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text)
        _flush(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _part(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.part")


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
