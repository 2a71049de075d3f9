"""Rows of a pack: clouds rotated z-up, normalized to the unit ball, and resampled to one number of points."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.sampling import unit_ball
from .pack import DataError

PackRows = dict[str, Tensor]  # arrays of a pack by name, with one row for each shape
Up = Literal["x", "y", "z"]
COINCIDE = "all points coincide"
# Rotate the axis that is up in a source to z, never swap axes, which would mirror the shapes.
UPRIGHT = {
    "z": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "y": ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
    "x": ((0, 0, -1), (0, 1, 0), (1, 0, 0)),
}


def upright(x: Float[Tensor, "*batch points 3"], up: Up) -> Float[Tensor, "*batch points 3"]:
    """Rotate shapes whose `up` axis is up so that z is.

    >>> upright(torch.tensor([[1.0, 2.0, 3.0]]), "y").tolist()
    [[1.0, -3.0, 2.0]]
    """
    return x @ torch.tensor(UPRIGHT[up], dtype=x.dtype, device=x.device).mT


def cloud_rows(
    points: Float[Tensor, "shapes points 3"],
    up: Up,
    normals: Float[Tensor, "shapes points 3"] | None = None,
) -> PackRows:
    """Return the rows of clouds as packs hold them: z up, in the unit ball, float32."""
    if all_coincide(points).any():
        raise DataError(COINCIDE)
    rows = {
        "points": unit_ball(upright(points.double(), up)).float(),
        "count": torch.full((len(points),), points.shape[1]),
    }
    if normals is not None:
        rows["normals"] = upright(normals, up).float()
    return rows


def all_coincide(points: Float[Tensor, "shapes points 3"]) -> Bool[Tensor, " shapes"]:
    """Mark the clouds of several points that all coincide, and so have no unit ball."""
    if points.shape[1] < 2:
        return torch.zeros(len(points), dtype=torch.bool)
    return (points == points[:, :1]).all(-1).all(-1)


def resample(columns: Mapping[str, Tensor], points: int, generator: torch.Generator) -> tuple[PackRows, int]:
    """Shuffle a cloud and cut or repeat it to `points` points; also returns how many of them are distinct.

    A prefix of the result is a random sample of the cloud. A cloud with fewer points repeats some of them at its end.
    """
    have = len(columns["points"])
    order = torch.randperm(have, generator=generator)[torch.arange(points) % have]
    return {name: x[order] for name, x in columns.items()}, min(have, points)


def concatenate_rows(shapes: Sequence[PackRows]) -> PackRows:
    """Concatenate rows, keeping the arrays that all of them have."""
    common = set.intersection(*map(set, shapes)) if shapes else set()
    return {key: torch.cat([shape[key] for shape in shapes]) for key in common}
