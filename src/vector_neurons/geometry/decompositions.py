"""Graph operators in plain torch operations, for exported files that must run without this library.

`knn`, `nearest`, `ball_query` and `farthest_points` are opaque operators with blocks, trees and rare branches inside.
Here each is the same choice of points, ties included, without control flow that depends on values: sorts, sums and one
`scan`. Distances of all pairs are stored, so memory grows with N².
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from .neighbors import canonical_order, gather, lengths, runs_by_index, tie_tolerance

DIFFERENCES_MAX_DIMENSION = 8  # as in `neighbors.pairwise_distances`


def _knn(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    _check_unmasked(mask)
    own = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
    return _search(x, x, k, own, -1.0 if include_self else torch.inf)


def _nearest(queries: Tensor, points: Tensor, k: int, mask: Tensor | None) -> Tensor:
    _check_unmasked(mask)
    return _search(queries, points, k)


def _ball_query(points: Tensor, radius: float, k: int, centers: Tensor | None, mask: Tensor | None) -> Tensor:
    _check_unmasked(mask)
    batch, number, _ = points.shape
    if centers is None:
        centers = torch.arange(number, device=points.device).expand(batch, -1)
    own = centers.unsqueeze(-1)
    at = gather(points, own)
    fewer: int = torch.sym_min(k, number)  # type: ignore[no-untyped-call]
    found = _search(at.squeeze(2), points, fewer, centers, -1.0)
    if radius < torch.inf:
        distances = lengths(gather(points, found) - at).squeeze(-1)
        inside = distances <= radius + tie_tolerance(points.dtype) * (lengths(at.squeeze(2)) + radius)
        found = found.where(inside, own)
    return torch.cat([found, own.expand(-1, -1, k)], dim=-1)[..., :k]  # where there are fewer points than k


def _farthest_points(x: Tensor, n: int, mask: Tensor | None) -> Tensor:
    _check_unmasked(mask)
    order = canonical_order(x)
    x = x.gather(1, order.unsqueeze(-1).expand_as(x))
    tolerance = tie_tolerance(x.dtype) * lengths(x).amax(1)
    distance = lengths(x - x.mean(1, keepdim=True)).squeeze(-1)
    nearest = torch.full_like(distance, torch.inf)

    def step(distance: Tensor, nearest: Tensor, _: Tensor, x: Tensor, tolerance: Tensor) -> tuple[Tensor, ...]:
        far = distance >= distance.amax(-1, keepdim=True) - tolerance
        pick = far.to(torch.int32).argmax(-1, keepdim=True)  # the first of the farthest
        chosen = x.gather(1, pick.unsqueeze(-1).expand(-1, -1, x.shape[2]))
        nearest = nearest.minimum(lengths(x - chosen).squeeze(-1)).scatter(1, pick, -torch.inf)
        return nearest, nearest.clone(), pick.squeeze(-1)

    steps = torch.arange(n, device=x.device)
    chosen = torch.ops.higher_order.scan(step, (distance, nearest), (steps,), (x, tolerance))[-1]
    return order.gather(1, chosen.mT)


def _cdist(queries: Tensor, x: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    return _distances_by_differences(queries, x) if p == 2 else NotImplemented


def _check_unmasked(mask: Tensor | None) -> None:
    if mask is not None:
        raise ValueError("a network with lengths cannot be exported: give it clouds of one size")


def _search(queries: Tensor, points: Tensor, k: int, own: Tensor | None = None, own_distance: float = -1.0) -> Tensor:
    """The `k` nearest points, nearest first; `own` `(B, Q)` counts as at `own_distance` from its query."""
    order = canonical_order(points)
    points = points.gather(1, order.unsqueeze(-1).expand_as(points))  # from here on, ties go to the lower index
    distances = _pairwise_distances(queries, points)
    if own is not None:
        distances = distances.masked_fill(order.unsqueeze(1) == own.unsqueeze(-1), own_distance)
    last = distances.topk(k, largest=False).values[..., -1:]
    tolerance = tie_tolerance(points.dtype) * (lengths(queries) + last.clamp(min=0))
    # Certain neighbors, then those that tie with the last one by index, then the rest.
    index = torch.arange(points.shape[1], device=points.device).expand_as(distances)
    key = index.where(distances <= last + tolerance, points.shape[1]).where(distances >= last - tolerance, -1)
    chosen = key.topk(k, largest=False).indices
    distances, nearest_first = distances.gather(-1, chosen).sort(-1)
    chosen = runs_by_index(distances, tolerance, chosen.gather(-1, nearest_first), points.shape[1])
    return order.unsqueeze(1).expand(-1, chosen.shape[1], -1).gather(2, chosen)


def _pairwise_distances(queries: Tensor, x: Tensor) -> Tensor:
    if x.shape[-1] <= DIFFERENCES_MAX_DIMENSION or x.dtype == torch.float64:
        return _distances_by_differences(queries, x)
    queries, x = queries.double(), x.double()
    squared = queries.square().sum(-1, keepdim=True) + x.square().sum(-1).unsqueeze(-2) - 2 * queries @ x.mT
    return squared.clamp(min=0).sqrt()


def _distances_by_differences(queries: Tensor, x: Tensor) -> Tensor:
    # One coordinate at a time: all of them at once would take as many times the memory of the result.
    pairs = zip(queries.unbind(-1), x.unbind(-1), strict=True)
    return reduce(torch.add, ((q.unsqueeze(-1) - p.unsqueeze(-2)).square() for q, p in pairs)).sqrt()


DECOMPOSITIONS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.vector_neurons.knn.default: _knn,
    torch.ops.vector_neurons.nearest.default: _nearest,
    torch.ops.vector_neurons.ball_query.default: _ball_query,
    torch.ops.vector_neurons.farthest_points.default: _farthest_points,
    torch.ops.aten.cdist.default: _cdist,  # which has no counterpart in ONNX
}
