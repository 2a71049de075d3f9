"""Multi-resolution iso-surface extraction (MISE). The only importer of skimage.

A coarse grid finds the surface, the cells that it crosses are halved until they are small enough, and marching cubes
runs once, on the finest grid. The function is not evaluated at points of cells that the surface does not cross: they
take the sign of the coarse cell.
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
from .surface import NORM_FLOOR, vertex_normals, watertight

VALUE_LIMIT = 1e30  # replaces infinity: marching cubes interpolates, and the mean of infinities is NaN


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
    near: Float[Tensor, "near 3"] | None = None,
) -> Mesh:
    """Extract the closed surface around the part of a box where a function is above a level, as a triangle mesh.

    The result is the surface of the dense grid, without components that lie between the points of the coarse grid and
    are not `near` any given point.
    Faces are oriented outwards. Where an object reaches the border of the box, the border closes it. A function that is
    above or below the level everywhere gives an empty mesh and a warning.

    Args:
        occupancy: returns one value for each point: logits (level 0), probabilities (level 0.5), or a negated signed
            distance (level 0). It is called on the device and in the dtype of `low` if that is a tensor, else on the
            CPU in torch's default dtype.
        low: lowest corner of the box, or its three coordinates if they are equal.
        high: highest corner of the box.
        level: value of the function on the surface.
        start: cells of the coarse grid along each axis.
        resolution: cells of the finest grid along each axis, `start` · 2ⁿ.
        batch: number of points for which the function is called at once, at most.
        faces: simplify to about so many faces, by quadric error (libigl); done first.
        refine: Newton steps that move each vertex from its interpolated position to the level, by one cell at most.
        normals: add unit normals of the vertices, from the gradient of the function or, on the border of the box, from
            the faces.
        near: points near the surface, such as those of a scan. Cells that hold one are halved, too: parts thinner than
            the cells of the coarse grid are found there.

    Shape:
        - occupancy: `(points, 3)` to `(points,)`
        - low, high: `(3,)` or a number
        - near: `(N, 3)`

    >>> ball = extract(lambda points: 1 - points.norm(dim=-1), low=-1.5, high=1.5, start=8, resolution=32)
    >>> round(ball.vertices.norm(dim=-1).mean().item(), 2)
    1.0
    """
    marching_cubes = _load("skimage.measure", "scikit-image").marching_cubes
    igl = None if faces is None else _load("igl", "libigl")
    _check(start, resolution, batch, faces, refine)
    field = _Field.over(occupancy, low, high, level, batch)
    values = _values(field, start, resolution, None if near is None else field.fractions(near))
    inside = values > 0
    if inside.all() or not inside.any():
        side = "inside" if inside.any() else "outside"
        hint = "check level and the box, or raise start"
        warnings.warn(f"the mesh is empty, all {start + 1}³ points of the coarse grid are {side}: {hint}", stacklevel=2)
        none = torch.zeros(0, 3, dtype=torch.float64)
        return Mesh(none, none.long(), none.clone() if normals else None)
    values[values == 0] = -1 / VALUE_LIMIT  # outside all the same, but at an exact 0 marching cubes leaves holes
    # A layer of outside closes what the border of the box cuts; clamping then puts the cut exactly onto the border.
    padded = F.pad(values, (1,) * 6, value=-1.0).numpy()
    # "ascent" orients faces outwards for axes in the order x y z.
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
    """Import a module that the extra `mesh` installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"extracting a surface needs {package}: pip install 'vector-neurons[mesh]'") from error


def _check(start: int, resolution: int, batch: int, faces: int | None, refine: int) -> None:
    if refine < 0:
        raise MeshError(f"refine={refine} must be 0 or more")
    if start < 1 or batch < 1:
        raise MeshError(f"start={start} and batch={batch} must both be at least 1")
    if faces is not None and faces < 4:
        raise MeshError(f"faces={faces} cannot close a surface: take at least 4")
    doubled = start << max((resolution // start).bit_length() - 1, 0)
    if doubled != resolution:
        raise MeshError(
            f"resolution={resolution} must be start={start} doubled n times: take {doubled} or {2 * doubled}"
        )


@dataclass(frozen=True)
class _Field:
    """A function in a box: positive inside, negative outside. Points and values are float64, on the CPU."""

    occupancy: Callable[[Tensor], Tensor]
    low: Tensor
    high: Tensor
    level: float
    batch: int
    like: Tensor  # has the device and the dtype of the queries

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
        """Map [0, 1]³ to the box."""
        return self.low + fractions * (self.high - self.low)

    def fractions(self, points: Tensor) -> Tensor:
        """Map the box to [0, 1]³, without points outside of it."""
        found = (points.detach().cpu().double() - self.low) / (self.high - self.low)
        return found[((found >= 0) & (found < 1)).all(-1)]

    def values(self, points: Tensor) -> Tensor:
        """Evaluate the function minus the level."""
        with torch.no_grad():
            parts = torch.split(points, self.batch) if len(points) else ()
            return torch.cat(
                [points[:0, 0], *(self._minus_level(self.occupancy(some.to(self.like)), len(some)) for some in parts)]
            )

    def gradients(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the function minus the level, and its gradients: 0 where they are not finite."""
        values, gradients = [points[:0, 0]], [points[:0]]
        with torch.enable_grad():
            for some in torch.split(points, self.batch) if len(points) else ():
                query = some.to(self.like, copy=True).requires_grad_()
                output = self.occupancy(query)
                if not output.requires_grad:
                    raise MeshError("refine and normals need gradients: occupancy must not detach or disable them")
                values.append(self._minus_level(output, len(some)))
                gradients.append(torch.autograd.grad(output.sum(), query)[0].cpu().double().nan_to_num(0, 0, 0))
        return torch.cat(values), torch.cat(gradients)

    def _minus_level(self, output: Tensor, points: int) -> Tensor:
        if output.shape != (points,):
            raise MeshError(f"occupancy must return one value for each of {points} points, not {tuple(output.shape)}")
        values = output.detach().cpu().double() - self.level
        bad = int(values.isnan().sum())
        if bad:
            raise MeshError(f"occupancy is NaN at {bad:,} of {points:,} points: check the function and its weights")
        return values.clamp(-VALUE_LIMIT, VALUE_LIMIT)


def _values(field: _Field, start: int, resolution: int, near: Tensor | None) -> Tensor:
    """Evaluate the finest grid near the surface; elsewhere only the signs are right, those of the coarse cells."""
    cells = start
    values = torch.zeros(cells + 1, cells + 1, cells + 1)
    known = torch.zeros_like(values, dtype=torch.bool)
    wanted = ~known
    while True:
        # A new value may show that the surface crosses an adjacent cell too: repeat until it stays in known cells.
        while wanted.any():
            values[wanted] = field.values(field.at(wanted.nonzero().double() / cells)).float()
            known |= wanted
            wanted = _corners_of(_crossed(values)) & ~known
        if cells == resolution:
            return values
        crossed = _crossed(values)
        if near is not None:
            crossed[(near * cells).long().unbind(-1)] = True
        # All corners of a cell that is not crossed have one sign, which any of them gives to the points between.
        half = torch.arange(2 * cells + 1) // 2
        for axis in range(3):
            values, crossed = values.index_select(axis, half), crossed.index_select(axis, half[:-1])
        coarse, known = known, torch.zeros_like(values, dtype=torch.bool)
        known[::2, ::2, ::2] = coarse
        wanted = _corners_of(crossed) & ~known
        cells *= 2


def _cell_corners(points: Tensor) -> list[Tensor]:
    """Return eight views of a grid of points: the first corner of every cell, the second, ..."""
    cells = len(points) - 1
    return [points[x : x + cells, y : y + cells, z : z + cells] for x, y, z in itertools.product((0, 1), repeat=3)]


def _crossed(values: Tensor) -> Tensor:
    """Mark the cells with corners on both sides."""
    corners = _cell_corners(values > 0)
    return reduce(torch.logical_or, corners) & ~reduce(torch.logical_and, corners)


def _corners_of(cells: Tensor) -> Tensor:
    """Mark the points that are corners of these cells."""
    points = cells.new_zeros([len(cells) + 1] * 3)
    for corner in _cell_corners(points):
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
    """Merge vertices with equal coordinates and drop the faces that collapse: the surface stays closed."""
    vertices, faces = mesh.vertices.numpy(), mesh.faces.numpy()
    _, first, merged = np.unique(vertices, axis=0, return_index=True, return_inverse=True)
    faces = first[merged.reshape(-1)][faces]
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(1)]
    used, faces = np.unique(faces, return_inverse=True)
    return Mesh(torch.from_numpy(vertices[used]), torch.from_numpy(faces.reshape(-1, 3)))


def _refined(field: _Field, vertices: Tensor, steps: int, reach: Tensor) -> Tensor:
    """Newton's method along the gradient. No vertex moves farther than `reach`, or to where |value| is larger."""
    x, (value, gradient) = vertices, field.gradients(vertices)
    step_size = torch.ones_like(value)
    for left in reversed(range(steps)):
        length = (value / gradient.norm(dim=-1).clamp(min=NORM_FLOOR)).clamp(-reach, reach) * step_size
        offset = x - length.unsqueeze(-1) * F.normalize(gradient, dim=-1, eps=NORM_FLOOR) - vertices
        moved = vertices + offset * (reach / offset.norm(dim=-1, keepdim=True)).clamp(max=1)
        # No step follows the last one: it needs no gradients.
        new_value, new_gradient = field.gradients(moved) if left else (field.values(moved), gradient)
        better = new_value.abs() < value.abs()
        x = moved.where(better.unsqueeze(-1), x)
        gradient = new_gradient.where(better.unsqueeze(-1), gradient)
        value = new_value.where(better, value)
        step_size = step_size.where(better, step_size / 2)
    return x


def _normals(field: _Field, mesh: Mesh, free: Tensor) -> Tensor:
    """Return unit normals of the vertices: the negative gradient, or where it is zero the mean of adjacent faces."""
    down = torch.zeros_like(mesh.vertices)
    down[free] = -field.gradients(mesh.vertices[free])[1]
    down = F.normalize(down, dim=-1, eps=NORM_FLOOR)
    return down.where(down.any(-1, keepdim=True), vertex_normals(mesh))
