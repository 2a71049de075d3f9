"""Reductions over the rows of irregular graphs: a segment is the rows that have the same index.

Clouds of different sizes stand in one tensor, without padding: the edges that lead to a point, or the points of a
cloud, are a segment. Indices need not be sorted. On a CPU the same input gives the same bits.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..typing import Neighbors

EdgeIndex = Int[Tensor, "2 edges"]
"""Edges as two rows of points: from sources (row 0) to targets (row 1), as in PyTorch Geometric."""

Index = Int[Tensor, " rows"]
"""The segment of each row."""


def to_edge_index(neighbors: Neighbors) -> EdgeIndex:
    """Edges `(2, E)` of a graph of neighbors `(B, N, K)`, from each neighbor to its point.

    The clouds become one graph of `B N` points, whose features are `x.flatten(0, 1)`.

    Args:
        neighbors: indices of points, such as `knn(points, k)`.

    Shape:
        - neighbors: `(B, N, K)`
        - out: `(2, B N K)`

    >>> vn.geometry.segments.to_edge_index(torch.tensor([[[0, 1], [1, 0]]])).tolist()
    [[0, 1, 1, 0], [0, 0, 1, 1]]
    """
    batch, points, k = neighbors.shape
    first = points * torch.arange(batch, device=neighbors.device).view(-1, 1, 1)
    targets = torch.arange(batch * points, device=neighbors.device).repeat_interleave(k)
    return torch.stack([(neighbors.long() + first).flatten(), targets])


def segment_mean(x: Float[Tensor, "rows *feature"], index: Index, size: int) -> Float[Tensor, "segments *feature"]:
    """Mean of the rows of each segment; an empty segment is zero.

    Args:
        x: features.
        index: the segment of each row, int64, 0 to `size - 1`, in any order.
        size: number of segments.

    Shape:
        - x: `(E, ...)`
        - index: `(E,)`
        - out: `(size, ...)`

    Invariant to permutations of the rows.

    >>> vn.geometry.segments.segment_mean(torch.tensor([1.0, 5.0, 3.0]), torch.tensor([0, 2, 0]), 3).tolist()
    [2.0, 0.0, 5.0]
    """
    _check(x, index, size)
    wide = x if x.dtype.itemsize >= 4 else x.float()  # a sum in half precision could overflow
    total = wide.new_zeros(size, *x.shape[1:]).index_add(0, index, wide)
    rows = _count(index, size, wide.dtype)
    return (total / rows.view(-1, *[1] * (x.ndim - 1))).to(x.dtype)


def segment_max(x: Float[Tensor, "rows *feature"], index: Index, size: int) -> Float[Tensor, "segments *feature"]:
    """Maximum of the rows of each segment, number by number; an empty segment is zero.

    Among equal rows, the gradient goes to the first. Arguments as in `segment_mean`.

    Shape:
        - x: `(E, ...)`
        - index: `(E,)`
        - out: `(size, ...)`

    Invariant to permutations of the rows.

    >>> vn.geometry.segments.segment_max(torch.tensor([1.0, -5.0, 3.0]), torch.tensor([0, 2, 0]), 3).tolist()
    [3.0, 0.0, -5.0]
    """
    _check(x, index, size)
    flat = x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)
    return take(flat, first_largest(flat.detach(), index, size)).view(size, *x.shape[1:])


def first_largest(
    score: Float[Tensor, "rows channels"],
    index: Index,
    size: int,
    tolerance: Float[Tensor, "segments channels"] | None = None,
) -> Int[Tensor, "segments channels"]:
    """Number of the first row of each segment whose score is the largest, or no less by more than `tolerance`.

    NaN counts as the largest: it must not be hidden. An empty segment has the number of all rows, which no row has.
    """
    bound = _reduce(score, index, size, "amax")
    bound = bound if tolerance is None else bound - tolerance
    good = (score >= bound.index_select(0, index)) | score.isnan()
    rows = torch.arange(score.shape[0], device=score.device).unsqueeze(-1).where(good, score.shape[0])
    return _reduce(rows, index, size, "amin", empty=score.shape[0])


def take(x: Float[Tensor, "rows *dim channels"], rows: Int[Tensor, "segments channels"]) -> Tensor:
    """Each channel from its own row; zero where the number is that of all rows, as `first_largest` has it."""
    if not x.shape[0]:
        return x.new_zeros(rows.shape[0], *x.shape[1:])
    rows = rows.view(rows.shape[0], *[1] * (x.ndim - 2), -1)
    found = x.gather(0, rows.clamp(max=x.shape[0] - 1).expand(-1, *x.shape[1:]))
    return found.where(rows < x.shape[0], 0)


def segment_amax(x: Float[Tensor, "rows channels"], index: Index, size: int) -> Float[Tensor, "segments channels"]:
    """Maximum of each segment, without gradient; an empty segment is zero."""
    return _reduce(x.detach(), index, size, "amax")


def _reduce(x: Tensor, index: Tensor, size: int, reduce: str, *, empty: int = 0) -> Tensor:
    out = x.new_full((size, *x.shape[1:]), empty)
    return out.scatter_reduce(0, index.unsqueeze(-1).expand_as(x), x, reduce, include_self=False)


def _count(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Rows of each segment, 1 for an empty one."""
    ones = torch.ones(index.shape[0], dtype=dtype, device=index.device)
    return torch.zeros(size, dtype=dtype, device=index.device).index_add(0, index, ones).clamp(min=1)


def _check(x: Tensor, index: Tensor, size: int) -> None:
    if index.dtype != torch.int64 or index.shape != x.shape[:1]:
        shapes = f"{index.dtype} {tuple(index.shape)} for x {tuple(x.shape)}"
        raise ValueError(f"a segment index has one int64 for each row of x, got {shapes}")
    if size < 0:
        raise ValueError(f"the number of segments is 0 or more, got {size}")


__all__ = ["EdgeIndex", "segment_max", "segment_mean", "to_edge_index"]
