"""Points on a surface, and whether it is closed."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .mesh import Mesh, MeshError


def sample(
    mesh: Mesh, n: int, *, generator: torch.Generator | None = None
) -> tuple[Float[Tensor, "n 3"], Float[Tensor, "n 3"]]:
    """Draw points uniformly by area, each with the unit normal of its face."""
    corners = mesh.vertices[mesh.faces]
    a, b, c = corners.unbind(1)
    cross = torch.linalg.cross(b - a, c - a)
    areas = cross.norm(dim=-1)
    total = areas.sum()
    if not total > 0:
        raise MeshError(f"a mesh of {len(mesh.faces):,} faces has no area to sample from")
    draws = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    cumulated = areas.cumsum(0)
    face = torch.searchsorted(cumulated, draws[:, 0] * cumulated[-1], right=True).clamp_(max=len(areas) - 1)
    # The square root spreads the points evenly over a triangle: its strips grow with the distance from the corner.
    root, v = draws[:, 1].sqrt(), draws[:, 2]
    weights = torch.stack([1 - root, root * (1 - v), root * v], dim=-1).to(corners)
    points = (weights.unsqueeze(-1) * corners[face]).sum(1)
    return points, cross[face] / areas[face].unsqueeze(-1)


def watertight(mesh: Mesh) -> bool:
    """Whether the faces are a closed surface that knows its sides: at every edge, as many run one way as the other.

    Vertices at one place are one vertex. Winding numbers of such a mesh are integers.
    """
    if mesh.is_cloud:
        return False
    _, place = np.unique(mesh.vertices.numpy(), axis=0, return_inverse=True)
    faces = place.reshape(-1)[mesh.faces.numpy()]
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    low, high = edges.min(1), edges.max(1)
    _, edge = np.unique(low * len(mesh.vertices) + high, return_inverse=True)
    way = np.sign(edges[:, 1] - edges[:, 0])  # 0 for the collapsed edge of a triangle without area
    return not np.bincount(edge, weights=way).any()
