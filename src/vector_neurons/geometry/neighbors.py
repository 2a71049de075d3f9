"""k-nearest-neighbor graphs that do not change under rotation, and features of their edges.

Rotating a cloud changes its coordinates by rounding. Where two candidates are equally far (grids, duplicated points)
that rounding would decide which one is a neighbor, and a network on the graph would lose its symmetry in every
precision. Distances here are therefore accurate (from differences, or summed in float64) and compared with a tolerance
above that rounding. Ties go to the point nearer the origin, which depends neither on the pose nor on the order of the
points; among points equally near, the lower index wins.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import kernels
from ..typing import Mask, Neighbors
from .scale import power_of_two

# Distances closer than this many units of rounding, relative to the size of the numbers they come from, are equal.
TIE_ULPS = 32
# Elements of one block of the distance matrix: 64 MiB in float64, whatever the number of points.
BLOCK_ELEMENTS = 2**23
# From so many points on, in so few dimensions, a k-d tree is faster than comparing all.
TREE_POINTS, TREE_DIMENSION = 2048, 3
SPARE_CANDIDATES = 8  # kept beyond k, so that most ties at rank k are broken without sorting the whole row


def knn(
    x: Float[Tensor, "batch points *feature"], k: int, *, include_self: bool = True, mask: Mask | None = None
) -> Neighbors:
    """Indices of the `k` nearest neighbors of every point, nearest first. Memory does not grow with N².

    Args:
        x: a cloud or any feature. Trailing axes are one Euclidean space, so vector features `(B, N, 3, C)` give a graph
            that is invariant to rotations.
        k: neighbors per point.
        include_self: whether a point is its own first neighbor, as in the paper's code.
        mask: True at points and False at padding, which is never selected as a neighbor.

    Shape:
        - x: `(B, N, ...)`
        - mask: `(B, N)`
        - out: `(B, N, k)`

    Invariant to O(D), translation and scaling, equivariant to permutations.

    >>> vn.knn(torch.tensor([[[0.0], [1.0], [3.0]]]), k=2).tolist()
    [[[0, 1], [1, 0], [2, 1]]]
    """
    if x.ndim < 3:
        raise ValueError(f"knn needs (batch, points, ...), got {tuple(x.shape)}: add a batch axis with x[None]")
    indices: Tensor = torch.ops.vector_neurons.knn(detached_float(x).flatten(2), k, include_self, mask)
    return indices


def _knn(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    batch, points, _ = x.shape
    fewest = points if mask is None or batch == 0 else int(mask.sum(1).min())
    available = fewest if include_self else fewest - 1
    if not 1 <= k <= available:
        others = "" if include_self else " other"
        hint = "; is this cloud (B, 3, N)? pass points.mT" if points == 3 and x.shape[2] > 3 else ""
        raise ValueError(
            f"k={k} neighbors in a cloud with {available}{others} points: need 1 <= k <= {available}{hint}"
        )
    present = x if mask is None else x.where(mask.unsqueeze(-1), 0)
    x = x * power_of_two(present, (1, 2))  # the same neighbors, and squares in range
    order = canonical_order(x, mask)
    x = x.gather(1, order.unsqueeze(-1).expand_as(x))  # from here on, ties go to the lower index
    if x.device.type == "cpu" and kernels.applicable(x):  # CUDA has native blocks, not this
        sizes = mask.sum(1) if mask is not None else torch.full((batch,), points)
        found = torch.ops.vector_neurons.knn_canonical(x, sizes, k, include_self, tie_tolerance(x.dtype))
    elif x.device.type == "cpu" and mask is None and points >= TREE_POINTS and x.shape[2] <= TREE_DIMENSION:
        found = torch.stack([_search_tree(cloud, k, include_self) for cloud in x])
    else:
        found = _search(x, k, include_self, None if mask is None else mask.gather(1, order))
    nearest = order.unsqueeze(1).expand(-1, points, -1).gather(2, found)
    return torch.empty_like(nearest).scatter_(1, order.unsqueeze(-1).expand_as(nearest), nearest)


def _search(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    batch, points, _ = x.shape
    rows = max(1, BLOCK_ELEMENTS // max(1, batch * points))
    # The own index is forced to the front (or out): among duplicated points its distance 0 is not unique.
    own = -1.0 if include_self else torch.inf
    blocks = []
    for start in range(0, points, rows):
        queries = x[:, start : start + rows]
        distances = pairwise_distances(queries, x)
        if mask is not None:
            distances.masked_fill_(~mask.unsqueeze(1), torch.inf)
        diagonal = torch.arange(queries.shape[1], device=x.device)
        distances[:, diagonal, start + diagonal] = own
        blocks.append(select_nearest(distances, k, lengths(queries), tie_tolerance(x.dtype)))
    return torch.cat(blocks, dim=1)


def _shape_of_knn(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], k), dtype=torch.int64)


def flatten_vmapped(size: int, y: Tensor, dim: int | None) -> Tensor:
    """The batch axis with the axis of vmap, of this size, in front of it."""
    return (y.expand(size, *y.shape) if dim is None else y.movedim(dim, 0)).flatten(0, 1)


def _knn_vmap(
    info: Any, dims: tuple[int | None, ...], x: Tensor, k: int, include_self: bool, mask: Tensor | None
) -> tuple[Tensor, int]:
    flat = partial(flatten_vmapped, info.batch_size)
    found = _knn(flat(x, dims[0]), k, include_self, None if mask is None else flat(mask, dims[3]))
    return torch.unflatten(found, 0, (info.batch_size, found.shape[0] // info.batch_size)), 0


# One opaque operator: its loop over blocks and its rare branches stay out of compiled and exported graphs.
# Not torch.library.custom_op, whose first call imports the whole compiler, which takes seconds.
if not hasattr(torch.ops.vector_neurons, "knn"):  # the module may be reloaded
    torch.library.define("vector_neurons::knn", "(Tensor x, int k, bool include_self, Tensor? mask) -> Tensor")
    torch.library.impl("vector_neurons::knn", "default", _knn)
    torch.library.register_fake("vector_neurons::knn", _shape_of_knn)
    torch.library.register_vmap("vector_neurons::knn", _knn_vmap)


def _search_tree(x: Tensor, k: int, include_self: bool) -> Tensor:
    """The same from a k-d tree, for many points in few dimensions."""
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    coordinates = x.numpy()
    wanted = min(k + SPARE_CANDIDATES, len(x))
    distances, index = cKDTree(coordinates).query(coordinates, wanted, workers=torch.get_num_threads())
    d, i = torch.from_numpy(distances), torch.from_numpy(index)
    mine = i == torch.arange(len(x)).unsqueeze(-1)
    d = d.masked_fill(mine, -1.0 if include_self else torch.inf)
    d, order = d.sort(-1)
    chosen, crowded = _choose(d, i.gather(-1, order), k, lengths(x), tie_tolerance(x.dtype), len(x))
    # Among many duplicated points, the tree may not have found the point itself.
    ambiguous = (crowded | ~mine.any(-1)).nonzero().flatten()
    for row in torch.split(ambiguous, max(1, BLOCK_ELEMENTS // len(x))):
        distance = pairwise_distances(x[row].unsqueeze(0), x.unsqueeze(0))
        distance[0, torch.arange(len(row)), row] = -1.0 if include_self else torch.inf
        chosen[row] = select_nearest(distance, k, lengths(x[row]).unsqueeze(0), tie_tolerance(x.dtype))[0]
    return chosen


def detached_float(x: Tensor) -> Tensor:
    """The coordinates without gradient, in float32 at least."""
    # An index has no gradient, and half precision cannot tell neighbors apart.
    x = x.detach()
    return x if x.dtype == torch.float64 else x.float()


def lengths(x: Tensor) -> Tensor:
    """Euclidean norm over the last axis, which is kept."""
    return x.square().sum(-1, keepdim=True).sqrt()


def tie_tolerance(dtype: torch.dtype) -> float:
    """Relative difference up to which two numbers of this precision are a tie.

    >>> vn.geometry.neighbors.tie_tolerance(torch.float32) < 1e-5
    True
    """
    return TIE_ULPS * torch.finfo(dtype).eps


def canonical_order(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Order the points by distance from the origin, ties by index, padding last."""
    length = lengths(x).squeeze(-1)
    if mask is not None:
        length = length.masked_fill(~mask, torch.finfo(length.dtype).max)  # finite: inf - inf is NaN
    length, order = length.sort(dim=-1)
    return runs_by_index(length, tie_tolerance(x.dtype) * length[..., 1:], order, x.shape[1])


def runs_by_index(ascending: Tensor, tolerance: Tensor, index: Tensor, points: int) -> Tensor:
    """Sort the indices (below `points`) inside each run of equal values, in rows sorted in ascending order."""
    jump = ascending.diff(dim=-1) > tolerance
    before = points * torch.nn.functional.pad(jump.long().cumsum(-1), (1, 0))
    return (before + index).sort(-1).values - before


def pairwise_distances(queries: Tensor, x: Tensor) -> Tensor:
    """Distances of every query from every point, `(B, Q, N)`, accurate enough for `tie_tolerance`."""
    # Differences are exact but slow in wide spaces; there, a float32 feature's distances come from float64 products,
    # whose error stays far below the feature's own. float64 itself has nothing wider, and some devices lack it.
    if x.shape[-1] <= 8 or x.dtype == torch.float64 or x.device.type == "mps":
        return torch.cdist(queries, x, compute_mode="donot_use_mm_for_euclid_dist")
    queries, x = queries.double(), x.double()
    norms = x.square().sum(-1)
    squared = torch.baddbmm(norms.unsqueeze(-2), queries, x.mT, alpha=-2)
    return squared.add_(queries.square().sum(-1, keepdim=True)).clamp_(min=0).sqrt_()


def select_nearest(distances: Tensor, k: int, size: Tensor, ulps: float) -> Tensor:
    """Pick the `k` smallest of every row; distances within the tolerance are equal, and among them lower indices win.

    `size` is the length of the query: rounding of a distance is relative to the numbers it is the difference of.
    """
    points = distances.shape[-1]
    nearest, index = distances.topk(min(k + SPARE_CANDIDATES, points), largest=False)
    chosen, crowded = _choose(nearest, index, k, size, ulps, points)
    if crowded.any():
        row = distances[crowded]
        every = torch.arange(points, device=row.device).expand_as(row)
        row, order = row.sort(-1)
        chosen[crowded], _ = _choose(row, every.gather(-1, order), k, size[crowded], ulps, points)
    return chosen


def _choose(d: Tensor, i: Tensor, k: int, size: Tensor, ulps: float, points: int) -> tuple[Tensor, Tensor]:
    """The `k` nearest of candidates in ascending order, and in which rows ties may run past the last candidate."""
    # The k-th smallest distance moves no more than the distances do, whichever candidate happens to attain it.
    last = d[..., k - 1 : k]
    tolerance = ulps * (size + last.clamp(min=0))
    crowded = (d[..., -1:] <= last + tolerance).squeeze(-1) & (d.shape[-1] < points)
    key = i.where(d <= last + tolerance, points).where(d >= last - tolerance, -1)
    selected = key.topk(k, largest=False).indices
    d, order = d.gather(-1, selected).sort(-1)
    # Nearest first, and by index inside each run of equal distances.
    return runs_by_index(d, tolerance, i.gather(-1, selected).gather(-1, order), points), crowded


def gather(
    x: Float[Tensor, "batch points *feature"], neighbors: Int[Tensor, "batch n k"]
) -> Float[Tensor, "batch n k *feature"]:
    """Gather the features of every point's neighbors.

    Shape:
        - x: `(B, N, ...)`
        - neighbors: `(B, M, K)`, indices below N
        - out: `(B, M, K, ...)`

    >>> vn.geometry.neighbors.gather(torch.tensor([[5.0, 6.0, 7.0]]), torch.tensor([[[2, 0]]])).tolist()
    [[[7.0, 5.0]]]
    """
    batch, points = x.shape[:2]
    offset = points * torch.arange(batch, device=x.device).view(-1, 1, 1)
    rows = x.flatten(0, 1).index_select(0, (neighbors + offset).flatten())
    return rows.view(*neighbors.shape, *x.shape[2:])


def edge_features(
    x: Float[Tensor, "... channels"], neighbors: Neighbors | Int[Tensor, "2 edges"], *, cross: bool = False
) -> Float[Tensor, "... edge_channels"]:
    """Channels `[x_m - x_n, x_n]` of every edge from n to its neighbor m, and `x_m × x_n` with `cross` (3-D only).

    Args:
        x: vectors `(B, N, 3, C)` or, without `cross`, scalars `(B, N, C)`; on a graph `(N, 3, C)` or `(N, C)`.
        neighbors: indices `(B, N, K)`, or the edges `(2, E)` of a graph: from sources m (row 0) to targets n (row 1).
        cross: adds the cross products. They keep their sign under a reflection where vectors change theirs, so a
            network that uses them is equivariant to SO(3) but not to O(3).

    >>> edges = vn.geometry.neighbors.edge_features(torch.randn(1, 5, 3, 2), torch.zeros(1, 5, 4, dtype=torch.long))
    >>> edges.shape
    torch.Size([1, 5, 4, 3, 4])
    """
    if neighbors.ndim == 2:
        other, own = (x.index_select(0, row) for row in neighbors)
    else:
        other = gather(x, neighbors)
        own = x.unsqueeze(2).expand_as(other)
    if not cross:
        return torch.cat([other - own, own], dim=-1)
    if x.shape[-2] != 3:
        raise ValueError(
            f"cross products exist in 3-D only, got vectors of dimension {x.shape[-2]} in {tuple(x.shape)}"
        )
    return torch.cat([other - own, own, torch.linalg.cross(other, own, dim=-2)], dim=-1)


__all__ = ["edge_features", "gather", "knn", "tie_tolerance"]
