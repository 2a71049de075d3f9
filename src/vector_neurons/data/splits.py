"""The splits of a pack: those it has, and those that are drawn from its shapes by a seed."""

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from .pack import DataError, Pack
from .seeding import derive_seed


def split_rows(
    pack: Pack, split: str, *, validation: float = 0.1, test: float = 0.2, seed: int = 0
) -> Int[Tensor, " rows"]:
    """Return the row numbers of "train", "val", "test", "train+val" or "all".

    Splits that a pack has are taken as they are. One it lacks is drawn from the rest by `seed`, with the same fraction
    of every class: the test set of a pack without any splits, and the validation set of one without.
    """
    if split not in ("train", "val", "test", "train+val", "all"):
        raise DataError(f"there is no split {split!r}: choose train, val, test, train+val or all")
    if split == "all":
        return torch.cat([pack.rows(name) for name in pack.splits])
    if split in pack.splits and not (split == "train" and "val" not in pack.splits):
        return pack.rows(split)
    if "all" in pack.splits:
        train, held_out = _hold_out(pack.rows("all"), pack, test, derive_seed(seed, "test"))
        if split == "test":
            return held_out
    else:
        train = pack.rows("train")
    if split == "test":
        return pack.rows(split)  # raises: there is none
    if "val" in pack.splits:  # train+val, as published
        return torch.cat([train, pack.rows("val")])
    if split == "train+val":
        return train
    rest, held_out = _hold_out(train, pack, validation, derive_seed(seed, "val"))
    return held_out if split == "val" else rest


def _hold_out(rows: Tensor, pack: Pack, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Divide rows into those that stay and a fraction of every class that is held out."""
    held_out = stratified(pack.arrays["label"][rows], fraction, seed=seed)
    return rows[~held_out], rows[held_out]


def stratified(labels: Int[Tensor, " shapes"], fraction: float, *, seed: int = 0) -> Bool[Tensor, " shapes"]:
    """Mark a random fraction of every class: at least one of each that has two or more, and never all of them.

    >>> stratified(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 0.25).sum().item()
    2
    """
    if not 0 <= fraction < 1:
        raise DataError(f"the fraction of a split must be at least 0 and less than 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    marked = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().squeeze(-1)
        count = min(max(round(fraction * len(members)), int(fraction > 0)), len(members) - 1)
        marked[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return marked


def drawn_from(pack: Pack) -> str | None:
    """Return a digest of the shapes of a pack whose splits are drawn, which change with any of its shapes."""
    names = pack.about.get("ids", {}).get("all") if "all" in pack.splits else None
    return None if names is None else hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def histogram(labels: Int[Tensor, " shapes"], classes: Sequence[str]) -> dict[str, int]:
    """Count the shapes of each class."""
    return dict(zip(classes, torch.bincount(labels, minlength=len(classes)).tolist(), strict=True))
