"""Distances between two surfaces, and the overlap of their volumes."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..geometry.inside import inside
from .mesh import Mesh
from .surface import sample


@dataclass(frozen=True)
class Comparison:
    """Metrics of a surface against a reference.

    Distances are in the units of the meshes; scores are between 0 and 1, and 1 is best. Distances between samples are
    never zero: two samples of n points, from one surface of area A, are about √(A/n)/2 apart.

    Attributes:
        accuracy: mean distance from the surface to the nearest point of the reference.
        completeness: mean distance from the reference to the nearest point of the surface.
        chamfer_l1: mean of the two, as in Occupancy Networks.
        normal_consistency: mean |cos| between the normals of nearest points, both ways.
        f_score: harmonic mean of the fractions of points, of each surface, within a threshold of the other.
    """

    accuracy: float
    completeness: float
    chamfer_l1: float
    normal_consistency: float
    f_score: float


def compare(
    first: Mesh,
    second: Mesh,
    *,
    points: int = 100_000,
    threshold: float = 0.01,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Compare a mesh with a reference by points sampled uniformly on both.

    Distances from and to an empty mesh are infinite, and its scores are 0.

    Args:
        first: the mesh.
        second: the reference.
        points: number of points sampled on each; with too few for the threshold, equal surfaces score less than 1.
        threshold: of the F-score, as a fraction of the longest side of the reference's bounding box.
        generator: source of randomness; torch's default if None.

    >>> triangle = Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
    >>> round(compare(triangle, triangle, points=1000).normal_consistency, 3)
    1.0
    """
    if not len(first.vertices) or not len(second.vertices):
        return Comparison(math.inf, math.inf, math.inf, 0.0, 0.0)
    side = float((second.vertices.amax(0) - second.vertices.amin(0)).max())
    samples = (*sample(first, points, generator=generator), *sample(second, points, generator=generator))
    return compare_points(*samples, threshold=threshold * side)


def compare_points(
    first: Float[Tensor, "n 3"],
    first_normals: Float[Tensor, "n 3"],
    second: Float[Tensor, "m 3"],
    second_normals: Float[Tensor, "m 3"],
    *,
    threshold: float,
) -> Comparison:
    """Compare two samples of surfaces by their nearest points.

    Args:
        first: points of the surface, at least one.
        first_normals: their unit normals.
        second: points of the reference, at least one.
        second_normals: their unit normals.
        threshold: of the F-score, in the units of the points.

    Shape:
        - first, first_normals: `(n, 3)`
        - second, second_normals: `(m, 3)`

    >>> a, up = torch.zeros(1, 3), torch.tensor([[0.0, 0.0, 1.0]])
    >>> compare_points(a, up, a + up, up, threshold=0.5).chamfer_l1
    1.0
    """
    forward, of_second = nearest_points(first, second)
    backward, of_first = nearest_points(second, first)
    accuracy, completeness = forward.mean().item(), backward.mean().item()
    cosines = [
        (first_normals * second_normals[of_second]).sum(-1).abs().mean().item(),
        (second_normals * first_normals[of_first]).sum(-1).abs().mean().item(),
    ]
    fractions = [(distances <= threshold).double().mean().item() for distances in (forward, backward)]
    return Comparison(
        accuracy=accuracy,
        completeness=completeness,
        chamfer_l1=(accuracy + completeness) / 2,
        normal_consistency=sum(cosines) / 2,
        f_score=2 * fractions[0] * fractions[1] / sum(fractions) if sum(fractions) else 0.0,
    )


def iou(first: Bool[Tensor, "*batch queries"], second: Bool[Tensor, "*batch queries"]) -> Float[Tensor, "*batch"]:
    """Return the intersection over union of two sets of occupied queries; 1 where both are empty.

    Args:
        first: which queries are inside the first shape.
        second: which queries are inside the second shape.

    Shape:
        - first, second: `(..., queries)`
        - out: `(...)`

    >>> iou(torch.tensor([True, True, False]), torch.tensor([True, False, False])).item()
    0.5
    """
    union = (first | second).sum(-1)
    return torch.where(union > 0, (first & second).sum(-1) / union, 1.0)


def volume_iou(first: Mesh, second: Mesh, *, queries: int = 100_000, generator: torch.Generator | None = None) -> float:
    """Estimate the intersection over union of the volumes of two meshes by uniform queries in their common box.

    A point cloud has no volume; two empty meshes have an IoU of 1.

    Args:
        first: a closed mesh.
        second: a closed mesh.
        queries: number of query points.
        generator: source of randomness; torch's default if None.

    >>> corners = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    >>> pyramid = Mesh(corners, torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))
    >>> volume_iou(pyramid, pyramid, queries=100)
    1.0
    """
    vertices = torch.cat([first.vertices, second.vertices]).double()
    if not len(vertices):
        return 1.0
    low, high = vertices.amin(0), vertices.amax(0)
    points = low + (high - low) * torch.rand(queries, 3, dtype=torch.float64, generator=generator)
    return iou(_occupied(first, points), _occupied(second, points)).item()


def _occupied(mesh: Mesh, points: Tensor) -> Tensor:
    if mesh.is_cloud:
        return torch.zeros(len(points), dtype=torch.bool)
    return inside(points, mesh.vertices, mesh.faces)


def nearest_points(
    points: Float[Tensor, "n 3"], others: Float[Tensor, "m 3"]
) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
    """Return the distance from every point to the nearest of the others, and its index."""
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    tree = cKDTree(others.detach().double().cpu().numpy())
    distances, index = tree.query(points.detach().double().cpu().numpy(), workers=torch.get_num_threads())
    return torch.from_numpy(distances), torch.from_numpy(index)
