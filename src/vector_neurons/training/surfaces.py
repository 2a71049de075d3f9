"""Meshes of a reconstruction beside the true surfaces of test shapes, in the `meshes.json` of its run."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import torch

from ..data import Cloud, Dataset, Occupancy, Shapes
from ..mesh import Comparison, Mesh, sample
from ..mesh.compare import compare_points
from ..models import OccupancyNetwork
from ..tasks import reconstruct
from ..typing import Rotations
from . import checkpoint, sets
from .results import Results, add, read
from .run import TrainingError, read_settings
from .settings import Clouds, Settings

MESHES = "meshes.json"
DENSE = 20_000  # points of a surface where as many as one likes can be had
THRESHOLD = 0.05  # of the F-score, for shapes of radius 1; points of a pack are some 0.02 apart


def record(folder: Path, kinds: Sequence[Rotations], number: int, device: str = "cpu") -> Results:
    """Make meshes of some test shapes, compare them with the truth, and write the means to the run's folder.

    A true surface is known by its points: distances to it are no smaller than the gaps between them. Shapes that the
    network sees no inside in are counted, score 0, and have no distance; -1 says that none has.
    """
    settings = read_settings(folder)
    if settings.task != "reconstruction":
        raise TrainingError(f"{folder} is a {settings.task}: only a reconstruction has meshes")
    model = checkpoint.load(folder / "best").to(device)
    assert isinstance(model, OccupancyNetwork)
    data = open_surfaces(settings.clouds)
    some = spread(data, number)
    read(folder, MESHES)  # a file that cannot be added to is said before all the work
    results: Results = {}
    for kind in kinds:
        pairs = (scan(data, index, settings, kind) for index in some)
        found = [against(mesh_of(model, few), whole) for few, whole in pairs]
        made = [x for x in found if x is not None]
        results[kind] = [
            {
                "shapes": float(len(some)),
                "chamfer_l1": mean([x.chamfer_l1 for x in made] or [-1.0]),
                "normal_consistency": 100 * sum(x.normal_consistency for x in made) / len(found),
                "f_score": 100 * sum(x.f_score for x in made) / len(found),
                "empty": float(len(found) - len(made)),
            }
        ]
    add(folder, results, MESHES)
    return read(folder, MESHES)


def open_surfaces(clouds: Clouds) -> Dataset:
    """The test set of a reconstruction, with as many points as it has, and their normals."""
    if clouds.data == "shapes":
        return Shapes("test", size=sets.shapes_size(clouds, "test"), points=DENSE)
    return Occupancy("test", clouds.data_root, points=None, queries=None, normals=True)


def spread(data: Dataset, number: int) -> list[int]:
    """Up to so many indices at equal distances: classes may come one after the other."""
    number = min(number, len(data))
    return [i * len(data) // number for i in range(number)]


def scan(data: Dataset, index: int, settings: Settings, kind: Rotations, trial: int = 0) -> tuple[Cloud, Cloud]:
    """A test shape as its few noisy points, and whole, both in the pose of this `trial`."""
    seed, whole = settings.machine.seed, data[index]
    R = sets.pose(kind, index, seed, trial)
    return sets.few_points(whole, index, settings.clouds, seed).rotate(R), whole.rotate(R)


def mesh_of(model: OccupancyNetwork, cloud: Cloud) -> Mesh:
    """The mesh, which may be empty."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the mesh is empty")  # which is counted
        return reconstruct(model, cloud.points)


def against(mesh: Mesh, truth: Cloud) -> Comparison | None:
    """How close a mesh is to a surface; None if there is no mesh."""
    if mesh.is_cloud:
        return None
    assert truth.normals is not None  # sets with occupancy know their normals
    points, normals = sample(mesh, DENSE, generator=torch.Generator().manual_seed(0))
    return compare_points(points, normals, truth.points.double(), truth.normals.double(), threshold=THRESHOLD)
