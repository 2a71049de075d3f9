"""The rotation between two scans of an object, or two objects of a class, from equivariant features and ICP."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry import rotations
from ..geometry.sampling import farthest_points
from ..mesh import Mesh, read, sample
from ..models import store
from ..models.base import Classifier
from ..nn.features import Features
from .icp import Poses, Registration
from .inputs import Sampled, Source, name_source, read_mesh, sample_for
from .retrieval import find_classifier

COARSE_POINTS = 128  # of each shape, while all candidates are refined
FINE_POINTS = 512  # of each shape, while the best of them are
DENSE_POINTS = 4096  # of each shape, while the answer is refined
COARSE_STEPS, FEW_STEPS, FINE_STEPS, DENSE_STEPS = 8, 6, 20, 10  # of ICP
SHORTLIST = 12  # candidates that are refined with more points
EQUIVALENT = 1.15  # poses with a residual of at most so many times the best one fit equally well
SAME_POSE = 20.0  # degrees between candidates that are one pose
SAME_AXIS = 15.0  # degrees
ANGLES = tuple(range(30, 360, 30))  # degrees, of candidates about each axis; ICP finds those between
MAX_FOLDS = 6  # a shape with more rotations about an axis than this is called a solid of revolution
FLIPS = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))


@dataclass(frozen=True)
class Alignment:
    """The transform that takes a source to the pose of a target, `x ↦ scale · R x + translation`.

    Args:
        rotation: R.
        translation: in the units of the target.
        scale: 1 unless it was asked for.
        residual: root mean square distance of the two surfaces, both ways, relative to the radius of the target.
        symmetric: how the target maps to itself, such as `"2-fold about (0.00, 0.00, 1.00)"`; None if it does not.
        poses: all rotations that fit as well as `rotation`, which is the first.

    Shape:
        - rotation: `(3, 3)`, float64
        - translation: `(3,)`, float64
        - poses: `(P, 3, 3)`, float64
    """

    rotation: Float[Tensor, "3 3"]
    translation: Float[Tensor, "3"]
    scale: float
    residual: float
    symmetric: str | None
    poses: Float[Tensor, "poses 3 3"]

    def apply(self, mesh: Mesh) -> Mesh:
        """Move a mesh or a cloud to the pose of the target."""
        R = self.rotation
        normals = None if mesh.normals is None else mesh.normals.double() @ R.mT
        return replace(mesh, vertices=self.scale * mesh.vertices.double() @ R.mT + self.translation, normals=normals)


@torch.no_grad()
def align(
    source: Source,
    target: Source,
    model: nn.Module | str | Path,
    *,
    scale: bool = False,
    overlap: float = 1.0,
    seed: int = 0,
) -> Alignment:
    """Find the rotation and translation that take one shape to the pose of another, and the scale if asked for.

    Means over the points of a network's vector features rotate with the shape, so that the Kabsch algorithm on the
    matched channels of both shapes gives the rotation in closed form. This pose, rotations of it about the axes of the
    target, and the four rotations between principal axes are refined by ICP. Of the poses that fit equally well, the
    one that fits the features best is returned.

    Args:
        source: path of a mesh or cloud, a `vn.mesh.Mesh`, a trimesh object, or an array or tensor of points `(N, 3)`.
        target: the same object in another pose, sampled differently or in part; or another object of its class.
        model: a classifier with equivariant features, such as `FrameNet` or `DGCNN` with vector neurons; the folder of
            a run or of a saved model, or a name of `vn.pretrained`.
        scale: find the scale, too.
        overlap: fraction of each shape that the other has, too, if they are partial scans.
        seed: of the samples.

    Raises:
        ValueError: a shape or the model cannot be used; the message is one line.

    >>> points = torch.randn(600, 3) * torch.tensor([1.0, 2.0, 4.0])
    >>> turn = vn.geometry.rotations.draw("SO3", 1)[0]
    >>> found = vn.inference.align(points, points @ turn.mT, vn.models.FrameNet(4, k=8, width=16).eval())
    >>> vn.geometry.rotations.geodesic_distance(found.rotation.float(), turn).item() < 0.01
    True
    """
    if not 0 < overlap <= 1:
        raise ValueError(f"overlap is a fraction of the points, in (0, 1], got {overlap}")
    network = find_classifier(model)
    # Other samples of both, so that the same mesh twice is no exact fit, in which no symmetry would show.
    a, b = _sample(source, "the source", network, seed), _sample(target, "the target", network, seed + 1)
    features = [mean_vectors(network, x.clouds) for x in (a, b)]
    relative = 1.0 if scale else (a.size / b.size).item()  # size of the source, in units of the target's
    options: dict[str, Any] = {"scale": scale, "overlap": overlap}
    points = relative * _dense(a, seed), _dense(b, seed + 1)
    found, poses = _search(Registration(*map(_thin, points), **options), features[0], features[1], seed)
    dense = Registration(*points, **options)
    found = dense.refine(found, DENSE_STEPS)
    poses[0] = R = found.R[0]
    factor = found.s[0] * relative * b.size / a.size
    translation = b.center + b.size * found.t[0] - factor * a.center @ R.mT
    residual = dense.residual(found).item()
    return Alignment(R, translation, factor.item() if scale else 1.0, residual, describe_symmetry(poses), poses)


def describe_symmetry(poses: Float[Tensor, "poses 3 3"]) -> str | None:
    """Say in words by which rotations the poses differ from the first; None if there is only one.

    >>> half = vn.geometry.rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(torch.pi))
    >>> describe_symmetry(torch.stack([torch.eye(3), half]))
    '2-fold about (0.00, 0.00, 1.00)'
    """
    if len(poses) < 2:
        return None
    turns = poses[1:] @ poses[0].mT
    axes, angles = axis_and_angle(turns)
    parallel = (axes @ axes.mT).abs() > math.cos(math.radians(SAME_AXIS))
    main = int(parallel.sum(-1).argmax())
    about, axis = parallel[main], axes[main]
    signed = (axes @ axis).sign() * angles
    ordered = torch.cat([angles.new_tensor([0.0, 360.0]), signed[about] % 360]).sort().values
    folds = round(360 / ordered.diff().clamp_min(SAME_POSE).min().item())
    axis = axis * axis[axis.abs().argmax()].sign()
    # Of a solid of revolution some of the candidates fit, at no regular angles.
    free = folds > MAX_FOLDS or (folds > 4 and 1 + about.sum() < folds)
    what = "any angle" if free else f"{folds}-fold"
    words = f"{what} about ({', '.join(f'{round(x, 2) + 0.0:.2f}' for x in axis.tolist())})"  # without -0.00
    return words if about.all() else f"{words}, and about other axes"


def _sample(source: Source, name: str, model: Classifier, seed: int) -> Sampled:
    with name_source(source, name):
        # Files in their own axes, of which the transform is to be.
        mesh = read(source) if isinstance(source, str | Path) else read_mesh(source)
        return sample_for(mesh, store.metadata_of(model), count=2, seed=seed)


def mean_vectors(model: Classifier, clouds: Float[Tensor, "count points 3"]) -> Float[Tensor, "3 channels"]:
    """Means of the vector features over the points, which rotate with the shape."""
    encoding = model.encode(clouds)
    if encoding.frame is None:
        raise ValueError(f"a {type(model).__name__} with scalar neurons has no vectors that rotate: use vector neurons")
    x: Any = encoding.features
    return (x.vectors if isinstance(x, Features) else x).mean((0, 1)).double()


def _dense(sampled: Sampled, seed: int) -> Float[Tensor, "points 3"]:
    """Many points of a shape, normalized as its clouds are."""
    generator, mesh = torch.Generator().manual_seed(seed), sampled.mesh
    if mesh.is_cloud:
        points = mesh.vertices[torch.randperm(len(mesh.vertices), generator=generator)[:DENSE_POINTS]].double()
    else:
        points, _ = sample(mesh, DENSE_POINTS, generator=generator)
    return (points - sampled.center) / sampled.size


def _thin(points: Float[Tensor, "points 3"]) -> Float[Tensor, "fewer 3"]:
    """Evenly spaced points: random ones leave gaps, and residuals of equivalent poses would differ by more."""
    if len(points) <= FINE_POINTS:
        return points
    return points[farthest_points(points.float().unsqueeze(0), FINE_POINTS)[0]]


def _search(fine: Registration, a_vectors: Tensor, b_vectors: Tensor, seed: int) -> tuple[Poses, Tensor]:
    """The best pose of the source on the target, and all rotations that fit as well."""
    generator = torch.Generator().manual_seed(seed)
    a, b = fine.source.points, fine.target.points
    some = [x[torch.randperm(len(x), generator=generator)[:COARSE_POINTS]] for x in (a, b)]
    coarse = Registration(*some, overlap=fine.overlap, scale=fine.scale)
    kabsch = rotations.nearest(b_vectors @ a_vectors.mT)
    a_axes, b_axes = principal_axes(a), principal_axes(b)
    flips = (b_axes * b_axes.new_tensor(FLIPS).unsqueeze(1)) @ a_axes.mT
    axes = torch.cat([b_axes.mT, torch.linalg.svd(b_vectors).U[:, :1].mT])
    candidates = coarse.refine(Poses.of(torch.cat([_rotations_about(axes) @ kabsch, flips])), COARSE_STEPS)
    best = fine.refine(_best(coarse, candidates, SHORTLIST), FEW_STEPS)
    best = fine.refine(_best(fine, best, 1), FINE_STEPS)
    # If the target is symmetric, rotations of the best pose about its axes fit as well.
    turns = _rotations_about(axes) @ best.R
    probes = coarse.refine(Poses(turns, best.t.expand(len(turns), 3), best.s.expand(len(turns))), COARSE_STEPS)
    every = Poses.cat(best, fine.refine(_best(coarse, probes, 2 * SHORTLIST), FEW_STEPS))
    residual = fine.residual(every)
    fits = residual <= EQUIVALENT * residual.min()
    every, residual = every.select(fits), residual[fits]
    misfit = (b_vectors - every.R @ a_vectors).norm(dim=(-2, -1))
    found = every.select(misfit.argsort()[:1])
    R = torch.cat([found.R, every.R[residual.argsort()]])
    return found, R[_distinct(R)]


def principal_axes(points: Float[Tensor, "points 3"]) -> Float[Tensor, "3 3"]:
    """The principal axes of a cloud as columns, a rotation; each has either sign."""
    axes = torch.linalg.eigh(torch.cov(points.mT)).eigenvectors
    return axes * torch.linalg.det(axes)


def _rotations_about(axes: Float[Tensor, "axes 3"]) -> Float[Tensor, "rotations 3 3"]:
    """The identity, and rotations about each axis."""
    angles = torch.tensor(ANGLES, dtype=axes.dtype).deg2rad()
    turns = rotations.axis_angle(axes.repeat_interleave(len(angles), 0), angles.repeat(len(axes)))
    return torch.cat([torch.eye(3, dtype=axes.dtype).unsqueeze(0), turns])


def _best(registration: Registration, poses: Poses, count: int) -> Poses:
    """The poses that fit best, without those close to a better one."""
    poses = poses.select(registration.residual(poses).argsort())
    return poses.select(_distinct(poses.R)[:count])


def _distinct(R: Float[Tensor, "poses 3 3"]) -> Int[Tensor, " distinct"]:
    """Indices of rotations that are not close to an earlier one."""
    cosine = (torch.einsum("aij,bij->ab", R, R) - 1) / 2
    close = (cosine > math.cos(math.radians(SAME_POSE))).tolist()
    kept: list[int] = []
    for i in range(len(R)):
        if not any(close[i][j] for j in kept):
            kept.append(i)
    return torch.tensor(kept)


def axis_and_angle(R: Float[Tensor, "*batch 3 3"]) -> tuple[Float[Tensor, "*batch 3"], Float[Tensor, "*batch"]]:
    """The unit axis of rotations, and their angle in [0, 180] degrees."""
    angle = rotations.geodesic_distance(torch.eye(3, dtype=R.dtype).expand_as(R), R).rad2deg()
    # The axis is the eigenvector of R + Rᵀ with the largest eigenvalue, also at 180°; its sign is that of R - Rᵀ.
    axis = torch.linalg.eigh(R + R.mT).eigenvectors[..., -1]
    skew = R - R.mT
    turning = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], dim=-1)
    flipped = (axis * turning).sum(-1, keepdim=True) < 0
    return torch.where(flipped, -axis, axis), angle
