"""Clouds with their annotations, one or a batch of them, and the interface of data sets."""

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
    """A point cloud with its annotations, or a batch of them if every field has a leading axis.

    Fields that a data set does not provide are None.

    Args:
        points: coordinates.
        normals: unit normals of the points.
        label: class.
        parts: part of each point.
        queries: query points in space.
        occupied: which queries are inside the shape.

    Shape:
        - points, normals: `(..., N, 3)`
        - label: `(...)`
        - parts: `(..., N)`
        - queries: `(..., Q, 3)`
        - occupied: `(..., Q)`

    >>> cloud = Cloud(torch.rand(100, 3), label=torch.tensor(2))
    >>> Cloud.stack([cloud, cloud]).points.shape
    torch.Size([2, 100, 3])
    """

    points: Points
    normals: Points | None = None
    label: Int[Tensor, "*batch"] | None = None
    parts: Int[Tensor, "*batch points"] | None = None
    queries: Float[Tensor, "*batch queries dim"] | None = None
    occupied: Bool[Tensor, "*batch queries"] | None = None

    def rotate(self, rotation: Matrices) -> "Cloud":
        """Rotate points, normals and queries by R (`x @ R.mT`), each cloud of a batch by its own rotation.

        This is the only function that changes a pose.

        Args:
            rotation: rotation matrices.

        Shape:
            - rotation: `(3, 3)`, or `(..., 3, 3)` for a batch

        >>> quarter_turn = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> Cloud(torch.tensor([[1.0, 0.0, 2.0]])).rotate(quarter_turn).points.tolist()
        [[0.0, 1.0, 2.0]]
        """

        def rotated(x: Tensor | None) -> Tensor | None:
            return None if x is None else x @ rotation.to(x).mT

        return replace(
            self,
            points=self.points @ rotation.to(self.points).mT,
            normals=rotated(self.normals),
            queries=rotated(self.queries),
        )

    def to(self, *args: Any, **kwargs: Any) -> "Cloud":
        """Move every tensor as `Tensor.to` does; a dtype applies to coordinates only, labels keep theirs."""
        device = self.points[:0].to(*args, **kwargs).device
        non_blocking = kwargs.get("non_blocking", next((x for x in args if isinstance(x, bool)), False))

        def move(x: Tensor) -> Tensor:
            return x.to(*args, **kwargs) if x.is_floating_point() else x.to(device, non_blocking=non_blocking)

        return self.map(move)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Cloud":
        """Apply a function to every tensor that is not None."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return Cloud(**{name: None if x is None else function(x) for name, x in tensors.items()})  # type: ignore[arg-type]

    @staticmethod
    def stack(clouds: Sequence["Cloud"]) -> "Cloud":
        """Stack clouds with the same fields and the same number of points to a batch."""
        if not clouds:
            raise ValueError("stack needs at least one cloud")
        stacked: dict[str, Tensor | None] = {}
        for field in fields(Cloud):
            given = [x for cloud in clouds if (x := getattr(cloud, field.name)) is not None]
            if given and len(given) < len(clouds):
                raise ValueError(f"{len(given)} of {len(clouds)} clouds have {field.name}: either all or none can")
            if len({tuple(x.shape) for x in given}) > 1:
                shapes = ", ".join(str(tuple(x.shape)) for x in given[:4])
                raise ValueError(f"clouds of one batch need {field.name} of one shape, got {shapes}")
            stacked[field.name] = torch.stack(given) if given else None
        return Cloud(**stacked)  # type: ignore[arg-type]


class Dataset(ABC):
    """A map-style data set of clouds, z up, in the pose in which they are published; nothing is rotated.

    `data[i]` is one cloud, `data.batch(indices)` a batch of them. A subclass defines `batch` and sets the attributes.

    Attributes:
        name: of the data set.
        split: of the data set.
        classes: names of the classes.
        parts: names of the parts.
        labels: class of every cloud, `(len,)`.
        parts_of: mask `(classes, parts)` of the parts that a class can have.
        pack: the file that holds the set, if any.
        drawn_from: a digest of all shapes, if the splits are drawn from them.
    """

    name: ClassVar[str]
    split: str
    classes: tuple[str, ...]
    parts: tuple[str, ...] = ()
    labels: Tensor
    parts_of: Tensor | None = None
    pack: "Pack | None" = None
    drawn_from: str | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice) -> Cloud:
        if isinstance(index, slice):
            return self.batch(torch.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range: {self.name} has {len(self)} clouds")
        return self.batch(torch.tensor([index % len(self)])).map(lambda x: x[0])

    @abstractmethod
    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """Return the clouds of these indices, stacked to a batch."""
