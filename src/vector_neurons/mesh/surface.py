"""Uniform samples of a surface, and a test whether it is closed."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .mesh import Mesh, MeshError

NORM_FLOOR = 1e-300  # keeps divisions by norms of zero finite


def sample(
    mesh: Mesh, n: int, *, generator: torch.Generator | None = None
) -> tuple[Float[Tensor, "n 3"], Float[Tensor, "n 3"]]:
    """Sample points uniformly by area from the faces of a mesh, with the unit normals of their faces.

    Args:
        mesh: a mesh with at least one face of positive area.
        n: number of points.
        generator: source of randomness; torch's default if None.

    Shape:
        - points: `(n, 3)`
        - normals: `(n, 3)`

    >>> points, normals = sample(Mesh(torch.eye(3), torch.tensor([[0, 1, 2]])), 100)
    >>> points.sum(-1).allclose(torch.ones(100)), normals.shape
    (True, torch.Size([100, 3]))
    """
    corners = mesh.vertices[mesh.faces]
    a, b, c = corners.unbind(1)
    cross = torch.linalg.cross(b - a, c - a)
    areas = cross.norm(dim=-1)
    total = areas.sum()
    if not total > 0:
        hint = "" if len(mesh.faces) else ": it is a point cloud, whose points are its vertices"
        raise MeshError(f"a mesh of {len(mesh.faces):,} faces has no area to sample from{hint}")
    u = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    cumulative = areas.cumsum(0)
    face = torch.searchsorted(cumulative, u[:, 0] * cumulative[-1], right=True).clamp_(max=len(areas) - 1)
    # The square root makes the points uniform in a triangle: its strips grow with the distance from the corner.
    root, v = u[:, 1].sqrt(), u[:, 2]
    weights = torch.stack([1 - root, root * (1 - v), root * v], dim=-1).to(corners)
    points = (weights.unsqueeze(-1) * corners[face]).sum(1)
    return points, cross[face] / areas[face].unsqueeze(-1)


def vertex_normals(mesh: Mesh) -> Float[Tensor, "vertices 3"]:
    """Unit normals of the vertices: the mean of adjacent faces, by area; zero where they cancel.

    >>> corners = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> vertex_normals(Mesh(corners, torch.tensor([[0, 1, 2]])))[0].tolist()
    [0.0, 0.0, 1.0]
    """
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    areas = torch.linalg.cross(b - a, c - a).repeat_interleave(3, 0)
    normals = torch.zeros_like(mesh.vertices).index_add(0, mesh.faces.flatten(), areas)
    return F.normalize(normals, dim=-1, eps=NORM_FLOOR)


def watertight(mesh: Mesh) -> bool:
    """Test whether the faces form a closed, consistently oriented surface.

    At every edge, as many faces run one way as the other. Vertices with equal coordinates count as one. Winding numbers
    of such a mesh are integers.

    >>> watertight(Mesh(torch.eye(3), torch.tensor([[0, 1, 2]])))
    False
    """
    if mesh.is_cloud:
        return False
    _, merged = np.unique(mesh.vertices.numpy(), axis=0, return_inverse=True)
    faces = merged.reshape(-1)[mesh.faces.numpy()]
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    low, high = edges.min(1), edges.max(1)
    _, edge = np.unique(low * len(mesh.vertices) + high, return_inverse=True)
    direction = np.sign(edges[:, 1] - edges[:, 0])  # 0 for the collapsed edge of a triangle without area
    return not np.bincount(edge, weights=direction).any()
