"""Augmentations: each takes a cloud, or a batch of them, and a generator, and gives another; clouds stay independent.

All of them work on whole tensors, on the device of the cloud; numbers come from the generator, on its own device, so
a seed means the same on every machine. None of them rotates: that is the protocol's business.

    chain = Chain(Scale(), Shift(), Jitter())
    cloud = chain(cloud, generator)
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.sampling import ball, noise
from ..typing import Points
from .cloud import Cloud

Generator = torch.Generator | None
BLOCK_ELEMENTS = 2**21  # of the matrix of all pairs at a time: what fits a processor's cache is ten times as fast
Augmentation = Callable[[Cloud, Generator], Cloud]


class Chain:
    """One augmentation after the other."""

    def __init__(self, *steps: Augmentation) -> None:
        self.steps = steps

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Apply every step."""
        for step in self.steps:
            cloud = step(cloud, generator)
        return cloud


@dataclass(frozen=True)
class Scale:
    """Stretch every axis by its own factor between `low` and `high`. Normals stay perpendicular to the surface."""

    low: float = 2 / 3
    high: float = 3 / 2

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"Scale needs 0 < low <= high, got {self.low} and {self.high}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Stretch points and queries."""
        factor = self.low + (self.high - self.low) * _uniform(cloud.points, (1, cloud.points.shape[-1]), generator)
        normals = None if cloud.normals is None else torch.nn.functional.normalize(cloud.normals / factor, dim=-1)
        queries = None if cloud.queries is None else cloud.queries * factor
        return replace(cloud, points=cloud.points * factor, normals=normals, queries=queries)


@dataclass(frozen=True)
class Shift:
    """Move a cloud by up to `most` along every axis, queries with it."""

    most: float = 0.2

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Move points and queries."""
        by = self.most * (2 * _uniform(cloud.points, (1, cloud.points.shape[-1]), generator) - 1)
        queries = None if cloud.queries is None else cloud.queries + by
        return replace(cloud, points=cloud.points + by, queries=queries)


@dataclass(frozen=True)
class Jitter:
    """Add Gaussian noise to every point, cut off at ±`clip`. Queries are asked of the true shape: they stay."""

    sigma: float = 0.01
    clip: float | None = 0.05

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Move every point a little."""
        return replace(cloud, points=noise(cloud.points, self.sigma, clip=self.clip, generator=generator))


@dataclass(frozen=True)
class UnitBall:
    """Centre a cloud on its mean and scale its farthest point to distance 1, queries with it.

    It needs no more than the points, so a scan that nothing else is known of gets into the same place.
    """

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Move and scale points and queries."""
        centre, radius = ball(cloud.points)
        queries = None if cloud.queries is None else (cloud.queries - centre) / radius
        return replace(cloud, points=(cloud.points - centre) / radius, queries=queries)


@dataclass(frozen=True)
class Subset:
    """Keep `points` points, and `queries` queries if given, chosen anew for every cloud and without repetition."""

    points: int | None = None
    queries: int | None = None

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Choose points with their normals and parts, and queries with their answers."""
        if self.points is not None:
            cloud = _take(cloud, _choose(cloud.points, self.points, generator))
        if self.queries is not None and cloud.queries is not None:
            index = _choose(cloud.queries, self.queries, generator)
            occupied = None if cloud.occupied is None else cloud.occupied.gather(-1, index)
            cloud = replace(cloud, queries=_rows(cloud.queries, index), occupied=occupied)
        return cloud


@dataclass(frozen=True)
class Outliers:
    """Throw a share of the points anywhere into the ball about the cloud, with a normal in any direction.

    An outlier keeps the part of the point that it was.
    """

    share: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"Outliers needs a share between 0 and 1, got {self.share}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Replace some of the points."""
        points = cloud.points
        n, dim = points.shape[-2:]
        index = _choose(points, round(self.share * n), generator)
        if index.shape[-1] == 0:
            return cloud
        centre = points.mean(-2, keepdim=True)
        radius = (points - centre).norm(dim=-1).amax(-1)[..., None, None]
        # Uniform in a ball: any direction, and a distance whose power dim is uniform.
        away = _direction(points, (index.shape[-1], dim), generator)
        distance = _uniform(points, (index.shape[-1], 1), generator) ** (1 / dim)
        thrown = _put(points, index, centre + radius * distance * away)
        normals = cloud.normals
        if normals is not None:
            normals = _put(normals, index, _direction(normals, (index.shape[-1], dim), generator))
        return replace(cloud, points=thrown, normals=normals)


@dataclass(frozen=True)
class Occlude:
    """Keep what a camera in a random direction sees: a partial scan with as many points, the visible ones repeated.

    Hidden points are removed as in Katz et al., *Direct visibility of point sets* (2007): every point is flipped about
    a sphere around the camera, and those on the hull of the result are visible. Whether a point is on the hull is asked
    of the direction it lies in and of a few `tilts` of that, in products of matrices for a whole batch; a point at a
    sharp angle may be missed, none is seen that is not on the hull.
    `distance` of the camera is in radii of the cloud; the `sphere` is in distances of the farthest point: a larger one
    keeps more of slanted surfaces and lets the camera look through sparser ones. `points` wants other than as many
    points as there were: fewer are repeated less, if at all.
    """

    distance: float = 3.0
    sphere: float = 30.0
    tilts: int = 3
    points: int | None = None

    def __post_init__(self) -> None:
        if self.distance <= 1 or self.sphere < 1:
            raise ValueError(f"Occlude needs distance > 1 and sphere >= 1, got {self.distance} and {self.sphere}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Look at the cloud and keep what is seen."""
        points = cloud.points
        n, dim = points.shape[-2:]
        centre = points.mean(-2, keepdim=True)
        radius = (points - centre).norm(dim=-1).amax(-1)[..., None, None]
        camera = centre + self.distance * radius * _direction(points, (1, dim), generator)
        seen = visible(points, camera, self.sphere, self.tilts)
        # Visible points in random order come first; what is behind them is filled up by going round them again.
        order = (_uniform(points, (n,), generator) + ~seen).argsort(dim=-1)
        number = seen.sum(-1, keepdim=True)
        wanted = torch.arange(n if self.points is None else self.points, device=points.device)
        return _take(cloud, order.gather(-1, wanted % number))


def visible(
    points: Points, camera: Float[Tensor, "*batch 1 dim"], sphere: float = 30.0, tilts: int = 3
) -> Bool[Tensor, "*batch points"]:
    """Which points `(..., N, 3)` a camera at `(..., 1, 3)` sees, by hidden-point removal: see `Occlude`."""
    ray = points - camera
    distance = ray.norm(dim=-1, keepdim=True)
    direction = ray / distance.where(distance > 0, 1)
    reach = 2 * sphere * distance.amax(-2, keepdim=True)
    flipped = (1 - distance / reach.where(reach > 0, 1)) * direction  # in units of the sphere, and so no farther than 1
    seen = torch.zeros_like(points[..., 0], dtype=torch.bool)
    for tilt in range(tilts + 1):
        farthest, rival = _farthest(flipped, direction)
        seen |= farthest <= (direction * flipped).sum(-1) + 4 * torch.finfo(points.dtype).eps
        if tilt < tilts:
            # Turn the direction away from whoever reaches farther, past the point where both are level.
            ahead = flipped - _rows(flipped, rival)
            behind = (direction * ahead).sum(-1, keepdim=True).clamp(max=0)
            size = ahead.square().sum(-1, keepdim=True)
            direction = direction - 1.5 * behind / size.where(size > 0, 1) * ahead
            direction = torch.nn.functional.normalize(direction, dim=-1)
    return seen


def _farthest(places: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """How far the places reach in each direction, and which one does."""
    block = max(1, BLOCK_ELEMENTS // max(1, places[..., 0].numel()))
    reached = [(places @ some.mT).max(-2) for some in torch.split(directions, block, dim=-2)]
    return torch.cat([r.values for r in reached], dim=-1), torch.cat([r.indices for r in reached], dim=-1)


def _source(like: Tensor, generator: Generator) -> torch.device:
    return generator.device if generator is not None else like.device


def _uniform(like: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Uniform numbers of this shape for every cloud of the batch."""
    shape = (*like.shape[:-2], *shape)
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=_source(like, generator)).to(like.device)


def _direction(like: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    shape = (*like.shape[:-2], *shape)
    gaussian = torch.randn(shape, generator=generator, dtype=like.dtype, device=_source(like, generator))
    return torch.nn.functional.normalize(gaussian, dim=-1).to(like.device)


def _choose(x: Tensor, n: int, generator: Generator) -> Tensor:
    """Indices `(..., n)` of a random subset for every cloud."""
    if not 0 <= n <= x.shape[-2]:
        raise ValueError(f"a subset of {n} asked of {x.shape[-2]} points")
    return _uniform(x, (x.shape[-2],), generator).topk(n, dim=-1).indices


def _rows(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


def _put(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return x.scatter(-2, index.unsqueeze(-1).expand_as(values), values)


def _take(cloud: Cloud, index: Tensor) -> Cloud:
    return replace(
        cloud,
        points=_rows(cloud.points, index),
        normals=None if cloud.normals is None else _rows(cloud.normals, index),
        parts=None if cloud.parts is None else cloud.parts.gather(-1, index),
    )
