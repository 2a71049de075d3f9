"""Clouds for a trained network from files, meshes, arrays and tensors, sampled as its training data was."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ..data.folder import up_axis
from ..data.rows import upright
from ..geometry.sampling import farthest_points
from ..mesh import Mesh, MeshError, check_mesh, io, read, sample
from ..tasks.meshing import NORMALIZATIONS, check_extent

Source = Any  # str | Path | Mesh | trimesh.Trimesh | trimesh.PointCloud | trimesh.Scene | np.ndarray | Tensor
SURFACE_POINTS = 10_000  # sampled from a mesh, and at most used of a cloud: ModelNet40's release has as many
SPARE = 2  # the farthest-point sample has so many times the points of a cloud, which is a random half of it
MIN_FRACTION = 0.5  # of the points that a network was trained on; a cloud with fewer than all repeats some


@dataclass(frozen=True)
class Sampled:
    """Clouds sampled from one mesh or cloud, as a network takes them, and how to map them back.

    Args:
        clouds: normalized.
        center: of the normalization, in the units of the source.
        size: of the normalization: `clouds * size + center` are in the units and pose of the source.
        mesh: the source; without faces if it was a cloud.

    Shape:
        - clouds: `(count, points, 3)`, float32
        - center: `(3,)`, float64
        - size: `()`, float64
    """

    clouds: Float[Tensor, "count points 3"]
    center: Float[Tensor, "3"]
    size: Float[Tensor, ""]
    mesh: Mesh


def read_cloud(
    source: Source, points: int, *, normalization: str = "unit_ball", seed: int = 0, drop_nan: bool = False
) -> Float[Tensor, "points 3"]:
    """Read a cloud of exactly `points` points from a file, a mesh, an array or a tensor, normalized, in float32.

    Args:
        source: path of a mesh or cloud, a `vn.mesh.Mesh`, a trimesh object, or an array or tensor of points `(N, 3)`.
        points: number of points; see `sample_clouds` for which.
        normalization: `"unit_ball"`, `"unit_cube"` or `"none"`, as in the metadata of a model.
        seed: of the sample.
        drop_nan: leave out points of a cloud that are NaN or infinite.

    Raises:
        MeshError: the source cannot be used; the message is one line, which names the file if there is one.

    >>> read_cloud(torch.rand(1000, 3), 128).shape
    torch.Size([128, 3])
    """
    name = f"{source}: " if isinstance(source, str | Path) else ""
    try:
        mesh = read_mesh(source, drop_nan=drop_nan)
        return sample_clouds(mesh, points, normalization=normalization, seed=seed).clouds[0]
    except ValueError as error:
        raise MeshError(str(error) if str(source) in str(error) else f"{name}{error}") from error


def read_mesh(source: Source, *, drop_nan: bool = False) -> Mesh:
    """Read a mesh or a cloud from anything that holds one, in float64 and z up; .glb files are y up by definition.

    Arguments and errors as for `read_cloud`.

    >>> read_mesh(np.eye(3)).is_cloud
    True
    """
    if isinstance(source, str | Path):
        mesh = read(source, drop_nan=drop_nan)
        return replace(mesh, vertices=upright(mesh.vertices, up_axis(Path(source), None)))
    if isinstance(source, Mesh):
        mesh = source
    elif type(source).__module__.partition(".")[0] == "trimesh":
        mesh = io.from_trimesh(source)
    else:
        mesh = Mesh(_points(source), torch.empty(0, 3, dtype=torch.int64))
    if drop_nan and mesh.is_cloud:
        mesh = replace(mesh, vertices=mesh.vertices[mesh.vertices.isfinite().all(-1)], normals=None)
    check_mesh(mesh)
    return mesh


def sample_clouds(
    mesh: Mesh, points: int, *, normalization: str = "unit_ball", count: int = 1, seed: int = 0
) -> Sampled:
    """Sample clouds of `points` points from a mesh or a cloud, each time the same ones and in every pose.

    As in ModelNet40's release: 10,000 points of the surface by area, or of a cloud at random, thinned to twice `points`
    by farthest-point sampling and normalized; a cloud of the result is a random half of these, and the next one is the
    other half. A cloud that has fewer points, but at least half of `points`, repeats some.

    Args:
        mesh: the mesh or cloud.
        points: number of points.
        normalization: as in the metadata of a model.
        count: number of clouds.
        seed: of the samples.
    """
    if normalization not in (*NORMALIZATIONS, "none"):
        raise ValueError(f"the normalization {normalization!r} is unknown: choose {', '.join(NORMALIZATIONS)} or none")
    generator = torch.Generator().manual_seed(seed)
    if mesh.is_cloud:
        chosen = torch.randperm(len(mesh.vertices), generator=generator)[:SURFACE_POINTS]
        surface = mesh.vertices[chosen].double()
        if len(surface) < MIN_FRACTION * points:
            raise MeshError(
                f"a cloud of {len(surface):,} points is too small: the network was trained on {points:,}, "
                f"and needs {int(MIN_FRACTION * points):,} or more"
            )
    else:
        surface, _ = sample(mesh, max(SURFACE_POINTS, SPARE * points), generator=generator)
    check_extent(surface)
    kept = _thinned(surface, SPARE * points)
    center, size = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    if normalization != "none":
        center, size = NORMALIZATIONS[normalization](surface[kept])
    normalized = ((surface[kept] - center) / size).float()
    # Orders are those of the surface points, which no rounding in the farthest-point sampling can change.
    rounds = [torch.randperm(len(kept), generator=generator) for _ in range(count * points // len(kept) + 1)]
    orders = torch.cat(rounds)[: count * points].view(count, points)
    return Sampled(normalized[orders], center[0], size[0, 0], mesh)


def _thinned(surface: Float[Tensor, "points 3"], number: int) -> Tensor:
    """Indices of a farthest-point sample, in ascending order; all if there are not more."""
    if len(surface) <= number:
        return torch.arange(len(surface))
    center, size = NORMALIZATIONS["unit_ball"](surface)
    # In float32, whose tolerance of ties is above the rounding of files in float32.
    return farthest_points(((surface - center) / size).float().unsqueeze(0), number)[0].sort().values


def _points(source: Tensor | NDArray[Any]) -> Float[Tensor, "points 3"]:
    try:
        points = (source.detach().cpu() if isinstance(source, Tensor) else torch.from_numpy(np.asarray(source))).double()
    except (TypeError, ValueError) as error:
        raise MeshError(
            f"cannot read a {type(source).__name__}: give a path, a mesh, or an array or tensor of points"
        ) from error
    if points.ndim != 2 or points.shape[1] != 3:
        raise MeshError(f"a cloud is an array of points (N, 3), got {tuple(points.shape)}")
    return points
