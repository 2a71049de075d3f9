"""A block of vector neurons after its linear maps: norm of lengths, leaky ReLU along a direction, mean over neighbours.

Works on rows `(3, channels)` that need not exist: each is the sum of one row of `a` and one of `b`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LANES = 8  # channels are padded to a multiple of this


def padded(channels: int) -> int:
    """Channels with padding."""
    return -(-channels // LANES) * LANES


class Rows(NamedTuple):
    """Rows `(3, columns)` of features and their directions, side by side: `a[graph[m]] + b[m // share]`.

    `a` is `(clouds, points, 3, columns)`. With a `graph` `(clouds, points, k)` rows are its edges, `b` belongs to the
    point they start from; without, `b` `(clouds, 1, 3, columns)` is one for all points of a cloud.

    Without a graph, a `weight` `(channels, columns)` may map `a`: such images are made where they are needed and never
    stored, unless they are given as `images`, which have no gradient of their own. Without a gradient, the weight and
    `b` may be in float64 where `a` is in float32: rows are then worked on in float64, and the result is rounded once.
    """

    a: Tensor
    b: Tensor | None = None
    weight: Tensor | None = None
    images: Tensor | None = None
    graph: Tensor | None = None

    def like(self) -> Tensor:
        """A tensor of the type in which rows are worked on."""
        return self.a if self.weight is None else self.weight

    def number(self) -> int:
        """Number of rows."""
        per_cloud = self.a.shape[1] if self.graph is None else self.graph.shape[1] * self.graph.shape[2]
        return self.a.shape[0] * per_cloud


def images(x: Tensor, weight: Tensor) -> Tensor:
    """Images of points under a linear map, `x @ weight`."""
    mapped: Tensor = torch.ops.vector_neurons.images(x, weight)
    return mapped


def moments(rows: Rows, width: int, eps: float | None) -> Tensor:
    """Sums over all rows of each length and of its square, for the first columns, `(2, width)` in float64."""
    a, b, weight = rows.a, rows.b, rows.weight
    if rows.images is not None:
        a, weight = rows.images, None
    elif weight is not None:  # directions need not be made
        weight, b = weight[:, :width].contiguous(), None if b is None else b[..., :width].contiguous()
    sums: Tensor = torch.ops.vector_neurons.moments(a, b, weight, rows.graph, width, eps or 0.0)
    return sums


def bend(
    rows: Rows,
    norm: Tensor,
    directions: int,
    channels: int,
    pool: int,
    slope: float,
    eps: float | None,
    *,
    batch: int = 0,
) -> Tensor:
    """Normalise lengths, bend along the directions, average rows in groups of `pool`: `(groups, 3, channels)`.

    `norm` `(5, width)` holds scale, shift, centre, floor and inverse variance: a vector of length n is multiplied by
    `(scale (n - centre) + shift) / max(n, floor)`. Where centre and variance are those of these very rows, `batch` is
    their number, and the gradient knows it. There are `width` directions, one for all features, or none.
    """
    relative = -1.0 if eps is None else eps
    bent: Tensor = torch.ops.vector_neurons.bend(*rows, norm, directions, channels, pool, slope, relative, batch)
    return bent
