"""Points of a cloud near other points: the nearest, with weights to interpolate between them, and those in a ball.

Distances and ties are those of `neighbors`: equally distant points are taken in order of their distance from the
origin, then of their index, so a rotation changes neither which points are found nor their order.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .. import kernels
from ..typing import Mask
from .neighbors import (
    BLOCK_ELEMENTS,
    canonical_order,
    detached_float,
    flatten_vmapped,
    gather,
    lengths,
    pairwise_distances,
    select_nearest,
    tie_tolerance,
)
from .scale import power_of_two


def nearest(
    queries: Float[Tensor, "batch queries dim"],
    points: Float[Tensor, "batch points dim"],
    k: int,
    *,
    mask: Mask | None = None,
) -> Int[Tensor, "batch queries k"]:
    """Indices of the `k` points nearest to each query point, nearest first.

    Args:
        queries: where to search; they need not be points of the cloud.
        points: the clouds that are searched.
        k: points per query, at most N.
        mask: True at points and False at padding, which is never selected. In a cloud of fewer than `k` points, the
            nearest one also takes the places that remain.

    Shape:
        - queries: `(B, Q, 3)`
        - points: `(B, N, 3)`
        - mask: `(B, N)`
        - out: `(B, Q, k)`

    Invariant to O(D) and scaling, to translation but for ties, equivariant to permutations.

    >>> vn.geometry.query.nearest(torch.tensor([[[1.1]]]), torch.tensor([[[0.0], [1.0], [3.0]]]), k=2).tolist()
    [[[1, 0]]]
    """
    _check_clouds("nearest", queries, points)
    if not 1 <= k <= points.shape[1]:
        raise ValueError(f"k={k} points of a cloud with {points.shape[1]}: need 1 <= k <= {points.shape[1]}")
    _check_mask("nearest", mask, points)
    found: Tensor = torch.ops.vector_neurons.nearest(detached_float(queries), detached_float(points), k, mask)
    return found


def _nearest(queries: Tensor, points: Tensor, k: int, mask: Tensor | None) -> Tensor:
    if mask is not None:
        if not mask.any(1).all():
            raise ValueError("a cloud whose mask is False everywhere has no nearest points: give it one at least")
        points = points.where(mask.unsqueeze(-1), 0)
    scale = power_of_two(torch.cat([queries, points], dim=1), (1, 2))  # the same neighbors, and squares in range
    found = search(queries * scale, points * scale, k, mask)
    return found if mask is None else found.where(present_places(mask, k), found[..., :1])


def search(queries: Tensor, points: Tensor, k: int, mask: Tensor | None, own: Tensor | None = None) -> Tensor:
    """The `k` nearest points, padding last; coordinates are at most 1, and `own` `(B, Q)` comes first in its row."""
    order = canonical_order(points, mask)
    points = points.gather(1, order.unsqueeze(-1).expand_as(points))  # from here on, ties go to the lower index
    if points.device.type == "cpu" and kernels.applicable(points):
        sizes = torch.full(points.shape[:1], points.shape[1]) if mask is None else mask.sum(1)
        if not (sizes < k).any():
            place = torch.full(queries.shape[:2], -1) if own is None else order.argsort(1).gather(1, own)
            place = place.where(place < sizes.unsqueeze(-1), -1)  # padding is not a point
            both = torch.cat([points, queries], dim=1)
            found = torch.ops.vector_neurons.nearest_canonical(both, sizes, place, k, tie_tolerance(points.dtype))
            return order.unsqueeze(1).expand(-1, found.shape[1], -1).gather(2, found)
    absent = None if mask is None else ~mask.gather(1, order).unsqueeze(1)
    far = 4 * points.shape[2] ** 0.5  # beyond any distance, and not infinite: tolerances are relative to it
    rows = max(1, BLOCK_ELEMENTS // max(1, points.shape[0] * points.shape[1]))
    blocks = []
    for start in range(0, max(1, queries.shape[1]), rows):  # once where there are none
        block = queries[:, start : start + rows]
        distances = pairwise_distances(block, points)
        if absent is not None:
            distances.masked_fill_(absent, far)
        if own is not None:
            distances.masked_fill_(order.unsqueeze(1) == own[:, start : start + rows].unsqueeze(-1), -1.0)
        blocks.append(select_nearest(distances, k, lengths(block), tie_tolerance(points.dtype)))
    found = torch.cat(blocks, dim=1)
    return order.unsqueeze(1).expand(-1, found.shape[1], -1).gather(2, found)


def present_places(mask: Mask, k: int) -> Bool[Tensor, "batch 1 k"]:
    """Which of `k` places a cloud has points for: as many as its mask is True."""
    return torch.arange(k, device=mask.device) < mask.sum(1).view(-1, 1, 1)


def ball_query(
    points: Float[Tensor, "batch points dim"],
    radius: float,
    k: int,
    centers: Int[Tensor, "batch centers"] | None = None,
    mask: Mask | None = None,
) -> Int[Tensor, "batch centers k"]:
    """Indices of up to `k` points within `radius` of each center, nearest first, for `FrameConv`.

    The first is the center itself, which also takes the places for which the ball has no points. A point at the radius
    to within rounding is inside. Where the ball has more than `k` points, the nearest are taken.

    Args:
        points: clouds.
        radius: of the balls, in the units of the points.
        k: places per center; it may exceed the number of points.
        centers: indices of points, such as `geometry.sampling.farthest_points(points, 64)`; by default every point.
        mask: True at points and False at padding, which is in no other point's ball.

    Shape:
        - points: `(B, N, 3)`
        - centers: `(B, M)`
        - mask: `(B, N)`
        - out: `(B, M, k)`

    Invariant to O(D), to translation but for ties, equivariant to permutations.

    >>> vn.geometry.query.ball_query(torch.tensor([[[0.0], [1.0], [3.0]]]), radius=1.5, k=3).tolist()
    [[[0, 1, 0], [1, 0, 1], [2, 2, 2]]]
    """
    if points.ndim != 3:
        raise ValueError(f"ball_query needs points (B, N, 3), got {tuple(points.shape)}")
    if k < 1:
        raise ValueError(f"ball_query needs k >= 1 places per center, got {k}")
    if not radius > 0:
        raise ValueError(f"ball_query needs a radius > 0, in the units of the points, got {radius}")
    _check_mask("ball_query", mask, points)
    if centers is not None and (
        centers.ndim != 2 or centers.shape[0] != points.shape[0] or centers.is_floating_point()
    ):
        expected = f"({len(points)}, M) of points"
        raise ValueError(f"ball_query needs centers as indices {expected}, got {centers.dtype} {tuple(centers.shape)}")
    x = detached_float(points)
    found: Tensor = torch.ops.vector_neurons.ball_query(x, float(radius), k, centers, mask)
    return found


def _ball_query(points: Tensor, radius: float, k: int, centers: Tensor | None, mask: Tensor | None) -> Tensor:
    batch, number, _ = points.shape
    if centers is None:
        centers = torch.arange(number, device=points.device).expand(batch, -1)
    elif centers.numel() and not 0 <= centers.min() <= centers.max() < number:
        raise ValueError(f"centers must be indices 0 to {number - 1} of the cloud's own points")
    centers = centers.long()
    if mask is not None:
        points = points.where(mask.unsqueeze(-1), 0)
    scale = power_of_two(points, (1, 2))
    points = points * scale
    own = centers.unsqueeze(-1)
    at = gather(points, own)  # B M 1 3
    found = search(at.squeeze(2), points, min(k, number), mask, centers)
    distances = lengths(gather(points, found) - at).squeeze(-1)
    # The bound lies beyond the rounding of distances: points at the radius, as in grids, are inside in every pose.
    limit = radius * scale
    inside = distances <= limit + tie_tolerance(points.dtype) * (lengths(at.squeeze(2)) + limit)
    if mask is not None:
        inside &= present_places(mask, found.shape[-1]) & mask.gather(1, centers).unsqueeze(-1)
    found = found.where(inside, own)
    return torch.cat([found, own.expand(-1, -1, k - found.shape[-1])], dim=-1)


def interpolation_weights(
    queries: Float[Tensor, "batch queries dim"],
    points: Float[Tensor, "batch points dim"],
    neighbors: Int[Tensor, "batch queries k"],
    *,
    mask: Mask | None = None,
) -> Float[Tensor, "batch queries k"]:
    """Inverse squared distances of each query to its `neighbors`, normalized to sum 1 (as in PointNet++).

    `w_i = d_i⁻² / Σ_j d_j⁻²`. Distances below rounding count as equal: a query that coincides with a point takes it,
    and one that coincides with several takes their mean.

    Args:
        queries: where to interpolate.
        points: the points whose features are known.
        neighbors: indices of points, such as `nearest(queries, points, 3, mask=mask)`.
        mask: True at points and False at padding; places beyond a cloud's number of points get weight 0.

    Shape:
        - queries: `(B, Q, 3)`
        - points: `(B, N, 3)`
        - neighbors: `(B, Q, k)`
        - mask: `(B, N)`
        - out: `(B, Q, k)`

    Invariant to O(D), translation and scaling. Differentiable in both clouds.

    >>> query, points = torch.tensor([[[1.0]]]), torch.tensor([[[0.0], [3.0]]])
    >>> vn.geometry.query.interpolation_weights(query, points, torch.tensor([[[0, 1]]])).tolist()
    [[[0.800000011920929, 0.20000000298023224]]]
    """
    _check_clouds("interpolation_weights", queries, points)
    _check_mask("interpolation_weights", mask, points)
    queries, points = (x if x.dtype == torch.float64 else x.float() for x in (queries, points))
    if mask is not None:
        points = points.where(mask.unsqueeze(-1), 0)
    scale = power_of_two(torch.cat([queries, points], dim=1), (1, 2))
    queries, points = queries * scale, points * scale
    squared = (gather(points, neighbors) - queries.unsqueeze(2)).square().sum(-1)
    # Rounding decides below this distance. Without the bound, a duplicated point would be at distance 0 in one pose
    # and next to it in another, and its copy would weigh 1/2 or 0.
    rounding = tie_tolerance(points.dtype) * lengths(points.detach()).amax(1, keepdim=True)
    squared = squared.maximum(rounding.square()).clamp_min(torch.finfo(squared.dtype).tiny ** 0.5)
    # Relative to the nearest, so that nothing overflows; the common factor cancels, also in the gradient.
    weights = squared.detach().amin(-1, keepdim=True) / squared
    if mask is not None:
        weights = weights.where(present_places(mask, neighbors.shape[-1]), 0)
    return weights / weights.sum(-1, keepdim=True)


def _check_clouds(name: str, queries: Tensor, points: Tensor) -> None:
    if queries.ndim != 3 or points.ndim != 3 or queries.shape[::2] != points.shape[::2]:
        shapes = f"{tuple(queries.shape)} and {tuple(points.shape)}"
        raise ValueError(f"{name} needs queries (B, Q, 3) and points (B, N, 3), got {shapes}")


def _check_mask(name: str, mask: Tensor | None, points: Tensor) -> None:
    if mask is not None and mask.shape != points.shape[:2]:
        raise ValueError(f"{name} needs a mask {tuple(points.shape[:2])} of the points, got {tuple(mask.shape)}")


def _shape_of_nearest(queries: Tensor, points: Tensor, k: int, mask: Tensor | None) -> Tensor:
    return queries.new_empty((queries.shape[0], queries.shape[1], k), dtype=torch.int64)


def _nearest_vmap(
    info: Any, dims: tuple[int | None, ...], queries: Tensor, points: Tensor, k: int, mask: Tensor | None
) -> tuple[Tensor, int]:
    flat = partial(flatten_vmapped, info.batch_size)
    mask = None if mask is None else flat(mask, dims[3])
    found = _nearest(flat(queries, dims[0]), flat(points, dims[1]), k, mask)
    return torch.unflatten(found, 0, (info.batch_size, found.shape[0] // info.batch_size)), 0


def _shape_of_ball_query(points: Tensor, radius: float, k: int, centers: Tensor | None, mask: Tensor | None) -> Tensor:
    number = points.shape[1] if centers is None else centers.shape[1]
    return points.new_empty((points.shape[0], number, k), dtype=torch.int64)


def _ball_query_vmap(
    info: Any,
    dims: tuple[int | None, ...],
    points: Tensor,
    radius: float,
    k: int,
    centers: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, int]:
    flat = partial(flatten_vmapped, info.batch_size)
    centers = None if centers is None else flat(centers, dims[3])
    mask = None if mask is None else flat(mask, dims[4])
    found = _ball_query(flat(points, dims[0]), radius, k, centers, mask)
    return torch.unflatten(found, 0, (info.batch_size, found.shape[0] // info.batch_size)), 0


# Opaque operators, as in `neighbors`: their loops stay out of compiled and exported graphs.
if not hasattr(torch.ops.vector_neurons, "nearest"):
    torch.library.define("vector_neurons::nearest", "(Tensor queries, Tensor points, int k, Tensor? mask) -> Tensor")
    torch.library.impl("vector_neurons::nearest", "default", _nearest)
    torch.library.register_fake("vector_neurons::nearest", _shape_of_nearest)
    torch.library.register_vmap("vector_neurons::nearest", _nearest_vmap)
    torch.library.define(
        "vector_neurons::ball_query",
        "(Tensor points, float radius, int k, Tensor? centers, Tensor? mask) -> Tensor",
    )
    torch.library.impl("vector_neurons::ball_query", "default", _ball_query)
    torch.library.register_fake("vector_neurons::ball_query", _shape_of_ball_query)
    torch.library.register_vmap("vector_neurons::ball_query", _ball_query_vmap)


__all__ = ["ball_query", "interpolation_weights", "nearest"]
