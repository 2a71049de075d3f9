"""What can be wrong with a reconstructed surface: where it has no support in its scan, its topology, its thickness."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .compare import nearest_points
from .mesh import Mesh
from .surface import sample

SAMPLES = 10_000  # points of the surface
NEAR = 0.05  # of the size of a scan: farther than this is another place
OPPOSITE = 64  # nearest samples among which that of the other side is searched
FACING = 0.7  # cosine between a normal and the way through a part, and between the normals of its two sides
THINNEST = 0.01  # quantile of the thickness: a few samples at edges always seem thin


@dataclass(frozen=True)
class Quality:
    """How a surface fits the scan it was made from, and what its topology is.

    Attributes:
        invented: fraction of the surface that is farther from every point of the scan than 5 % of its size.
        missed: fraction of the points of the scan that are as far from the surface.
        bodies: number of connected components.
        genus: number of handles or tunnels of all bodies: a ball 0, a mug 1.
        thinnest: how thick the thinnest hundredth of the surface is; infinite where no other side is found.
    """

    invented: float
    missed: float
    bodies: int
    genus: int
    thinnest: float


def quality(surface: Mesh, scan: Float[Tensor, "points 3"], *, seed: int = 0) -> Quality:
    """Measure how a closed surface fits a scan, its bodies, its genus and its thinnest part.

    Distances are taken to samples of the surface.

    Args:
        surface: a closed mesh of one face at least.
        scan: the points it was made from.
        seed: of the samples.

    Shape:
        - scan: `(N, 3)`

    >>> corners = torch.cat([torch.zeros(1, 3), torch.eye(3)])
    >>> pyramid = Mesh(corners, torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))
    >>> found = quality(pyramid, corners)
    >>> found.bodies, found.genus, found.missed
    (1, 0, 0.0)
    """
    points, normals = sample(surface, SAMPLES, generator=torch.Generator().manual_seed(seed))
    near = NEAR * float((scan.amax(0) - scan.amin(0)).max())
    # A surface between its own samples is as near as they are apart.
    covered = torch.cat([points, surface.vertices])
    return Quality(
        invented=(nearest_points(points, scan)[0] > near).double().mean().item(),
        missed=(nearest_points(scan, covered)[0] > near).double().mean().item(),
        bodies=(count := int(bodies(surface).max()) + 1),
        genus=_genus(surface, count),
        thinnest=_thinnest(points, normals),
    )


def bodies(mesh: Mesh) -> Int[Tensor, " faces"]:
    """Number the connected components of a mesh from 0, the one of the most faces first; returns that of each face.

    >>> two = Mesh(torch.rand(6, 3), torch.tensor([[0, 1, 2], [3, 4, 5], [3, 5, 4]]))
    >>> bodies(two).tolist()
    [1, 0, 0]
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    faces = mesh.faces.numpy()
    edges = np.concatenate([faces[:, :2], faces[:, 1:]])
    size = len(mesh.vertices)
    graph = coo_array((np.ones(len(edges), dtype=bool), (edges[:, 0], edges[:, 1])), shape=(size, size))
    _, found, counts = np.unique(
        connected_components(graph, directed=False)[1][faces[:, 0]], return_inverse=True, return_counts=True
    )
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return torch.from_numpy(rank[found.reshape(-1)])


def largest_body(mesh: Mesh) -> Mesh:
    """Keep the connected component of the most faces.

    >>> two = Mesh(torch.rand(6, 3), torch.tensor([[0, 1, 2], [3, 4, 5], [3, 5, 4]]))
    >>> largest_body(two).faces.tolist()
    [[0, 1, 2], [0, 2, 1]]
    """
    faces = mesh.faces[bodies(mesh) == 0]
    used, renumbered = torch.unique(faces, return_inverse=True)
    kept = {name: None if (x := getattr(mesh, name)) is None else x[used] for name in ("normals", "confidence")}
    return Mesh(mesh.vertices[used], renumbered, **kept)


def genus(mesh: Mesh) -> int:
    """Count the handles of a closed mesh, by Euler's formula: vertices - edges + faces = 2 bodies - 2 genus.

    Where a surface touches itself the formula counts less, and at least 0 is returned.
    """
    return _genus(mesh, int(bodies(mesh).max()) + 1)


def _genus(mesh: Mesh, count: int) -> int:
    faces = mesh.faces
    low, high = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]).sort(-1).values.unbind(-1)
    edges = torch.unique(low * len(mesh.vertices) + high)
    euler = len(torch.unique(faces)) - len(edges) + len(faces)
    return max(0, count - euler // 2)


def _thinnest(points: Tensor, normals: Tensor) -> float:
    """A low quantile of the way from a sample inwards to the other side, to the precision of the samples."""
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]

    tree = cKDTree(points.numpy())
    distances, other = tree.query(points.numpy(), k=min(OPPOSITE, len(points)), workers=torch.get_num_threads())
    distance, near = torch.from_numpy(distances), torch.from_numpy(other)
    inwards = ((points.unsqueeze(1) - points[near]) * normals.unsqueeze(1)).sum(-1)
    through = (inwards > FACING * distance) & ((normals.unsqueeze(1) * normals[near]).sum(-1) < -FACING)
    thickness = inwards.masked_fill(~through, math.inf).amin(-1)
    return thickness.quantile(THINNEST, interpolation="lower").item()
