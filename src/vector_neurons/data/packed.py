"""Clouds cut from a pack: the split, the points of each shape, and what else is asked for."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..geometry.sampling import farthest_points, unit_ball
from .cloud import Cloud, Dataset
from .pack import DataError, Pack, seed_of

Subset = Literal["first", "random", "farthest"]


class Packed(Dataset):
    """A data set in a pack. Rows are copied from the memory-mapped file when a batch asks for them, and not before.

    `points` of each shape are delivered: the `first` ones, or a subset that is `random` (chosen by `seed` and the
    shape, so the same each time; assign another `seed` between epochs for another choice) or `farthest` (spread out;
    chosen once and remembered). Clouds are in the unit ball whichever points are taken. Splits that the pack lacks are
    drawn by `split_seed` alone, so that sets with other seeds stay disjoint.
    """

    def __init__(
        self,
        pack: Pack,
        split: str,
        *,
        points: int = 1024,
        subset: Subset = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
    ) -> None:
        self.pack: Pack = pack
        self.split, self.points, self.subset, self.seed = split, points, subset, seed
        self.drawn_from = drawn_from(pack)
        self.classes = pack.classes
        self.rows = split_rows(pack, split, validation=validation, test=test, seed=split_seed)
        self.labels = pack.arrays["label"][self.rows]
        self.stored = pack.arrays["points"].shape[1]
        self.fields = ["points", *(name for name in ("parts",) if name in pack.arrays)]
        self._farthest: Tensor | None = None
        if not 1 <= points <= self.stored:
            raise DataError(f"{pack.path} holds {self.stored:,} points of each shape, asked for {points:,}")
        if subset not in ("first", "random", "farthest"):
            raise DataError(f'unknown subset {subset!r}: choose "first", "random" or "farthest"')
        if normals:
            if first := pack.about.get("without_normals"):
                raise DataError(f"{pack.path} has no normals: not all files had normals, the first without is {first}")
            if "normals" not in pack.arrays:
                raise DataError(f"{pack.path} has no normals: its source, the {pack.about['layout']}, had none")
            self.fields.append("normals")

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """The clouds of these indices, stacked."""
        rows = self.rows[indices]
        chosen = self._chosen(rows)
        cut = {name: _cut(self.pack.arrays[name], rows, chosen, self.points) for name in self.fields}
        check_finite(self.pack, cut)
        if self.points < self.stored:
            cut["points"] = unit_ball(cut["points"])
        if "parts" in cut:
            cut["parts"] = cut["parts"].long()
        return Cloud(label=self.labels[indices], **cut)

    def _chosen(self, rows: Tensor) -> Tensor | None:
        if self.subset == "first" or (self.subset == "farthest" and self.points == self.stored):
            return None
        if self.subset == "random":
            counts = self.pack.arrays["count"][rows].tolist()
            return torch.stack([self._random(int(row), n) for row, n in zip(rows, counts, strict=True)])
        if self._farthest is None:
            self._farthest = torch.full((len(self.pack.arrays["points"]), self.points), -1, dtype=torch.int32)
        unseen = rows[self._farthest[rows, 0] < 0]
        if len(unseen):
            self._farthest[unseen] = farthest_points(self.pack.arrays["points"][unseen], self.points).int()
        return self._farthest[rows].long()

    def _random(self, row: int, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.seed, row))
        order = torch.randperm(count, generator=generator)
        # A shape with fewer points than its pack repeats some at its end: they come in only when all others are taken.
        return torch.cat([order, torch.arange(count, self.stored)])[: self.points]


def check_finite(pack: Pack, cut: Mapping[str, Tensor | None]) -> None:
    """Refuse a batch with coordinates that are NaN or infinite, which only a pack that was tampered with has."""
    for name, x in cut.items():
        if x is not None and x.is_floating_point() and not x.isfinite().all():
            raise DataError(f"{pack.path} is damaged: some of its {name} are NaN or infinite; make it again")


def _cut(array: Tensor, rows: Tensor, chosen: Tensor | None, points: int) -> Tensor:
    return array[:, :points].index_select(0, rows) if chosen is None else array[rows[:, None], chosen]


def drawn_from(pack: Pack) -> str | None:
    """A digest of the shapes of a pack whose splits are drawn: another shape, and others are tested."""
    names = pack.about.get("ids", {}).get("all") if "all" in pack.splits else None
    return None if names is None else hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()[:16]


def split_rows(
    pack: Pack, split: str, *, validation: float = 0.1, test: float = 0.2, seed: int = 0
) -> Int[Tensor, " rows"]:
    """Row numbers of "train", "val", "test" or "train+val" ("all" is everything).

    Splits that a pack has are taken as they are. One it lacks is carved from the rest by `seed`, with the same share
    of every class: the test set of a pack that has no splits at all, and the validation set of one without.
    """
    if split not in ("train", "val", "test", "train+val", "all"):
        raise DataError(f"there is no split {split!r}: choose train, val, test, train+val or all")
    if split == "all":
        return torch.cat([pack.rows(name) for name in pack.splits])
    if split in pack.splits and not (split == "train" and "val" not in pack.splits):
        return pack.rows(split)
    if "all" in pack.splits:
        train, held_out = _carve(pack.rows("all"), pack, test, seed_of(seed, "test"))
        if split == "test":
            return held_out
    else:
        train = pack.rows("train")
    if split == "test":
        return pack.rows(split)  # which says that there is none
    if "val" in pack.splits:  # train+val, as published
        return torch.cat([train, pack.rows("val")])
    if split == "train+val":
        return train
    rest, held_out = _carve(train, pack, validation, seed_of(seed, "val"))
    return held_out if split == "val" else rest


def _carve(rows: Tensor, pack: Pack, share: float, seed: int) -> tuple[Tensor, Tensor]:
    labels = pack.arrays["label"][rows]
    taken = stratified(labels, share, seed=seed)
    return rows[~taken], rows[taken]


def stratified(labels: Int[Tensor, " shapes"], share: float, *, seed: int = 0) -> Bool[Tensor, " shapes"]:
    """Mark a share of every class, chosen by seed: at least one of each that has two or more, and never all of them.

    >>> stratified(torch.tensor([0, 0, 0, 0, 1, 1, 2]), 0.25).sum().item()
    2
    """
    if not 0 <= share < 1:
        raise DataError(f"a share of the shapes is at least 0 and less than 1, got {share}")
    generator = torch.Generator().manual_seed(seed)
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label in sorted(set(labels.tolist())):
        members = (labels == label).nonzero().squeeze(-1)
        count = min(max(round(share * len(members)), int(share > 0)), len(members) - 1)
        taken[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return taken


def histogram(labels: Int[Tensor, " shapes"], classes: Sequence[str]) -> dict[str, int]:
    """How many shapes each class has."""
    return dict(zip(classes, torch.bincount(labels, minlength=len(classes)).tolist(), strict=True))
