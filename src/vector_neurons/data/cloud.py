"""What a data set delivers: clouds with whatever is known about them, one at a time or stacked in a batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..typing import Matrices, Points

if TYPE_CHECKING:
    from .pack import Pack


@dataclass(frozen=True)
class Cloud:
    """Points and what is known about them; a leading axis on every field makes it a batch.

    `label` is the class, `parts` the part of each point, `queries` are places in space and `occupied` says which of
    them lie inside. What a set does not know is None.
    """

    points: Points
    normals: Points | None = None
    label: Int[Tensor, "*batch"] | None = None
    parts: Int[Tensor, "*batch points"] | None = None
    queries: Float[Tensor, "*batch queries dim"] | None = None
    occupied: Bool[Tensor, "*batch queries"] | None = None

    def rotate(self, rotation: Matrices) -> "Cloud":
        """Turn the cloud, or each cloud of a batch by its own rotation. The only place where a pose changes.

        Points, normals and queries turn together; labels, parts and what is inside stay.
        """

        def turn(x: Tensor | None) -> Tensor | None:
            return None if x is None else x @ rotation.to(x).mT

        return replace(
            self,
            points=self.points @ rotation.to(self.points).mT,
            normals=turn(self.normals),
            queries=turn(self.queries),
        )

    def to(self, *args: Any, **kwargs: Any) -> "Cloud":
        """Move every tensor, as `Tensor.to` does; a floating-point type is for coordinates, labels keep theirs."""
        device = self.points[:0].to(*args, **kwargs).device
        later = kwargs.get("non_blocking", next((x for x in args if isinstance(x, bool)), False))

        def move(x: Tensor) -> Tensor:
            return x.to(*args, **kwargs) if x.is_floating_point() else x.to(device, non_blocking=later)

        return self.map(move)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Cloud":
        """Apply a function to every tensor that is known."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return Cloud(**{name: None if x is None else function(x) for name, x in known.items()})  # type: ignore[arg-type]

    @staticmethod
    def stack(clouds: Sequence["Cloud"]) -> "Cloud":
        """One batch of clouds that know the same things and have the same number of points."""
        if not clouds:
            raise ValueError("stack needs at least one cloud")
        stacked: dict[str, Tensor | None] = {}
        for field in fields(Cloud):
            known = [x for cloud in clouds if (x := getattr(cloud, field.name)) is not None]
            if known and len(known) < len(clouds):
                raise ValueError(f"{len(known)} of {len(clouds)} clouds have {field.name}: either all or none can")
            if len({tuple(x.shape) for x in known}) > 1:
                shapes = ", ".join(str(tuple(x.shape)) for x in known[:4])
                raise ValueError(f"clouds of one batch need {field.name} of one shape, got {shapes}")
            stacked[field.name] = torch.stack(known) if known else None
        return Cloud(**stacked)  # type: ignore[arg-type]


class Dataset(ABC):
    """A set of clouds, z up, in the pose they come in: rotating is the protocol's business, not the data's.

    `labels` `(len,)` holds the class of every cloud; `parts_of` `(classes, parts)` says which parts a class can have.
    """

    name: ClassVar[str]
    split: str
    classes: tuple[str, ...]
    parts: tuple[str, ...] = ()
    labels: Tensor
    parts_of: Tensor | None = None
    pack: "Pack | None" = None  # the file that it is in, if it is in one
    drawn_from: str | None = None  # a digest of all shapes, if splits are drawn from them

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Cloud:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.name} has {len(self)} clouds, asked for number {index}")
        return self.batch(torch.tensor([index % len(self)])).map(lambda x: x[0])

    @abstractmethod
    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """The clouds of these indices, stacked."""
