"""Metrics of reconstructed meshes against the true surfaces of test shapes."""

import warnings
from collections.abc import Sequence, Sized
from pathlib import Path
from statistics import mean

import torch

from ..data import Cloud, Dataset, Occupancy, Shapes
from ..mesh import Comparison, Mesh, sample
from ..mesh.compare import compare_points
from ..models import OccupancyModel
from ..tasks import reconstruct
from ..typing import Rotations
from . import batches, checkpoint, factory
from .config import DataConfig, RunConfig
from .errors import TrainingError
from .results import Results
from .run import read_config

MESHES = "meshes.json"  # in the folder of a run
SURFACE_POINTS = 20_000  # sampled on a mesh or an analytic surface
THRESHOLD = 0.05  # of the F-score, for shapes of radius 1; points of a pack are about 0.02 apart


def measure(folder: Path, kinds: Sequence[Rotations], number: int, device: str = "cpu") -> Results:
    """Reconstruct some test shapes, and compare the meshes with the true surfaces: the means.

    A true surface is a set of points: distances to it are at least the gaps between them. Shapes whose mesh is empty
    count as `empty`, score 0, and have no distance; a distance of -1 means that all meshes are empty.
    """
    config = read_config(folder)
    if config.task != "reconstruction":
        raise TrainingError(f"{folder} is a run of {config.task}: only reconstruction has meshes")
    model = checkpoint.load(folder / "best").to(device)
    assert isinstance(model, OccupancyModel)
    data = open_surfaces(config.data)
    chosen = evenly_spaced(data, number)
    results: Results = {}
    for kind in kinds:
        pairs = (scan(data, index, config, kind) for index in chosen)
        found = [compare_with_truth(mesh_of(model, cloud), truth) for cloud, truth in pairs]
        compared = [x for x in found if x is not None]
        results[kind] = [
            {
                "shapes": float(len(chosen)),
                "chamfer_l1": mean([x.chamfer_l1 for x in compared] or [-1.0]),
                "normal_consistency": 100 * sum(x.normal_consistency for x in compared) / len(found),
                "f_score": 100 * sum(x.f_score for x in compared) / len(found),
                "empty": float(len(found) - len(compared)),
            }
        ]
    return results


def open_surfaces(config: DataConfig) -> Dataset:
    """The test set of a reconstruction, with all its points and their normals."""
    if config.data == "shapes":
        return Shapes("test", size=factory.shapes_size(config, "test"), points=SURFACE_POINTS)
    return Occupancy("test", config.data_root, points=None, queries=None, normals=True)


def evenly_spaced(data: Sized, number: int) -> list[int]:
    """Up to so many evenly spaced indices, so that they cover data sets that are sorted by class."""
    number = min(number, len(data))
    return [i * len(data) // number for i in range(number)]


def scan(data: Dataset, index: int, config: RunConfig, kind: Rotations, trial: int = 0) -> tuple[Cloud, Cloud]:
    """A test shape as the noisy subset that the network gets, and its true surface, in the rotation of this `trial`."""
    seed, truth = config.runtime.seed, data[index]
    R = batches.evaluation_rotation(kind, index, seed, trial)
    return batches.evaluation_points(truth, index, config.data, seed).rotate(R), truth.rotate(R)


def mesh_of(model: OccupancyModel, cloud: Cloud) -> Mesh:
    """The reconstructed mesh, which may be empty."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the mesh is empty")  # empty meshes are counted
        return reconstruct(model, cloud.points)


def compare_with_truth(mesh: Mesh, truth: Cloud) -> Comparison | None:
    """Compare a mesh with a true surface; None if the mesh is empty."""
    if mesh.is_cloud:
        return None
    assert truth.normals is not None  # data sets with occupancy have normals
    points, normals = sample(mesh, SURFACE_POINTS, generator=torch.Generator().manual_seed(0))
    return compare_points(points, normals, truth.points.double(), truth.normals.double(), threshold=THRESHOLD)
