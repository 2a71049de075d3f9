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
    """Rows `a[graph[m]] + b[m // share]`, `a` being `(clouds, points, 3, width)`.

    With a `graph` `(clouds, points, k)` they are the edges of a graph, `b` belongs to the point they start from;
    without, `b` `(clouds, 1, 3, width)` is one for all points of a cloud. A `b` `(channels, width)` is a weight
    instead, which maps the channels of `a` (few, to be worth it) to as many as the rows have.
    """

    a: Tensor
    b: Tensor | None = None
    graph: Tensor | None = None

    def number(self) -> int:
        """Number of rows."""
        per_cloud = self.a.shape[1] if self.graph is None else self.graph.shape[1] * self.graph.shape[2]
        return self.a.shape[0] * per_cloud


def moments(q: Rows, pool: int, eps: float | None) -> Tensor:
    """Sums over all rows of each channel's length and of its square, `(2, width)`, in float64."""
    sums: Tensor = torch.ops.vector_neurons.moments(*q, pool, eps or 0.0)
    return sums


def bend(q: Rows, k: Rows | None, norm: Tensor, channels: int, pool: int, slope: float, eps: float | None) -> Tensor:
    """Normalise the lengths of q, bend it along k, and average rows in groups of `pool`: `(groups, 3, channels)`.

    `norm` `(4, width)` holds scale, shift, centre and floor: a vector of length n is multiplied by
    `(scale (n - centre) + shift) / max(n, floor)`.
    """
    ka, kb = (None, None) if k is None else (k.a, k.b)
    relative = -1.0 if eps is None else eps
    bent: Tensor = torch.ops.vector_neurons.bend(q.a, q.b, ka, kb, q.graph, norm, channels, pool, slope, relative)
    return bent
