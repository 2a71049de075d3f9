"""Query points of a mesh, uniform and near the surface, labeled as inside or outside."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.inside import inside
from ..geometry.sampling import box
from ..mesh import Mesh, MeshError, surface
from .cloud import Cloud
from .rows import COINCIDE, PackRows, Up, upright
from .seeding import derive_seed

QUERY_CUBE_SCALE = 1.1  # side of the cube of uniform queries, relative to the longest side of the shape, as in OccNet


@dataclass(frozen=True)
class OccupancySampler:
    """Converts meshes to rows of an occupancy pack.

    Attributes:
        points: surface points of each mesh.
        queries: uniform queries.
        near: queries near the surface.
        sigma: their standard deviation, relative to the longest side.
        up: axis that is up in the mesh.
        seed: of the samples, with the name of the mesh.
    """

    points: int
    queries: int
    near: int
    sigma: float
    up: Up
    seed: int

    def __call__(self, name: str, mesh: Mesh) -> PackRows:
        """Return the row of one mesh."""
        if mesh.is_cloud:
            raise MeshError("it is a cloud, and occupancy needs triangles")
        generator = torch.Generator().manual_seed(derive_seed(self.seed, name))
        cloud = sample_occupancy(mesh, self.points, self.queries, self.near, sigma=self.sigma, generator=generator)
        closed = {"watertight": torch.tensor([surface.watertight(mesh)])}
        return occupancy_rows(cloud, *box(mesh.vertices), self.up) | closed


def sample_occupancy(
    mesh: Mesh,
    points: int,
    queries: int,
    near: int = 0,
    *,
    sigma: float = 0.02,
    generator: torch.Generator | None = None,
) -> Cloud:
    """Sample surface points with normals, and queries labeled as inside or outside, in the coordinates of the mesh.

    The first `queries` are uniform in a cube around the mesh; the other `near` ones are surface points with Gaussian
    noise of standard deviation `sigma`, relative to the longest side.
    """
    center, side = box(mesh.vertices)
    surface_points, normals = surface.sample(mesh, points + near, generator=generator)
    uniform = torch.rand(queries, 3, dtype=torch.float64, generator=generator).to(surface_points) - 0.5
    noise = torch.randn(near, 3, dtype=torch.float64, generator=generator).to(surface_points)
    near_surface = surface_points[points:] + sigma * side * noise
    positions = torch.cat([center + QUERY_CUBE_SCALE * side * uniform, near_surface])
    occupied = inside(positions, mesh.vertices, mesh.faces)
    return Cloud(points=surface_points[:points], normals=normals[:points], queries=positions, occupied=occupied)


def occupancy_rows(cloud: Cloud, box_center: Float[Tensor, "1 3"], side: Float[Tensor, "1 1"], up: Up) -> PackRows:
    """Return the row of one shape as packs hold it: z up, in the unit ball of its surface.

    `cube` has the center and the longest side of the shape's bounding box, in the coordinates of that ball.
    """
    center = cloud.points.mean(0)
    radius = (cloud.points - center).norm(dim=-1).amax()
    if not radius > 0:
        raise MeshError(COINCIDE)

    def normalized(x: Tensor) -> Tensor:
        return upright((x - center) / radius, up).float()

    known = {name: x for name in ("normals", "queries", "occupied") if (x := getattr(cloud, name)) is not None}
    rows = {
        "points": normalized(cloud.points),
        "normals": upright(known["normals"], up).float(),
        "queries": normalized(known["queries"]),
        "occupied": known["occupied"],
        "cube": torch.cat([normalized(box_center)[0], (side / radius).float()[0]]),
    }
    return {name: x[None] for name, x in rows.items()}
