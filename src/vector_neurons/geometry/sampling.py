"""Center, scale, add noise to and subsample point clouds."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import kernels
from ..typing import Mask, Points
from .neighbors import canonical_order, detached_float, flatten_vmapped, lengths, tie_tolerance
from .scale import power_of_two


def center(points: Points) -> Points:
    """Subtract each cloud's own mean: what follows is invariant to translation, so SO(3) becomes SE(3).

    The mean is taken over the points of one cloud, never over the batch.

    >>> vn.center(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]]
    """
    return points - points.mean(dim=-2, keepdim=True)


def ball(points: Points) -> tuple[Float[Tensor, "*batch 1 dim"], Float[Tensor, "*batch 1 1"]]:
    """The mean of a cloud, and the distance of the farthest point from it, or 1 if all points coincide.

    >>> mean, radius = vn.geometry.sampling.ball(torch.tensor([[1.0, 0.0, 0.0], [5.0, 0.0, 0.0]]))
    >>> mean.tolist(), radius.item()
    ([[3.0, 0.0, 0.0]], 2.0)
    """
    # In units in which squares are in range.
    scale = power_of_two(points, (-2, -1))
    scaled = points * scale
    center = scaled.mean(dim=-2, keepdim=True)
    finer = power_of_two(scaled - center, (-2, -1))
    squared = ((scaled - center) * finer).square().sum(-1).amax(-1)[..., None, None]
    radius = squared.where(squared > 0, 1).sqrt() / finer / scale
    return center / scale, radius.where(squared > 0, 1)


def unit_ball(points: Points) -> Points:
    """Center on the mean and scale so that the farthest point lies at distance 1; points that coincide stay at 0.

    Equivariant to O(D).

    >>> vn.geometry.sampling.unit_ball(torch.tensor([[1.0, 0.0, 0.0], [5.0, 0.0, 0.0]])).tolist()
    [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    center, radius = ball(points)
    return (points - center) / radius


def box(points: Points) -> tuple[Float[Tensor, "*batch 1 dim"], Float[Tensor, "*batch 1 1"]]:
    """The center of a cloud's bounding box, and its longest side, or 1 if all points coincide.

    >>> center, side = vn.geometry.sampling.box(torch.tensor([[0.0, 0.0], [4.0, 2.0]]))
    >>> center.tolist(), side.item()
    ([[2.0, 1.0]], 4.0)
    """
    low, high = points.amin(-2, keepdim=True), points.amax(-2, keepdim=True)
    side = (high - low).amax(-1, keepdim=True)
    return (low + high) / 2, side.where(side > 0, 1)


def unit_cube(points: Points) -> Points:
    """Center the bounding box and scale its longest side to 1.

    Bounding boxes depend on the axes: unlike `unit_ball`, this does not commute with rotations.

    >>> vn.geometry.sampling.unit_cube(torch.tensor([[0.0, 0.0], [4.0, 2.0]])).tolist()
    [[-0.5, -0.25], [0.5, 0.25]]
    """
    center, side = box(points)
    return (points - center) / side


def noise(
    points: Points, sigma: float, *, clip: float | None = None, generator: torch.Generator | None = None
) -> Points:
    """Add independent Gaussian noise of standard deviation `sigma` to every coordinate, clipped to ±`clip` if given.

    >>> vn.geometry.sampling.noise(torch.zeros(2, 10, 3), 0.1, clip=0.5).abs().max().item() <= 0.5
    True
    """
    if sigma < 0:
        raise ValueError(f"noise needs sigma >= 0, got {sigma}")
    device = generator.device if generator is not None else points.device
    shift = sigma * torch.randn(points.shape, generator=generator, dtype=points.dtype, device=device)
    if clip is not None:
        shift = shift.clamp(-clip, clip)
    return points + shift.to(points.device)


def farthest_points(
    x: Float[Tensor, "batch points dim"], n: int, *, mask: Mask | None = None
) -> Int[Tensor, "batch n"]:
    """Indices of a farthest-point sample: each next point is farthest from those before.

    It starts at the point farthest from the mean and breaks ties as `knn` does, so the choice does not depend on the
    pose. The first m indices are a farthest-point sample of m points.

    Args:
        x: clouds.
        n: number of points to choose.
        mask: True at points and False at padding, which is chosen after all points.

    Shape:
        - x: `(B, N, 3)`
        - mask: `(B, N)`
        - out: `(B, n)`

    >>> vn.geometry.sampling.farthest_points(torch.tensor([[[0.0], [1.0], [2.0], [9.0]]]), 2).tolist()
    [[3, 0]]
    """
    if x.ndim != 3:
        raise ValueError(f"farthest_points needs (batch, points, dim), got {tuple(x.shape)}")
    return torch.ops.vector_neurons.farthest_points(detached_float(x), n, mask)


def _farthest_points(x: Tensor, n: int, mask: Tensor | None) -> Tensor:
    if not 1 <= n <= x.shape[1]:  # here, since an exported graph could not prove it for all sizes
        raise ValueError(f"n={n} points of a cloud with {x.shape[1]}: need 1 <= n <= {x.shape[1]}")
    if not x.numel():
        return x.new_zeros(x.shape[0], n, dtype=torch.int64)
    x = x * power_of_two(x if mask is None else x.where(mask.unsqueeze(-1), 0), (1, 2))
    order = canonical_order(x, mask)
    x = x.gather(1, order.unsqueeze(-1).expand_as(x))
    if mask is not None:  # padding comes last in this order
        mask = mask.gather(1, order)
        x = x.where(mask.unsqueeze(-1), 0)
    tolerance = tie_tolerance(x.dtype) * lengths(x).amax(1)
    mean = x.mean(1, keepdim=True) if mask is None else x.sum(1, keepdim=True) / mask.sum(1).view(-1, 1, 1)
    distance = lengths(x - mean).squeeze(-1)
    nearest = torch.full_like(distance, torch.inf)
    if mask is not None:
        distance, nearest = (y.masked_fill(~mask, -torch.inf) for y in (distance, nearest))
    if x.device.type == "cpu" and kernels.applicable(x):
        tolerance, by_dimension = tolerance.squeeze(-1).contiguous(), x.mT.contiguous()
        return order.gather(1, torch.ops.vector_neurons.farthest_canonical(by_dimension, distance, tolerance, n))
    every = torch.arange(x.shape[0], device=x.device)
    chosen = []
    for _ in range(n):
        far = distance >= distance.amax(-1, keepdim=True) - tolerance
        pick = far.to(torch.uint8).argmax(-1)  # the first of the farthest
        chosen.append(pick)
        nearest = nearest.minimum(lengths(x - x[every, pick].unsqueeze(1)).squeeze(-1))
        nearest[every, pick] = -torch.inf  # a chosen point is never chosen again, not even among duplicates
        distance = nearest
    return order.gather(1, torch.stack(chosen, dim=-1))


def _shape_of_farthest_points(x: Tensor, n: int, mask: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], n), dtype=torch.int64)


def _farthest_points_vmap(
    info: Any, dims: tuple[int | None, ...], x: Tensor, n: int, mask: Tensor | None
) -> tuple[Tensor, int]:
    flat = partial(flatten_vmapped, info.batch_size)
    found = _farthest_points(flat(x, dims[0]), n, None if mask is None else flat(mask, dims[2]))
    return torch.unflatten(found, 0, (info.batch_size, found.shape[0] // info.batch_size)), 0


# An opaque operator, as in `neighbors`: its loop stays out of compiled and exported graphs.
if not hasattr(torch.ops.vector_neurons, "farthest_points"):
    torch.library.define("vector_neurons::farthest_points", "(Tensor x, SymInt n, Tensor? mask) -> Tensor")
    torch.library.impl("vector_neurons::farthest_points", "default", _farthest_points)
    torch.library.register_fake("vector_neurons::farthest_points", _shape_of_farthest_points)
    torch.library.register_vmap("vector_neurons::farthest_points", _farthest_points_vmap)


__all__ = ["ball", "box", "center", "farthest_points", "noise", "unit_ball", "unit_cube"]
