"""Graphs on points: nearest neighbours that do not change when the cloud turns, and what is read along their edges.

Rotating a cloud changes its coordinates by rounding. Where two candidates are equally far (grids, duplicated points)
that rounding would decide which one is a neighbour, and a network on the graph would lose its symmetry by an error
no precision cures. Distances here are therefore accurate (from differences, or summed in float64) and compared with a
tolerance above that rounding. Ties go to the point nearer the origin, which depends neither on the pose nor on the
order of the points; only among points equally near does the lower index win.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import kernels
from ..typing import Mask, Neighbours
from .scale import power_of_two

# Distances closer than this many units of rounding, relative to the size of the numbers they come from, are equal.
TIE_ULPS = 32
# Elements of one block of the distance matrix: 64 MiB in float64, whatever the number of points.
BLOCK_ELEMENTS = 2**23
# From so many points on, in so few dimensions, a k-d tree is faster than comparing all.
TREE_POINTS, TREE_DIMENSION = 2048, 3
# Candidates kept beyond k, so that most ties at the k-th place are settled without looking at the whole row again.
SPARE = 8


def knn(
    x: Float[Tensor, "batch points *feature"], k: int, *, include_self: bool = True, mask: Mask | None = None
) -> Neighbours:
    """Indices `(B, N, k)` of the `k` nearest points of every point, nearest first.

    `x` is a cloud `(B, N, 3)` or any feature: trailing axes are taken as one Euclidean space, so vector features
    `(B, N, 3, C)` give a graph that is invariant to rotations. A point's own index comes first, as in the paper's code;
    `include_self=False` leaves it out. Points where `mask` is False are nobody's neighbours. Memory does not
    grow with N².

    >>> knn(torch.tensor([[[0.0], [1.0], [3.0]]]), k=2).tolist()
    [[[0, 1], [1, 0], [2, 1]]]
    """
    if x.ndim < 3:
        raise ValueError(f"knn needs (batch, points, ...), got {tuple(x.shape)}: add a batch axis with x[None]")
    indices: Tensor = torch.ops.vector_neurons.knn(_coordinates(x).flatten(2), k, include_self, mask)
    return indices


def _knn(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    batch, points, _ = x.shape
    fewest = points if mask is None or batch == 0 else int(mask.sum(1).min())
    available = fewest if include_self else fewest - 1
    if not 1 <= k <= available:
        others = "" if include_self else " other"
        raise ValueError(
            f"k={k} neighbours asked of a cloud with {available}{others} points: need 1 <= k <= {available}"
        )
    present = x if mask is None else x.where(mask.unsqueeze(-1), 0)
    x = x * power_of_two(present, (1, 2))  # the same neighbours, and squares in range
    order = _canonical_order(x, mask)
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
        distances = _distances(queries, x)
        if mask is not None:
            distances.masked_fill_(~mask.unsqueeze(1), torch.inf)
        diagonal = torch.arange(queries.shape[1], device=x.device)
        distances[:, diagonal, start + diagonal] = own
        blocks.append(_select(distances, k, _length(queries), tie_tolerance(x.dtype)))
    return torch.cat(blocks, dim=1)


def _shape_of_knn(x: Tensor, k: int, include_self: bool, mask: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], k), dtype=torch.int64)


def _knn_vmap(
    info: Any, dims: tuple[int | None, ...], x: Tensor, k: int, include_self: bool, mask: Tensor | None
) -> tuple[Tensor, int]:
    def flat(y: Tensor, dim: int | None) -> Tensor:
        y = y.expand(info.batch_size, *y.shape) if dim is None else y.movedim(dim, 0)
        return y.flatten(0, 1)

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
    wanted = min(k + SPARE, len(x))
    distances, index = cKDTree(coordinates).query(coordinates, wanted, workers=torch.get_num_threads())
    d, i = torch.from_numpy(distances), torch.from_numpy(index)
    mine = i == torch.arange(len(x)).unsqueeze(-1)
    d = d.masked_fill(mine, -1.0 if include_self else torch.inf)
    d, order = d.sort(-1)
    chosen, crowded = _choose(d, i.gather(-1, order), k, _length(x), tie_tolerance(x.dtype), len(x))
    # Among many duplicated points, the tree may not have found the point itself.
    unsettled = (crowded | ~mine.any(-1)).nonzero().flatten()
    for row in torch.split(unsettled, max(1, BLOCK_ELEMENTS // len(x))):
        distance = _distances(x[row].unsqueeze(0), x.unsqueeze(0))
        distance[0, torch.arange(len(row)), row] = -1.0 if include_self else torch.inf
        chosen[row] = _select(distance, k, _length(x[row]).unsqueeze(0), tie_tolerance(x.dtype))[0]
    return chosen


def _coordinates(x: Tensor) -> Tensor:
    # An index has no gradient, and half precision cannot tell neighbours apart.
    x = x.detach()
    return x if x.dtype == torch.float64 else x.float()


def _length(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True).sqrt()


def tie_tolerance(dtype: torch.dtype) -> float:
    """Relative difference up to which two numbers of this precision are a tie."""
    return TIE_ULPS * torch.finfo(dtype).eps


def _runs(ascending: Tensor, tolerance: Tensor) -> Tensor:
    """Number the runs of equal values, 0, 1, 2, …, in rows sorted in ascending order."""
    jump = ascending.diff(dim=-1) > tolerance
    return torch.nn.functional.pad(jump.long().cumsum(-1), (1, 0))


def _canonical_order(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Order the points by distance from the origin, those equally far by index, those that are only padding last."""
    length = _length(x).squeeze(-1)
    if mask is not None:
        length = length.masked_fill(~mask, torch.finfo(length.dtype).max)  # finite: inf - inf is not a number
    length, order = length.sort(dim=-1)
    return _by_index(_runs(length, tie_tolerance(x.dtype) * length[..., 1:]), order, x.shape[1])


def _by_index(run: Tensor, index: Tensor, points: int) -> Tensor:
    """Sort the indices (below `points`) inside each run of equals."""
    return (run * points + index).sort(-1).values % points


def _distances(queries: Tensor, x: Tensor) -> Tensor:
    # Differences are exact but slow in wide spaces; there, a float32 feature's distances come from float64 products,
    # whose error stays far below the feature's own. float64 itself has nothing wider, and some devices lack it.
    if x.shape[-1] <= 8 or x.dtype == torch.float64 or x.device.type == "mps":
        return torch.cdist(queries, x, compute_mode="donot_use_mm_for_euclid_dist")
    queries, x = queries.double(), x.double()
    norms = x.square().sum(-1)
    squared = torch.baddbmm(norms.unsqueeze(-2), queries, x.mT, alpha=-2)
    return squared.add_(queries.square().sum(-1, keepdim=True)).clamp_(min=0).sqrt_()


def _select(distances: Tensor, k: int, size: Tensor, ulps: float) -> Tensor:
    """Pick the `k` smallest of every row; distances within the tolerance are equal, and among them lower indices win.

    `size` is the length of the query: rounding of a distance is relative to the numbers it is the difference of.
    """
    points = distances.shape[-1]
    nearest, index = distances.topk(min(k + SPARE, points), largest=False)
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
    place = key.topk(k, largest=False).indices
    d, order = d.gather(-1, place).sort(-1)
    # Nearest first, and by index inside each run of equal distances.
    return _by_index(_runs(d, tolerance), i.gather(-1, place).gather(-1, order), points), crowded


def gather(
    x: Float[Tensor, "batch points *feature"], neighbours: Int[Tensor, "batch n k"]
) -> Float[Tensor, "batch n k *feature"]:
    """Read the features of every point's neighbours: `(B, N, ...)`, `(B, M, K)` → `(B, M, K, ...)`."""
    batch, points = x.shape[:2]
    offset = points * torch.arange(batch, device=x.device).view(-1, 1, 1)
    rows = x.flatten(0, 1).index_select(0, (neighbours + offset).flatten())
    return rows.view(*neighbours.shape, *x.shape[2:])


def edge_features(
    x: Float[Tensor, "batch points *dim channels"], neighbours: Neighbours, *, cross: bool = False
) -> Float[Tensor, "batch points neighbours *dim edge_channels"]:
    """Channels `[x_m - x_n, x_n]` of every edge from n to its neighbour m, and `x_m × x_n` with `cross` (3-D only).

    `x` holds vectors `(B, N, 3, C)` or, without `cross`, scalars `(B, N, C)`. The cross product keeps its sign under a
    reflection where vectors change theirs: with it a network is equivariant to SO(3) but no longer to O(3).
    """
    other = gather(x, neighbours)
    own = x.unsqueeze(2).expand_as(other)
    if not cross:
        return torch.cat([other - own, own], dim=-1)
    if x.shape[-2] != 3:
        raise ValueError(
            f"cross products exist in 3-D only, got vectors of dimension {x.shape[-2]} in {tuple(x.shape)}"
        )
    return torch.cat([other - own, own, torch.linalg.cross(other, own, dim=-2)], dim=-1)


def farthest_points(x: Float[Tensor, "batch points dim"], n: int) -> Int[Tensor, "batch n"]:
    """Indices `(B, n)` of a farthest-point sample: each next point is the one farthest from all chosen before.

    It starts at the point farthest from the mean and settles ties as `knn` does, so the choice turns with the cloud.

    >>> farthest_points(torch.tensor([[[0.0], [1.0], [2.0], [9.0]]]), 2).tolist()
    [[3, 0]]
    """
    if x.ndim != 3:
        raise ValueError(f"farthest_points needs (batch, points, dim), got {tuple(x.shape)}")
    if not 1 <= n <= x.shape[1]:
        raise ValueError(f"n={n} points asked of a cloud with {x.shape[1]}: need 1 <= n <= {x.shape[1]}")
    x = _coordinates(x)
    x = x * power_of_two(x, (1, 2))
    order = _canonical_order(x)
    x = x.gather(1, order.unsqueeze(-1).expand_as(x))
    tolerance = tie_tolerance(x.dtype) * _length(x).amax(1)
    distance = _length(x - x.mean(1, keepdim=True)).squeeze(-1)
    nearest = torch.full_like(distance, torch.inf)
    every = torch.arange(x.shape[0], device=x.device)
    chosen = []
    for _ in range(n):
        far = distance >= distance.amax(-1, keepdim=True) - tolerance
        pick = far.to(torch.uint8).argmax(-1)  # the first of the farthest
        chosen.append(pick)
        nearest = nearest.minimum(_length(x - x[every, pick].unsqueeze(1)).squeeze(-1))
        nearest[every, pick] = -torch.inf  # a chosen point is never chosen again, not even among duplicates
        distance = nearest
    return order.gather(1, torch.stack(chosen, dim=-1))
