"""Augmentations of clouds. Each maps a cloud, or a batch of them, and a generator to a new cloud.

Clouds of a batch are augmented independently. Tensors stay on the device of the cloud; random numbers are drawn on the
device of the generator, so that a seed gives the same result on every device. None of them rotates: see `Cloud.rotate`.

>>> augment = Chain(Scale(), Shift(), Jitter())
>>> augment(Cloud(torch.rand(8, 100, 3)), torch.Generator().manual_seed(0)).points.shape
torch.Size([8, 100, 3])
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.sampling import ball, noise
from ..typing import Points
from .cloud import Cloud

Generator = torch.Generator | None
Augmentation = Callable[[Cloud, Generator], Cloud]


class Chain:
    """Apply augmentations one after the other, with one generator.

    Args:
        steps: augmentations, or other functions of a cloud and a generator.
    """

    def __init__(self, *steps: Augmentation) -> None:
        self.steps = steps

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Apply every step."""
        for step in self.steps:
            cloud = step(cloud, generator)
        return cloud


@dataclass(frozen=True)
class Scale:
    """Scale points and queries along every axis by its own random factor: an anisotropic scale.

    Normals stay perpendicular to the surface.

    Args:
        low: smallest factor.
        high: largest factor.

    >>> Scale(2.0, 2.0)(Cloud(torch.ones(1, 3))).points.tolist()
    [[2.0, 2.0, 2.0]]
    """

    low: float = 2 / 3
    high: float = 3 / 2

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"Scale needs 0 < low <= high, got {self.low} and {self.high}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Scale points and queries."""
        factor = self.low + (self.high - self.low) * _uniform(cloud.points, (1, cloud.points.shape[-1]), generator)
        normals = None if cloud.normals is None else torch.nn.functional.normalize(cloud.normals / factor, dim=-1)
        queries = None if cloud.queries is None else cloud.queries * factor
        return replace(cloud, points=cloud.points * factor, normals=normals, queries=queries)


@dataclass(frozen=True)
class Shift:
    """Translate a cloud and its queries by a random offset along every axis.

    Args:
        max_offset: the offset is uniform between -`max_offset` and `max_offset`.
    """

    max_offset: float = 0.2

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Translate points and queries."""
        offset = self.max_offset * (2 * _uniform(cloud.points, (1, cloud.points.shape[-1]), generator) - 1)
        queries = None if cloud.queries is None else cloud.queries + offset
        return replace(cloud, points=cloud.points + offset, queries=queries)


@dataclass(frozen=True)
class Jitter:
    """Add Gaussian noise to every point; queries, which refer to the true shape, stay.

    Args:
        sigma: standard deviation of the noise.
        clip: largest absolute value of the noise; None does not clip.
    """

    sigma: float = 0.01
    clip: float | None = 0.05

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Add noise to the points."""
        return replace(cloud, points=noise(cloud.points, self.sigma, clip=self.clip, generator=generator))


@dataclass(frozen=True)
class UnitBall:
    """Center a cloud on its mean and scale its farthest point to distance 1, together with its queries.

    It depends on the points alone, so it applies to scans without any annotation too.

    >>> UnitBall()(Cloud(torch.tensor([[1.0, 0.0, 0.0], [5.0, 0.0, 0.0]]))).points.tolist()
    [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Normalize points and queries."""
        center, radius = ball(cloud.points)
        queries = None if cloud.queries is None else (cloud.queries - center) / radius
        return replace(cloud, points=(cloud.points - center) / radius, queries=queries)


@dataclass(frozen=True)
class Subset:
    """Keep a random subset of the points and of the queries of every cloud, without repetition.

    Args:
        points: number of points to keep, with their normals and parts; None keeps all.
        queries: number of queries to keep, with their occupancy; None keeps all.

    >>> Subset(10)(Cloud(torch.rand(4, 100, 3))).points.shape
    torch.Size([4, 10, 3])
    """

    points: int | None = None
    queries: int | None = None

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Choose points with their normals and parts, and queries with their occupancy."""
        if self.points is not None:
            cloud = _select(cloud, _choose(cloud.points, self.points, generator))
        if self.queries is not None and cloud.queries is not None:
            index = _choose(cloud.queries, self.queries, generator)
            occupied = None if cloud.occupied is None else cloud.occupied.gather(-1, index)
            cloud = replace(cloud, queries=_gather(cloud.queries, index), occupied=occupied)
        return cloud


@dataclass(frozen=True)
class Outliers:
    """Replace a fraction of the points by outliers, uniform in the bounding ball of the cloud, with random normals.

    An outlier keeps the part of the point that it replaces.

    Args:
        fraction: of the points, between 0 and 1.
    """

    fraction: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"Outliers needs a fraction between 0 and 1, got {self.fraction}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Replace some of the points."""
        points = cloud.points
        n, dim = points.shape[-2:]
        index = _choose(points, round(self.fraction * n), generator)
        if index.shape[-1] == 0:
            return cloud
        center = points.mean(-2, keepdim=True)
        radius = (points - center).norm(dim=-1).amax(-1)[..., None, None]
        # Uniform in a ball: a random direction, and a distance whose dim-th power is uniform.
        direction = _direction(points, (index.shape[-1], dim), generator)
        distance = _uniform(points, (index.shape[-1], 1), generator) ** (1 / dim)
        replaced = _scatter(points, index, center + radius * distance * direction)
        normals = cloud.normals
        if normals is not None:
            normals = _scatter(normals, index, _direction(normals, (index.shape[-1], dim), generator))
        return replace(cloud, points=replaced, normals=normals)


@dataclass(frozen=True)
class Occlude:
    """Keep the points that a camera in a random direction sees: a partial scan, with visible points repeated.

    Hidden points are removed as in Katz et al., *Direct visibility of point sets* (2007): every point is reflected in a
    sphere around the camera, and those on the convex hull of the result are visible.

    Args:
        distance: of the camera, in radii of the cloud.
        sphere: radius of the sphere, in distances of the farthest point: a larger one keeps more of slanted surfaces
            and lets the camera look through sparser ones.
        points: number of points of the result; by default as many as before. Fewer are repeated less.

    >>> Occlude(points=50)(Cloud(torch.rand(100, 3))).points.shape
    torch.Size([50, 3])
    """

    distance: float = 3.0
    sphere: float = 30.0
    points: int | None = None

    def __post_init__(self) -> None:
        if self.distance <= 1 or self.sphere < 1:
            raise ValueError(f"Occlude needs distance > 1 and sphere >= 1, got {self.distance} and {self.sphere}")

    def __call__(self, cloud: Cloud, generator: Generator = None) -> Cloud:
        """Keep the visible points."""
        points = cloud.points
        n, dim = points.shape[-2:]
        center = points.mean(-2, keepdim=True)
        radius = (points - center).norm(dim=-1).amax(-1)[..., None, None]
        camera = center + self.distance * radius * _direction(points, (1, dim), generator)
        is_visible = visible(points, camera, self.sphere)
        # Visible points in random order come first, and are repeated in this order to fill the cloud.
        order = (_uniform(points, (n,), generator) + ~is_visible).argsort(dim=-1)
        count = is_visible.sum(-1, keepdim=True)
        wanted = torch.arange(n if self.points is None else self.points, device=points.device)
        return _select(cloud, order.gather(-1, wanted % count))


def visible(
    points: Points, camera: Float[Tensor, "*batch 1 dim"], sphere: float = 30.0
) -> Bool[Tensor, "*batch points"]:
    """Mark the points that a camera sees, by hidden-point removal: see `Occlude`.

    Args:
        points: the clouds.
        camera: position of the camera of each.
        sphere: radius of the sphere, in distances of the farthest point.

    Shape:
        - points: `(..., N, 3)`
        - camera: `(..., 1, 3)`
        - out: `(..., N)`

    >>> wall = torch.cartesian_prod(torch.linspace(-1, 1, 20), torch.linspace(-1, 1, 20), torch.zeros(1))
    >>> behind = torch.tensor([[0.0, 0.0, -1.0]])
    >>> seen = visible(torch.cat([wall, behind]), torch.tensor([[0.0, 0.0, 3.0]]))
    >>> seen[:-1].all().item(), seen[-1].item()
    (True, False)
    """
    ray = (points - camera).double()
    distance = ray.norm(dim=-1, keepdim=True)
    direction = ray / distance.where(distance > 0, 1)
    reach = 2 * sphere * distance.amax(-2, keepdim=True)
    reflected = (1 - distance / reach.where(reach > 0, 1)) * direction  # in units of the sphere, so at most 1
    seen = [_on_hull(cloud) for cloud in reflected.reshape(-1, *points.shape[-2:]).numpy(force=True)]
    return torch.from_numpy(np.array(seen, bool).reshape(points.shape[:-1])).to(points.device)


def _on_hull(points: Float[np.ndarray, "points dim"]) -> Bool[np.ndarray, " points"]:
    """Mark the points on the convex hull of them and the origin, copies of one included."""
    from scipy.spatial import ConvexHull, QhullError  # type: ignore[import-untyped]

    with_camera = np.vstack([points, np.zeros((1, points.shape[1]))])
    try:
        hull = ConvexHull(with_camera, qhull_options="Qc")
    except QhullError:  # all lie in a plane with the camera, which hides none of them
        return np.ones(len(points), bool)
    found = np.zeros(len(with_camera), bool)
    found[hull.vertices] = True
    found[hull.coplanar[:, 0]] = True
    return found[:-1]


def _random_device(like: Tensor, generator: Generator) -> torch.device:
    return generator.device if generator is not None else like.device


def _uniform(like: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw uniform numbers of this shape for every cloud of the batch."""
    shape = (*like.shape[:-2], *shape)
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=_random_device(like, generator)).to(
        like.device
    )


def _direction(like: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    shape = (*like.shape[:-2], *shape)
    gaussian = torch.randn(shape, generator=generator, dtype=like.dtype, device=_random_device(like, generator))
    return torch.nn.functional.normalize(gaussian, dim=-1).to(like.device)


def _choose(x: Tensor, n: int, generator: Generator) -> Tensor:
    """Return the indices `(..., n)` of a random subset of every cloud."""
    if not 0 <= n <= x.shape[-2]:
        raise ValueError(f"cannot choose a subset of {n} out of {x.shape[-2]} points")
    return _uniform(x, (x.shape[-2],), generator).topk(n, dim=-1).indices


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(-2, index.unsqueeze(-1).expand(*index.shape, x.shape[-1]))


def _scatter(x: Tensor, index: Tensor, values: Tensor) -> Tensor:
    return x.scatter(-2, index.unsqueeze(-1).expand_as(values), values)


def _select(cloud: Cloud, index: Tensor) -> Cloud:
    return replace(
        cloud,
        points=_gather(cloud.points, index),
        normals=None if cloud.normals is None else _gather(cloud.normals, index),
        parts=None if cloud.parts is None else cloud.parts.gather(-1, index),
    )
