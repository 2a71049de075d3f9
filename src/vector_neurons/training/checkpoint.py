"""Atomic checkpoints: a checkpoint is complete or absent.

A checkpoint is a folder in the format of `models.store`, and in `last/` the state of the training beside the weights.
It is written to `NAME.part`, flushed to the disk and renamed; the one before stays as `NAME.previous`. Whatever is
interrupted or damaged, one of them can be read.
"""

import os
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from .._files import CHECKSUMS, FileError, first_line, flush, verify_checksums, write_checksums
from ..models import Model, store
from .errors import ResumeError

STATE = "state.pt"


def write(folder: Path, model: Model, metadata: store.Metadata, state: dict[str, Any] | None = None) -> None:
    """Replace the checkpoint `folder` atomically, keeping the one that was there as `.previous`.

    `state` holds tensors, numbers, strings and containers of these, so that it loads without unpickling.
    """
    part, previous = _part(folder), _previous(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        store.write(model, part, metadata)
        if state is not None:
            torch.save(state, part / STATE)
        write_checksums(part, [file.name for file in part.iterdir()])
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    os.rename(part, folder)
    flush(folder.parent)


def read(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest intact checkpoint and its training state; warns if it is not the last one."""
    reasons = []
    for candidate in (folder, _part(folder), _previous(folder)):
        try:
            verify(candidate, STATE)
            state = torch.load(candidate / STATE, map_location="cpu", weights_only=True)
        except (ResumeError, OSError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
            reasons.append(first_line(error))
            continue
        if reasons:
            warnings.warn(f"{reasons[0]}; resuming from {candidate}", stacklevel=2)
        return candidate, state
    raise ResumeError(f"no checkpoint to resume from: {reasons[0]}")


def was_written(folder: Path) -> bool:
    """Whether a checkpoint was ever completed here, intact or not."""
    return any(map(os.path.exists, (folder, _previous(folder), _part(folder) / CHECKSUMS)))


def load(folder: Path, model: type[nn.Module] | None = None) -> nn.Module:
    """The model of a checkpoint, in float32 even if it is stored in half precision.

    `model` is the class of a user's network. A checkpoint that was flushed, but not yet renamed when the run was
    stopped, counts; an older one does not.
    """
    renamed = folder.exists() or not is_intact(_part(folder))
    return store.load(folder if renamed else _part(folder), model).float()


def finish_rename(folder: Path) -> bool:
    """Finish a replacement that was stopped between its two renames; gives whether the checkpoint is intact."""
    if not folder.exists() and is_intact(_part(folder)):
        with suppress(FileNotFoundError):  # another process was first
            os.rename(_part(folder), folder)
    return is_intact(folder)


def is_intact(folder: Path) -> bool:
    """Whether a checkpoint exists and is undamaged."""
    try:
        verify(folder)
    except ResumeError:
        return False
    return True


def verify(folder: Path, *more: str) -> None:
    """Refuse a checkpoint with a file that is missing or changed."""
    try:
        verify_checksums(folder, (store.WEIGHTS, store.CONFIG, *more))
    except FileError as error:
        raise ResumeError(str(error)) from error


def _part(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.part")


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")
