"""Queries of a mesh: places in space, uniform and near the surface, with the answer whether they are inside."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.inside import inside
from ..geometry.sampling import box
from ..mesh import Mesh, MeshError, surface
from .build import Rows
from .cloud import Cloud
from .pack import seed_of
from .reading import Up, upright

PADDING = 1.1  # side of the cube that uniform queries fill, relative to the longest side of the shape, as in OccNet


@dataclass(frozen=True)
class Labeller:
    """How meshes become rows of an occupancy pack: so many surface points, uniform queries and queries near it."""

    points: int
    queries: int
    near: int
    sigma: float
    up: Up
    seed: int

    def __call__(self, name: str, mesh: Mesh) -> Rows:
        """The row of one mesh; what is drawn depends on the seed and its name."""
        if mesh.is_cloud:
            raise MeshError("it is a cloud, and an inside needs triangles")
        generator = torch.Generator().manual_seed(seed_of(self.seed, name))
        cloud = label_mesh(mesh, self.points, self.queries, self.near, sigma=self.sigma, generator=generator)
        closed = {"watertight": torch.tensor([surface.watertight(mesh)])}
        return occupancy_rows(cloud, *box(mesh.vertices), self.up) | closed


def label_mesh(
    mesh: Mesh,
    points: int,
    queries: int,
    near: int = 0,
    *,
    sigma: float = 0.02,
    generator: torch.Generator | None = None,
) -> Cloud:
    """Surface points with normals, and queries with the answer whether they are inside, in the mesh's own coordinates.

    The first `queries` are uniform in a cube about the mesh; the other `near` ones are surface points with Gaussian
    noise of standard deviation `sigma`, relative to the longest side.
    """
    middle, side = box(mesh.vertices)
    on, normals = surface.sample(mesh, points + near, generator=generator)
    uniform = torch.rand(queries, 3, dtype=torch.float64, generator=generator).to(on) - 0.5
    noise = torch.randn(near, 3, dtype=torch.float64, generator=generator).to(on)
    places = torch.cat([middle + PADDING * side * uniform, on[points:] + sigma * side * noise])
    answers = inside(places, mesh.vertices, mesh.faces)
    return Cloud(points=on[:points], normals=normals[:points], queries=places, occupied=answers)


def occupancy_rows(cloud: Cloud, middle: Float[Tensor, "1 3"], side: Float[Tensor, "1 1"], up: Up) -> Rows:
    """One shape as packs hold it: z up, in the unit ball of its surface.

    `cube` has the middle and the longest side of the shape's box, in the coordinates of that ball.
    """
    centre = cloud.points.mean(0)
    radius = (cloud.points - centre).norm(dim=-1).amax()
    if not radius > 0:
        raise MeshError("all of its points are at one place")

    def place(x: Tensor) -> Tensor:
        return upright((x - centre) / radius, up).float()

    known = {name: x for name in ("normals", "queries", "occupied") if (x := getattr(cloud, name)) is not None}
    rows = {
        "points": place(cloud.points),
        "normals": upright(known["normals"], up).float(),
        "queries": place(known["queries"]),
        "occupied": known["occupied"],
        "cube": torch.cat([place(middle)[0], (side / radius).float()[0]]),
    }
    return {name: x[None] for name, x in rows.items()}
