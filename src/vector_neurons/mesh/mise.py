"""Surfaces from functions: multi-resolution iso-surface extraction. The only importer of skimage.

A coarse grid finds the surface, the cells that it crosses are halved until they are small enough, and marching cubes
runs once, on the finest grid. Points of cells that it does not cross are never asked about: they take the side of the
coarse cell.
"""

import importlib
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .mesh import Mesh, MeshError
from .surface import watertight

LARGEST = 1e30  # stands for infinity: marching cubes interpolates, and between infinities there is no middle
TINY = 1e-300  # keeps divisions by lengths of zero finite


def extract(
    occupancy: Callable[[Float[Tensor, "points 3"]], Float[Tensor, " points"]],
    *,
    low: float | Float[Tensor, "3"],
    high: float | Float[Tensor, "3"],
    level: float = 0.0,
    start: int = 32,
    resolution: int = 128,
    batch: int = 100_000,
    faces: int | None = None,
    refine: int = 0,
    normals: bool = False,
) -> Mesh:
    """Extract the closed surface around the part of the box from `low` to `high` where a function is above `level`.

    `occupancy` gives one number for each point: logits (level 0), probabilities (level 0.5), a distance with its sign
    changed. It is asked for at most `batch` points at a time, on the device and in the dtype of `low` where that is a
    tensor, else on the CPU in torch's default dtype.

    The box has `start` cells along each axis at first and `resolution` = start · 2ⁿ at last. The result is the surface
    of the dense grid, without the parts that slip between the points of the coarse grid and touch none it has seen.
    Faces turn outwards. Where an object reaches the border of the box, the border closes it.

    Afterwards, in this order: `faces` simplifies to about so many, by quadric error (libigl). `refine` Newton steps
    bring each vertex from its interpolated place to the level, if that is no farther than a cell. `normals` adds those
    of the vertices, by the gradient of the function or, on the border of the box, by the faces.

    A function that has no inside or no outside gives an empty mesh and a warning.

    >>> ball = extract(lambda points: 1 - points.norm(dim=-1), low=-1.5, high=1.5, start=8, resolution=32)
    >>> round(ball.vertices.norm(dim=-1).mean().item(), 2)
    1.0
    """
    marching_cubes = _load("skimage.measure", "scikit-image").marching_cubes
    igl = None if faces is None else _load("igl", "libigl")
    _check(start, resolution, batch, faces, refine)
    field = _Field.over(occupancy, low, high, level, batch)
    values = _values(field, start, resolution)
    inside = values > 0
    if inside.all() or not inside.any():
        side = "inside" if inside.any() else "outside"
        hint = "check level and the box, or raise start"
        warnings.warn(f"the mesh is empty, all {start + 1}³ points of the coarse grid are {side}: {hint}", stacklevel=2)
        none = torch.zeros(0, 3, dtype=torch.float64)
        return Mesh(none, none.long(), none.clone() if normals else None)
    values[values == 0] = -1 / LARGEST  # outside all the same, but at an exact 0 marching cubes leaves holes
    # A layer of outside closes what the border of the box cuts; clamping then puts the cut exactly onto the border.
    padded = F.pad(values, (1,) * 6, value=-1.0).numpy()
    # Its "ascent" is the one that turns faces outwards while the axes are in the order x y z.
    corners, triangles, _, _ = marching_cubes(padded, 0.0, gradient_direction="ascent")
    fractions = (torch.from_numpy(corners.astype(np.float64)) - 1).clamp(0, resolution) / resolution
    mesh = Mesh(field.at(fractions), torch.from_numpy(triangles.astype(np.int64)))
    if faces is not None and faces < len(mesh.faces):
        mesh = _simplified(mesh, faces, igl)
    mesh = _cleaned(mesh)  # not earlier: simplifying needs a manifold, and joining where it touches itself ends that
    cell = (field.high - field.low) / resolution
    to_border = torch.minimum(mesh.vertices - field.low, field.high - mesh.vertices)
    free = (to_border > cell / 2).all(-1)  # what the box cuts is not on the level
    if refine:
        mesh.vertices[free] = _refined(field, mesh.vertices[free], refine, cell.min())
    return Mesh(mesh.vertices, mesh.faces, _normals(field, mesh, free)) if normals else mesh


def _load(module: str, package: str) -> Any:
    """Import what the extra `mesh` brings."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"extracting a surface needs {package}: pip install 'vector-neurons[mesh]'") from error


def _check(start: int, resolution: int, batch: int, faces: int | None, refine: int) -> None:
    if refine < 0:
        raise MeshError(f"refine={refine} steps cannot be taken: 0 or more")
    if start < 1 or batch < 1:
        raise MeshError(f"start={start} and batch={batch} must both be at least 1")
    if faces is not None and faces < 4:
        raise MeshError(f"faces={faces} cannot close a surface: ask for at least 4")
    below = start << max((resolution // start).bit_length() - 1, 0)
    if below != resolution:
        raise MeshError(f"resolution={resolution} must be start={start} doubled n times: take {below} or {2 * below}")


@dataclass(frozen=True)
class _Field:
    """A function in a box: positive inside, negative outside. What goes in and comes out is float64, on the CPU."""

    occupancy: Callable[[Tensor], Tensor]
    low: Tensor
    high: Tensor
    level: float
    batch: int
    like: Tensor  # has the device and the dtype of queries

    @classmethod
    def over(
        cls, occupancy: Callable[[Tensor], Tensor], low: float | Tensor, high: float | Tensor, level: float, batch: int
    ) -> "_Field":
        lowest, highest = (torch.as_tensor(corner).detach().cpu().double().expand(3) for corner in (low, high))
        if not (lowest < highest).all():
            raise MeshError(f"the box from {lowest.tolist()} to {highest.tolist()} is empty: low must be below high")
        like = low if isinstance(low, Tensor) and low.is_floating_point() else torch.empty(0)
        return cls(occupancy, lowest, highest, level, batch, like)

    def at(self, fractions: Tensor) -> Tensor:
        """Points of the box, of which 0 0 0 is the lowest corner and 1 1 1 the highest."""
        return self.low + fractions * (self.high - self.low)

    def values(self, points: Tensor) -> Tensor:
        """Values above the level, at no more points than a batch."""
        with torch.no_grad():
            return self._above(self.occupancy(points.to(self.like)), len(points))

    def gradients(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Values above the level, and their gradients: 0 where there is none."""
        values, gradients = [points[:0, 0]], [points[:0]]
        with torch.enable_grad():
            for some in torch.split(points, self.batch) if len(points) else ():
                query = some.to(self.like, copy=True).requires_grad_()
                answer = self.occupancy(query)
                if not answer.requires_grad:
                    raise MeshError("refine and normals need gradients: let occupancy neither detach nor forbid them")
                values.append(self._above(answer, len(some)))
                gradients.append(torch.autograd.grad(answer.sum(), query)[0].cpu().double().nan_to_num(0, 0, 0))
        return torch.cat(values), torch.cat(gradients)

    def _above(self, answer: Tensor, points: int) -> Tensor:
        if answer.shape != (points,):
            raise MeshError(f"occupancy must give one number for each of {points} points, not {tuple(answer.shape)}")
        values = answer.detach().cpu().double() - self.level
        bad = int(values.isnan().sum())
        if bad:
            raise MeshError(f"occupancy is NaN at {bad:,} of {points:,} points: check the function and its weights")
        return values.clamp(-LARGEST, LARGEST)


def _values(field: _Field, start: int, resolution: int) -> Tensor:
    """Evaluate the finest grid where the surface is; elsewhere only the signs are right, those of the coarse cells."""
    cells = start
    values = torch.zeros(cells + 1, cells + 1, cells + 1)
    known = torch.zeros_like(values, dtype=torch.bool)
    wanted = ~known
    while True:
        # A new value may show that the surface crosses a cell next to it as well: follow until it stays in known cells.
        while wanted.any():
            for some in torch.split(wanted.flatten().nonzero().squeeze(1), field.batch):
                index = torch.stack(torch.unravel_index(some, values.shape), dim=-1)
                values.view(-1)[some] = field.values(field.at(index.double() / cells)).float()
            known |= wanted
            wanted = _corners(_crossed(values)) & ~known
        if cells == resolution:
            return values
        crossed = _crossed(values)
        # All corners of a cell that is not crossed have one sign, so any of them can speak for the points between.
        half = torch.arange(2 * cells + 1) // 2
        for axis in range(3):
            values, crossed = values.index_select(axis, half), crossed.index_select(axis, half[:-1])
        coarse, known = known, torch.zeros_like(values, dtype=torch.bool)
        known[::2, ::2, ::2] = coarse
        wanted = _corners(crossed) & ~known
        cells *= 2


def _eight(points: Tensor) -> list[Tensor]:
    """Views of a grid of points: of every cell the first corner, the second, ..."""
    cells = len(points) - 1
    return [points[x : x + cells, y : y + cells, z : z + cells] for x, y, z in itertools.product((0, 1), repeat=3)]


def _crossed(values: Tensor) -> Tensor:
    """Which cells have corners on both sides."""
    corners = _eight(values > 0)
    return reduce(torch.logical_or, corners) & ~reduce(torch.logical_and, corners)


def _corners(cells: Tensor) -> Tensor:
    """Which points are corners of these cells."""
    points = cells.new_zeros([len(cells) + 1] * 3)
    for corner in _eight(points):
        corner |= cells
    return points


def _simplified(mesh: Mesh, faces: int, igl: Any) -> Mesh:
    vertices, triangles, _, _ = igl.qslim(mesh.vertices.numpy(), mesh.faces.int().numpy(), faces)
    simple = Mesh(torch.tensor(vertices).reshape(-1, 3), torch.tensor(triangles).reshape(-1, 3))
    if watertight(simple) and simple.vertices.isfinite().all():
        return simple
    warnings.warn(f"libigl cannot simplify this surface, which keeps its {len(mesh.faces):,} faces", stacklevel=3)
    return mesh


def _cleaned(mesh: Mesh) -> Mesh:
    """Make vertices at one place one, and drop the faces that collapse: the surface stays closed."""
    vertices, faces = mesh.vertices.numpy(), mesh.faces.numpy()
    _, first, place = np.unique(vertices, axis=0, return_index=True, return_inverse=True)
    faces = first[place.reshape(-1)][faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    used, faces = np.unique(faces, return_inverse=True)
    return Mesh(torch.from_numpy(vertices[used]), torch.from_numpy(faces.reshape(-1, 3)))


def _refined(field: _Field, vertices: Tensor, steps: int, reach: Tensor) -> Tensor:
    """Newton's method along the gradient. No vertex goes farther than `reach`, or to where the value is worse."""
    x, (value, gradient) = vertices, field.gradients(vertices)
    pace = torch.ones_like(value)
    for _ in range(steps):
        length = (value / gradient.norm(dim=-1).clamp(min=TINY)).clamp(-reach, reach) * pace
        way = x - length.unsqueeze(-1) * F.normalize(gradient, dim=-1, eps=TINY) - vertices
        moved = vertices + way * (reach / way.norm(dim=-1, keepdim=True)).clamp(max=1)
        new_value, new_gradient = field.gradients(moved)
        better = new_value.abs() < value.abs()
        x = moved.where(better.unsqueeze(-1), x)
        gradient = new_gradient.where(better.unsqueeze(-1), gradient)
        value = new_value.where(better, value)
        pace = pace.where(better, pace / 2)
    return x


def _normals(field: _Field, mesh: Mesh, free: Tensor) -> Tensor:
    """Unit normals of the vertices: down the gradient, or by the faces around where that is no use."""
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    areas = torch.linalg.cross(b - a, c - a).repeat_interleave(3, 0)
    normals = torch.zeros_like(mesh.vertices).index_add(0, mesh.faces.flatten(), areas)
    down = torch.zeros_like(normals)
    down[free] = -field.gradients(mesh.vertices[free])[1]
    return F.normalize(down.where(down.norm(dim=-1, keepdim=True) > 0, normals), dim=-1, eps=TINY)
