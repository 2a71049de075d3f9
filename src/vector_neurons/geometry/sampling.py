"""Put clouds where networks expect them: centred, of unit size, with or without noise."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..typing import Points
from .scale import power_of_two


def center(points: Points) -> Points:
    """Subtract each cloud's own mean: what follows is invariant to translation, so SO(3) becomes SE(3).

    The mean is taken over the points of one cloud, never over the batch.

    >>> center(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]]
    """
    return points - points.mean(dim=-2, keepdim=True)


def ball(points: Points) -> tuple[Float[Tensor, "*batch 1 dim"], Float[Tensor, "*batch 1 1"]]:
    """The mean of a cloud, and the distance of the farthest point from it, or 1 where there is a single place."""
    # In units in which squares are in range.
    scale = power_of_two(points, (-2, -1))
    scaled = points * scale
    centre = scaled.mean(dim=-2, keepdim=True)
    finer = power_of_two(scaled - centre, (-2, -1))
    squared = ((scaled - centre) * finer).square().sum(-1).amax(-1)[..., None, None]
    radius = squared.where(squared > 0, 1).sqrt() / finer / scale
    return centre / scale, radius.where(squared > 0, 1)


def unit_ball(points: Points) -> Points:
    """Centre on the mean and scale so that the farthest point lies at distance 1; a single place stays at 0.

    The result turns with the cloud: normalising and rotating commute.
    """
    centre, radius = ball(points)
    return (points - centre) / radius


def box(points: Points) -> tuple[Float[Tensor, "*batch 1 dim"], Float[Tensor, "*batch 1 1"]]:
    """The centre of a cloud's bounding box, and its longest side, or 1 where there is a single place."""
    low, high = points.amin(-2, keepdim=True), points.amax(-2, keepdim=True)
    side = (high - low).amax(-1, keepdim=True)
    return (low + high) / 2, side.where(side > 0, 1)


def unit_cube(points: Points) -> Points:
    """Centre the bounding box and scale its longest side to 1.

    Bounding boxes belong to the axes: unlike `unit_ball`, this does not commute with rotations.
    """
    centre, side = box(points)
    return (points - centre) / side


def noise(
    points: Points, sigma: float, *, clip: float | None = None, generator: torch.Generator | None = None
) -> Points:
    """Add independent Gaussian noise to every coordinate, cut off at ±`clip` if given."""
    if sigma < 0:
        raise ValueError(f"noise needs sigma >= 0, got {sigma}")
    device = generator.device if generator is not None else points.device
    shift = sigma * torch.randn(points.shape, generator=generator, dtype=points.dtype, device=device)
    if clip is not None:
        shift = shift.clamp(-clip, clip)
    return points + shift.to(points.device)
