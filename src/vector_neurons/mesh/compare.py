"""How close two surfaces are, and how much their volumes share."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..geometry.inside import inside
from .mesh import Mesh
from .surface import sample


@dataclass(frozen=True)
class Comparison:
    """A surface against a reference. Distances are in the units of the meshes; scores go from 0 to 1, which is best.

    Distances between samples are never zero: two of n points, of one surface of area A, are some √(A/n)/2 apart.
    """

    accuracy: float  # mean distance from the surface to the nearest point of the reference
    completeness: float  # mean distance from the reference to the nearest point of the surface
    chamfer_l1: float  # mean of the two, as in Occupancy Networks
    normal_consistency: float  # mean |cos| between normals of nearest points, both ways
    f_score: float  # harmonic mean of the shares of points, of each surface, that are within a threshold of the other


def compare(
    first: Mesh,
    second: Mesh,
    *,
    points: int = 100_000,
    threshold: float = 0.01,
    generator: torch.Generator | None = None,
) -> Comparison:
    """Compare a mesh with a reference, `second`, by points sampled uniformly on both.

    `threshold` is that of the F-score, as a fraction of the longest side of the reference's bounding box. With too few
    points for it, equal surfaces score less than 1. From and to an empty mesh distances are infinite and scores 0.
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
    """Compare two samples of surfaces, neither of them empty; `threshold` is in the units of the points."""
    there, of_second = _nearest(first, second)
    back, of_first = _nearest(second, first)
    accuracy, completeness = there.mean().item(), back.mean().item()
    cosines = [
        (first_normals * second_normals[of_second]).sum(-1).abs().mean().item(),
        (second_normals * first_normals[of_first]).sum(-1).abs().mean().item(),
    ]
    shares = [(distances <= threshold).double().mean().item() for distances in (there, back)]
    return Comparison(
        accuracy=accuracy,
        completeness=completeness,
        chamfer_l1=(accuracy + completeness) / 2,
        normal_consistency=sum(cosines) / 2,
        f_score=2 * shares[0] * shares[1] / sum(shares) if sum(shares) else 0.0,
    )


def iou(first: Bool[Tensor, "*batch queries"], second: Bool[Tensor, "*batch queries"]) -> Float[Tensor, "*batch"]:
    """Intersection over union of what is inside, at common queries. It is 1 where both are empty.

    >>> iou(torch.tensor([True, True, False]), torch.tensor([True, False, False])).item()
    0.5
    """
    union = (first | second).sum(-1)
    return torch.where(union > 0, (first & second).sum(-1) / union, 1.0)


def volume_iou(first: Mesh, second: Mesh, *, queries: int = 100_000, generator: torch.Generator | None = None) -> float:
    """Intersection over union of volumes, by queries uniform in the box around both. No faces, no volume."""
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


def _nearest(points: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """For every point, how far the nearest of the others is, and which it is."""
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    tree = cKDTree(others.detach().double().cpu().numpy())
    distances, index = tree.query(points.detach().double().cpu().numpy(), workers=torch.get_num_threads())
    return torch.from_numpy(distances), torch.from_numpy(index)
