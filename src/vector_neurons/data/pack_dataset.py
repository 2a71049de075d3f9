"""Data sets of clouds that are read from a pack."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from ..geometry.sampling import farthest_points, unit_ball
from .cloud import Cloud, Dataset
from .pack import DataError, Pack, open_pack
from .seeding import derive_seed
from .splits import drawn_from, split_rows

SubsetMethod = Literal["first", "random", "farthest"]


class PackDataset(Dataset):
    """A data set of clouds in a pack, z up and each in the unit ball; rows are read from disk when a batch needs them.

    Args:
        split: "train", "val", "test", "train+val" or "all".
        root: folder of the packs; by default `$VN_DATA`, or the user's cache directory.
        pack: an open pack, or its name or path; by default the name of the set.
        points: points of each cloud, which is normalized again if they are fewer than the pack has.
        subset: which of the points of the pack: the "first", a "random" subset (by `seed` and the shape; assign to
            `seed` between epochs for another one), or "farthest"-point samples (chosen once and kept).
        normals: deliver normals too.
        seed: of the random subset.
        split_seed: of splits that the pack lacks, apart from `seed` so that sets with other seeds stay disjoint.
        validation: fraction of every class for "val", if the pack lacks it.
        test: fraction of every class for "test", if the pack has no splits.
    """

    command: ClassVar[str] = "vn data"  # converts the pack

    def __init__(
        self,
        split: str,
        root: str | Path | None = None,
        *,
        pack: Pack | str | Path | None = None,
        points: int = 1024,
        subset: SubsetMethod = "first",
        normals: bool = False,
        seed: int = 0,
        split_seed: int = 0,
        validation: float = 0.1,
        test: float = 0.2,
    ) -> None:
        if not isinstance(pack, Pack):
            pack = open_pack(self.name if pack is None else pack, root, kind=self.name, command=self.command)
        self._check_pack(pack)
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
            raise DataError(f"points={points:,} is out of range: {pack.path} has {self.stored:,} points of each shape")
        if subset not in ("first", "random", "farthest"):
            raise DataError(f'unknown subset {subset!r}: choose "first", "random" or "farthest"')
        if normals:
            if first := pack.about.get("without_normals"):
                raise DataError(f"{pack.path} has no normals: not all files had normals, the first without is {first}")
            if "normals" not in pack.arrays:
                raise DataError(f"{pack.path} has no normals: its source, the {pack.about['layout']}, had none")
            self.fields.append("normals")

    def _check_pack(self, pack: Pack) -> None:
        """Raise `DataError` for a pack that does not fit this data set."""

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """Return the clouds of these indices, stacked."""
        rows = self.rows[indices]
        chosen = self._chosen_points(rows)
        arrays = {name: _select(self.pack.arrays[name], rows, chosen, self.points) for name in self.fields}
        check_finite(self.pack, arrays)
        if self.points < self.stored:
            arrays["points"] = unit_ball(arrays["points"])
        if "parts" in arrays:
            arrays["parts"] = arrays["parts"].long()
        return Cloud(label=self.labels[indices], **arrays)

    def _chosen_points(self, rows: Tensor) -> Tensor | None:
        """Return the indices of the points to deliver `(batch, points)`, or None for the first ones."""
        if self.subset == "first" or (self.subset == "farthest" and self.points == self.stored):
            return None
        if self.subset == "random":
            counts = self.pack.arrays["count"][rows].tolist()
            return torch.stack([self._random_points(int(row), n) for row, n in zip(rows, counts, strict=True)])
        if self._farthest is None:
            self._farthest = torch.full((len(self.pack.arrays["points"]), self.points), -1, dtype=torch.int32)
        missing = rows[self._farthest[rows, 0] < 0]
        if len(missing):
            self._farthest[missing] = farthest_points(self.pack.arrays["points"][missing], self.points).int()
        return self._farthest[rows].long()

    def _random_points(self, row: int, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, row))
        order = torch.randperm(count, generator=generator)
        # A shape with fewer points than its pack repeats some at its end: they are used when all others are taken.
        return torch.cat([order, torch.arange(count, self.stored)])[: self.points]


def check_finite(pack: Pack, arrays: Mapping[str, Tensor | None]) -> None:
    """Raise `DataError` for coordinates of a batch that are NaN or infinite, as only in a pack that was changed."""
    for name, x in arrays.items():
        if x is not None and x.is_floating_point() and not x.isfinite().all():
            raise DataError(f"{pack.path} is damaged: some of its {name} are NaN or infinite; make it again")


def _select(array: Tensor, rows: Tensor, chosen: Tensor | None, points: int) -> Tensor:
    return array[:, :points].index_select(0, rows) if chosen is None else array[rows[:, None], chosen]
