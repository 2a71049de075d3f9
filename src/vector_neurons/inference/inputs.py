"""Clouds for a trained network from files, meshes, arrays and tensors, in the same way in every pose."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
from ..mesh import Mesh, MeshError, check_mesh, io, read, sample
from ..models import Metadata
from ..tasks.meshing import NORMALIZATIONS, check_extent

Source = Any  # str | Path | Mesh | trimesh.Trimesh | trimesh.PointCloud | trimesh.Scene | np.ndarray | Tensor
DEFAULT_POINTS = 1024  # of a model whose metadata does not say
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
        - clouds: `(count, points, 3)`
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
    with name_source(source):
        mesh = read_mesh(source, drop_nan=drop_nan)
        return sample_clouds(mesh, points, normalization=normalization, seed=seed).clouds[0]


@contextmanager
def name_source(source: Source, name: str = "") -> Iterator[None]:
    """Turn errors of what a source holds into one line that names its file, if it is one, or has this name."""
    try:
        yield
    except ValueError as error:
        file = str(source) if isinstance(source, str | Path) else name
        raise MeshError(str(error) if file in str(error) else f"{file}: {error}") from error


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


def sample_for(mesh: Mesh, known: Metadata, **options: Any) -> Sampled:
    """Sample clouds as a model takes them: with as many points as in its training, and normalized alike."""
    points, normalization = known.points or DEFAULT_POINTS, known.normalization
    return sample_clouds(mesh, points, fewest=known.fewest_points, normalization=normalization, **options)


def sample_clouds(
    mesh: Mesh,
    points: int,
    *,
    fewest: int | None = None,
    normalization: str = "unit_ball",
    count: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Sampled:
    """Sample clouds of `points` points from a mesh or a cloud, each time the same ones and in every pose.

    Points are drawn uniformly by area from a mesh, and at random from a cloud; all are normalized together. A cloud
    that has fewer points, but at least half of `points`, repeats some; or is taken as it is, if the network was trained
    on clouds of `fewest` points, too. There is no farthest-point sampling: rounding of
    a rotated file can change its choices, and with them the answer.

    Args:
        mesh: the mesh or cloud.
        points: number of points.
        fewest: the smallest cloud that is taken as it is; by default none is.
        normalization: as in the metadata of a model.
        count: number of clouds, which share points only if the source has too few.
        seed: of the samples.
        dtype: of the clouds.
    """
    if normalization not in (*NORMALIZATIONS, "none"):
        raise ValueError(f"the normalization {normalization!r} is unknown: choose {', '.join(NORMALIZATIONS)} or none")
    generator = torch.Generator().manual_seed(seed)
    if mesh.is_cloud:
        have, trained = len(mesh.vertices), f"{points:,}"
        if fewest is None:
            fewest = math.ceil(MIN_FRACTION * points)
        else:
            trained, points = f"{fewest:,} to {trained}", min(points, have)
        if have < fewest:
            raise MeshError(
                f"a cloud of {have:,} points is too small: the network was trained on {trained}, "
                f"and needs {fewest:,} or more"
            )
        order = torch.randperm(have, generator=generator)
        sampled = mesh.vertices[order[torch.arange(count * points) % have]].double()
    else:
        sampled = sample(mesh, count * points, generator=generator)[0].double()
    check_extent(sampled)
    center, size = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    if normalization != "none":
        center, size = NORMALIZATIONS[normalization](sampled)
    clouds = ((sampled - center) / size).to(dtype).view(count, points, 3)
    return Sampled(clouds, center[0], size[0, 0], mesh)


def _points(source: Tensor | NDArray[Any]) -> Float[Tensor, "points 3"]:
    try:
        points = (
            source.detach().cpu() if isinstance(source, Tensor) else torch.from_numpy(np.asarray(source))
        ).double()
    except (TypeError, ValueError) as error:
        raise MeshError(
            f"cannot read a {type(source).__name__}: give a path, a mesh, or an array or tensor of points"
        ) from error
    if points.ndim != 2 or points.shape[1] != 3:
        raise MeshError(f"a cloud is an array of points (N, 3), got {tuple(points.shape)}")
    return points
