"""Meshes of scans by an occupancy network."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from ..geometry.sampling import ball, box
from ..mesh import Mesh, describe_nonfinite, extract, vertex_normals
from ..mesh.compare import nearest_points
from ..models import OccupancyModel, store
from ..models.base import PRECISION, prepare
from .reconstruction import DECODE_BATCH, logit

MIN_POINTS = 20  # distinct points of a scan
MIN_ROUNDING_UNITS = 2.0**12  # extent of a scan, in units of rounding of its coordinates
FLAT = 1e-5  # extents below this fraction of the largest one are rounding errors
NORMALIZATIONS = {"unit_ball": ball, "unit_cube": box}
MEAN_STEPS = 3  # of k-means: the first sorts noisy points by the noise of their centers, too
CAP_SLOPE = 100.0  # logits per radius
CONFIDENCE_DISTANCE = 0.04  # radii: 2 % of the diameter of a scan
# How far a shape may reach from the center of its scan, in distances of the farthest point. A ball seen from three
# radii away has the center of its scan near the surface, and its other side 1.67 away from there.
REACH = 1.75


def reconstruct(
    model: OccupancyModel,
    points: Float[Tensor, "points 3"],
    *,
    normals: Float[Tensor, "points 3"] | None = None,
    threshold: float | None = None,
    resolution: int = 128,
    refine: int = 2,
    batch: int = DECODE_BATCH,
    seed: int = 0,
    **options: Any,
) -> Mesh:
    """Reconstruct the closed surface of a scan with an occupancy network, in the units and pose of the scan.

    The grid lies along the principal axes of the scan. So the mesh is SO(3)-equivariant, if the network has vector
    neurons and was trained on clouds that were normalized to the unit ball.

    Args:
        model: the network, used in evaluation mode and in float64; one that was loaded from a run carries the number of
            points, the normalization and the best threshold of its training.
        points: the scan. If it has more points than the training clouds, a network that takes any number gets means of
            neighboring points, others get a sample.
        normals: of the points, outwards, if they are known; only some networks take them.
        threshold: probability above which a point is inside; by default that of the model, or 0.5.
        resolution: cells of the grid along each axis.
        refine: steps that move the vertices toward the level set.
        batch: query points decoded at once.
        seed: of the sampled points.
        options: further options of `mesh.extract`.

    Returns:
        The mesh, with the `confidence` of each vertex: the probability, by the network, that the surface is no farther
        away than 2 % of the diameter of the scan.

    Shape:
        points, normals: `(N, 3)`, N at least 20.
    """
    model, known = prepare(model, PRECISION), store.metadata_of(model)
    threshold = threshold if threshold is not None else known.threshold if known.threshold is not None else 0.5
    if not 0 < threshold < 1:
        raise ValueError(f"the threshold must be a probability between 0 and 1, got {threshold}")
    code, cloud, center, size = encode_scan(model, points, normals=normals, seed=seed)
    level, reach, axes = logit(threshold), REACH * cloud.norm(dim=-1).amax(), _principal_axes(cloud)

    def occupancy(queries: Float[Tensor, "queries 3"]) -> Float[Tensor, " queries"]:
        # Far from the scan the surface is cut off by a ball, which is rotation-invariant, instead of the grid's box.
        # The steep slope keeps the cap above the logits everywhere but near that ball.
        cap = CAP_SLOPE / reach * (reach - queries.norm(dim=-1))
        return torch.minimum(model.decode(code, (queries @ axes.mT).unsqueeze(0))[0] - level, cap)

    corner = reach.expand(3)
    options = {"resolution": resolution, "refine": refine, "batch": batch, "near": cloud @ axes, **options}
    surface = extract(occupancy, low=-corner, high=corner, **options)
    confidence = _confidence(occupancy, level, surface, cloud, batch)
    back = axes.mT.to(surface.vertices)
    normals = None if surface.normals is None else surface.normals @ back
    vertices = surface.vertices @ back * size.cpu() + center.cpu()
    return replace(surface, vertices=vertices, normals=normals, confidence=confidence)


class EncodedScan(NamedTuple):
    """The code of a scan, the points that were encoded, and the center and size that normalized them: `(N - c) / s`."""

    code: Any
    cloud: Float[Tensor, "points 3"]
    center: Float[Tensor, "1 3"]
    size: Float[Tensor, "1 1"]


def encode_scan(
    model: OccupancyModel,
    points: Float[Tensor, "points 3"],
    *,
    normals: Float[Tensor, "points 3"] | None = None,
    seed: int = 0,
) -> EncodedScan:
    """Encode a scan as `reconstruct` does, for query points of your own: `model.decode(code, (x - center) / size)`.

    Args:
        model, points, normals, seed: as in `reconstruct`.
    """
    known, like = store.metadata_of(model), next(model.parameters())
    if points.ndim != 2 or points.shape[1] != 3 or len(points) < MIN_POINTS:
        raise ValueError(f"a scan needs points (N, 3), at least {MIN_POINTS} of them, got {tuple(points.shape)}")
    if normals is not None and normals.shape != points.shape:
        raise ValueError(f"normals {tuple(normals.shape)} are not those of points {tuple(points.shape)}")
    if known.normalization not in NORMALIZATIONS:
        raise ValueError(
            f"the normalization {known.normalization!r} of the model is unknown: choose {', '.join(NORMALIZATIONS)}"
        )
    cloud, directions = _reduce(points.double(), normals, known.points or len(points), seed, mean=model.takes_normals)
    if check_extent(cloud):
        warnings.warn("all points of the scan lie in a plane: what is inside is a guess", stacklevel=3)
    # In float64: a scan may lie far from its origin.
    center, size = (x[0] for x in NORMALIZATIONS[known.normalization](cloud))
    cloud = ((cloud - center) / size).to(like)
    given = {}
    if model.takes_normals and directions is not None:
        given["normals"] = F.normalize(directions, dim=-1).to(like).unsqueeze(0)
    with torch.no_grad():
        return EncodedScan(model.encode(cloud.unsqueeze(0), **given), cloud, center, size)


def _reduce(
    points: Tensor, normals: Tensor | None, number: int, seed: int, *, mean: bool
) -> tuple[Tensor, Tensor | None]:
    """So many of the points at random; with `mean`, each the mean of the points nearest to it, which have less noise.

    The random points do not depend on the pose, as farthest points of a rotated scan would by rounding.
    """
    if number >= len(points):
        return points, normals
    chosen = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:number].to(points.device)
    if not mean:
        return points[chosen], None if normals is None else normals[chosen]
    means = points[chosen]
    for _ in range(MEAN_STEPS):
        owner = nearest_points(points, means)[1].to(points.device)
        means = _mean(points, owner, means)
    return means, None if normals is None else _mean(normals.to(points), owner, normals[chosen].to(points))


def _mean(x: Tensor, owner: Tensor, otherwise: Tensor) -> Tensor:
    """The mean of the rows that each owner has, or `otherwise` where it has none."""
    count = torch.bincount(owner, minlength=len(otherwise)).unsqueeze(-1)
    return torch.where(count > 0, torch.zeros_like(otherwise).index_add(0, owner, x) / count, otherwise)


def _principal_axes(cloud: Float[Tensor, "points 3"]) -> Float[Tensor, "3 3"]:
    """A rotation whose columns are the principal axes, toward the longer tail of the points along them."""
    x = cloud.double()
    axes = torch.linalg.eigh(x.mT @ x).eigenvectors
    axes = torch.where((x @ axes).pow(3).sum(0) < 0, -axes, axes)
    axes[:, 2] *= torch.linalg.det(axes).sign()
    return axes.to(cloud)


def _confidence(
    occupancy: Callable[[Tensor], Tensor], level: float, surface: Mesh, like: Tensor, batch: int
) -> Float[Tensor, " vertices"]:
    """The probability that a little outside of the surface is outside, times that a little inside is inside."""
    outwards = CONFIDENCE_DISTANCE * vertex_normals(surface)
    found = [torch.ones(0)]
    with torch.no_grad():
        for vertex, step in zip(torch.split(surface.vertices, batch), torch.split(outwards, batch), strict=True):
            inside, outside = (
                torch.sigmoid(occupancy((vertex + sign * step).to(like)) + level).cpu() for sign in (-1, 1)
            )
            found.append((inside * (1 - outside)).float())
    return torch.cat(found)


def check_extent(points: Float[Tensor, "points 3"]) -> bool:
    """Refuse points or lines; returns whether all points lie in a plane."""
    if nonfinite := describe_nonfinite(points):
        raise ValueError(f"the scan is damaged: {nonfinite}")
    extent, far = (points.amax(0) - points.amin(0)).max().item(), points.abs().max().item()
    if extent == 0:
        raise ValueError("all points of the scan coincide: it has no shape")
    if extent < MIN_ROUNDING_UNITS * torch.finfo(torch.float64).eps * far:
        raise ValueError(
            f"the scan is only {extent:.0e} large and {far:.0e} away from the origin, where float64 cannot tell its "
            "points apart: move it to the origin before it is saved"
        )
    different = len(torch.unique(points, dim=0))
    if different < MIN_POINTS:
        raise ValueError(f"the scan has only {different} distinct points, at least {MIN_POINTS} are needed")
    center, size = (x[0] for x in ball(points))
    long, wide, deep = torch.linalg.svdvals((points - center) / size).tolist()
    if wide < FLAT * long:
        raise ValueError(
            "all points of the scan are on a line, or one of them is very far from all others: it has no shape"
        )
    return deep < FLAT * long
