"""Refine many candidate poses of one surface on another at once, by iterative closest points (ICP)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry import rotations

NORMAL_NEIGHBORS = 10  # points from which a normal is estimated
SPACING_NEIGHBOR = 4  # the distance to this neighbor is the local spacing of the points
POINT_WEIGHT = 0.1  # of distances between points, against 1 of distances from tangent planes
MAX_SCALE_STEP = 2.0


class Poses(NamedTuple):
    """Similarity transforms `x ↦ s R x + t`.

    Shape:
        - R: `(P, 3, 3)`
        - t: `(P, 3)`
        - s: `(P,)`
    """

    R: Float[Tensor, "poses 3 3"]
    t: Float[Tensor, "poses 3"]
    s: Float[Tensor, " poses"]

    @staticmethod
    def of(R: Float[Tensor, "poses 3 3"]) -> "Poses":
        """Rotations without translation and scale."""
        return Poses(R, R.new_zeros(len(R), 3), R.new_ones(len(R)))

    def select(self, index: Tensor) -> "Poses":
        """Some of the poses."""
        return Poses(*(x[index] for x in self))

    @staticmethod
    def cat(*poses: "Poses") -> "Poses":
        """All poses of several."""
        return Poses(*(torch.cat(parts) for parts in zip(*poses, strict=True)))


class Closest(NamedTuple):
    """For each query, its closest point on a surface: index, offset of the query from it, normal, distance.

    Shape:
        - nearest, distance: `(P, N)`
        - offset, normal: `(P, N, 3)`
    """

    nearest: Tensor
    offset: Tensor
    normal: Tensor
    distance: Tensor


class Surface:
    """Points of a surface with normals, in a tree.

    The distance of a query is that from the tangent plane of its closest point. Along the plane it counts only beyond
    the spacing of the points: two samples of one surface interleave, and have zero distance where it is flat.

    Args:
        points: `(N, 3)`, in float64.
    """

    def __init__(self, points: Float[Tensor, "points 3"]) -> None:
        from scipy.spatial import cKDTree  # type: ignore[import-untyped]

        self.points, self.tree = points, cKDTree(points.numpy())
        neighbors = min(NORMAL_NEIGHBORS + 1, len(points))
        distances, index = (torch.from_numpy(x) for x in self.tree.query(points.numpy(), k=neighbors))
        local = points[index] - points[index].mean(1, keepdim=True)
        self.normals = torch.linalg.eigh(local.mT @ local).eigenvectors[..., 0]
        self.spacing = distances[:, min(SPACING_NEIGHBOR, neighbors - 1)]

    def closest(self, queries: Float[Tensor, "poses queries 3"]) -> Closest:
        """Find the closest points."""
        index = torch.from_numpy(self.tree.query(queries.numpy())[1])
        offset, normal = queries - self.points[index], self.normals[index]
        height = (normal * offset).sum(-1)
        along = (offset.square().sum(-1) - height.square()).clamp_min(0).sqrt()
        beyond = (along - self.spacing[index]).clamp_min(0)
        return Closest(index, offset, normal, torch.hypot(height, beyond))


class Registration:
    """A source and a target surface, and the poses of the source on the target.

    Args:
        source: points `(N, 3)`, in float64.
        target: points `(M, 3)`, in float64.
        overlap: fraction of the points of each that the other has, too; the rest, those farthest away, is left out.
        scale: refine the scale of poses, too.
    """

    def __init__(
        self, source: Float[Tensor, "n 3"], target: Float[Tensor, "m 3"], *, overlap: float = 1.0, scale: bool = False
    ) -> None:
        self.source, self.target, self.overlap, self.scale = Surface(source), Surface(target), overlap, scale

    def residual(self, poses: Poses) -> Float[Tensor, " poses"]:
        """Root mean square of the distances both ways."""
        both = self._closest(poses)
        means = [(w * x.distance.square()).sum(1) / w.sum(1) for x, w in zip(both, map(self._kept, both), strict=True)]
        return torch.stack(means).mean(0).sqrt()

    def refine(self, poses: Poses, steps: int) -> Poses:
        """Minimize distances from tangent planes, both ways, by Gauss-Newton steps.

        A tenth of the distances between points is added. It keeps a pose where the planes leave it free: a bottle can
        rotate about its axis.
        """
        for _ in range(steps):
            poses = self._step(poses)
        return poses

    def _step(self, poses: Poses) -> Poses:
        forward, backward = self._closest(poses)
        rotated = poses.s[:, None, None] * self.source.points @ poses.R.mT
        every = torch.arange(len(rotated)).unsqueeze(-1)
        x = torch.cat([rotated, rotated[every, backward.nearest]], dim=1)
        offset = torch.cat([forward.offset, -backward.offset], dim=1)
        normal = torch.cat([forward.normal, backward.normal], dim=1)
        weight = torch.cat([self._kept(forward), self._kept(backward)], dim=1)
        # A pose changes by ω × x + τ (+ σ x), linear in the unknowns; n · (ω × x) = ω · (x × n).
        rows = [torch.linalg.cross(x, normal), normal, *([(normal * x).sum(-1, keepdim=True)] if self.scale else [])]
        planes = torch.cat(rows, dim=-1)
        weight = weight.unsqueeze(-1)
        matrix = (weight * planes).mT @ planes
        right = ((weight * planes) * (normal * offset).sum(-1, keepdim=True)).sum(1)
        for_points, right_points = _point_equations(x, offset, weight)
        size = matrix.shape[-1]  # 6, or 7 with the scale
        matrix = matrix + POINT_WEIGHT * for_points[:, :size, :size]
        right = right + POINT_WEIGHT * right_points[:, :size]
        change = -torch.linalg.lstsq(matrix, right.unsqueeze(-1)).solution.squeeze(-1)
        omega, tau = change[:, :3], change[:, 3:6]
        angle = omega.norm(dim=-1)
        axis = omega.where(angle.unsqueeze(-1) > 0, 1)
        factor = (1 + change[:, 6]).clamp(1 / MAX_SCALE_STEP, MAX_SCALE_STEP) if self.scale else 1
        return Poses(rotations.axis_angle(axis, angle) @ poses.R, poses.t + tau, poses.s * factor)

    def _closest(self, poses: Poses) -> tuple[Closest, Closest]:
        """From the source to the target and back, both in the coordinates of the target."""
        R, t, s = poses.R, poses.t.unsqueeze(1), poses.s[:, None, None]
        forward = self.target.closest(s * self.source.points @ R.mT + t)
        index, offset, normal, distance = self.source.closest((self.target.points - t) @ R / s)
        return forward, Closest(index, s * offset @ R.mT, normal @ R.mT, distance * poses.s.unsqueeze(-1))

    def _kept(self, closest: Closest) -> Float[Tensor, "poses points"]:
        """1 for the points of the overlap, 0 for those that are farther away."""
        distance = closest.offset.norm(dim=-1)
        keep = max(3, round(self.overlap * distance.shape[1]))
        return (distance <= distance.kthvalue(min(keep, distance.shape[1]), dim=1, keepdim=True).values).double()


def _point_equations(x: Tensor, offset: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Normal equations of `Σ w |ω × x + τ + σ x + offset|²` in (ω, τ, σ), in closed form."""
    first, second = (weight * x).sum(1), (weight * x).mT @ x
    square = second.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    identity = torch.eye(3, dtype=x.dtype).expand_as(second)
    zero = torch.zeros_like(first).unsqueeze(-1)
    # [first]× by its columns, which are first × e₁, e₂, e₃
    skew = torch.linalg.cross(first.unsqueeze(-1).expand_as(second), identity, dim=1)
    matrix = torch.cat(
        [
            torch.cat([square * identity - second, skew, zero], dim=-1),
            torch.cat([skew.mT, weight.sum(1, keepdim=True) * identity, first.unsqueeze(-1)], dim=-1),
            torch.cat([zero.mT, first.unsqueeze(1), square], dim=-1),
        ],
        dim=1,
    )
    pulls = [torch.linalg.cross(x, offset), offset, (x * offset).sum(-1, keepdim=True)]
    return matrix, (weight * torch.cat(pulls, dim=-1)).sum(1)
