"""The rotation between two scans of an object, or two objects of a class, from equivariant features and ICP."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry import rotations
from ..geometry.sampling import ball
from ..mesh import Mesh, read
from ..models import store
from ..models.base import Classifier
from ..nn.features import Features
from .icp import Poses, Registration
from .inputs import Sampled, Source, name_source, read_mesh, sample_clouds
from .predict import DEFAULT_POINTS
from .retrieval import find_classifier

COARSE_POINTS = 256  # of each shape, while all candidates are refined
COARSE_STEPS, FINE_STEPS = 8, 20  # of ICP
FINALISTS = 4  # best candidates, which are refined with all points
PROMISING = 2.0  # candidates with a residual of at most so many times the best one are refined with all points
EQUIVALENT = 1.15  # poses with a residual of at most so many times the best one fit equally well
SAME_POSE = 20.0  # degrees between candidates that are one pose
SAME_AXIS = 15.0  # degrees
ANGLES = tuple(sorted({*range(30, 360, 30), *range(45, 360, 90)}))  # degrees, of candidates about each axis
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
    sampled = [_sample(x, network, seed) for x in (source, target)]
    features = [_mean_vectors(network, x.clouds) for x in sampled]
    points = [torch.unique((x.clouds.double() * x.size + x.center).flatten(0, 1), dim=0) for x in sampled]
    (a_center, a_size), (b_center, b_size) = map(ball, points)
    if not scale:
        a_size = b_size
    a, b = (points[0] - a_center) / a_size, (points[1] - b_center) / b_size
    found, residual, poses = _search(a, b, features[0], features[1], scale=scale, overlap=overlap, seed=seed)
    factor = (found.s[0] * b_size / a_size).item()
    R = found.R[0]
    translation = b_center[0] + b_size[0] * found.t[0] - factor * a_center[0] @ R.mT
    return Alignment(R, translation, factor, residual, describe_symmetry(poses), poses)


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
    axis = axis * axis[axis.abs().argmax()].sign() + 0.0  # no minus zero
    what = "any angle" if folds > MAX_FOLDS else f"{folds}-fold"
    words = f"{what} about ({', '.join(f'{x:.2f}' for x in axis.tolist())})"
    return words if about.all() else f"{words}, and about other axes"


def _sample(source: Source, model: Classifier, seed: int) -> Sampled:
    with name_source(source):
        # Files in their own axes, of which the transform is to be.
        mesh = read(source) if isinstance(source, str | Path) else read_mesh(source)
        return sample_clouds(mesh, store.metadata_of(model).points or DEFAULT_POINTS, count=2, seed=seed)


def _mean_vectors(model: Classifier, clouds: Float[Tensor, "count points 3"]) -> Float[Tensor, "3 channels"]:
    """Means of the vector features over the points, which rotate with the shape."""
    encoding = model.encode(clouds)
    if encoding.frame is None:
        raise ValueError(f"a {type(model).__name__} with scalar neurons has no vectors that rotate: use vector neurons")
    x: Any = encoding.features
    return (x.vectors if isinstance(x, Features) else x).mean((0, 1)).double()


def _search(
    a: Tensor, b: Tensor, a_vectors: Tensor, b_vectors: Tensor, *, scale: bool, overlap: float, seed: int
) -> tuple[Poses, float, Tensor]:
    """The best pose of a on b, its residual, and the rotations that fit as well."""
    generator = torch.Generator().manual_seed(seed)
    few = [x[torch.randperm(len(x), generator=generator)[:COARSE_POINTS]] for x in (a, b)]
    coarse = Registration(*few, overlap=overlap, scale=scale)
    fine = Registration(a, b, overlap=overlap, scale=scale)
    kabsch = rotations.nearest(b_vectors @ a_vectors.mT)
    a_axes, b_axes = _principal_axes(a), _principal_axes(b)
    flips = (b_axes * b_axes.new_tensor(FLIPS).unsqueeze(1)) @ a_axes.mT
    axes = torch.cat([b_axes.mT, torch.linalg.svd(b_vectors).U[:, :1].mT])
    candidates = coarse.refine(Poses.of(torch.cat([_rotations_about(axes) @ kabsch, flips])), COARSE_STEPS)
    best = fine.refine(candidates.select(fine.residual(candidates).argsort()[:FINALISTS]), FINE_STEPS)
    best = best.select(fine.residual(best).argsort()[:1])
    # If the target is symmetric, rotations of the best pose about its axes fit as well.
    turns = _rotations_about(axes) @ best.R
    probes = coarse.refine(Poses(turns, best.t.expand(len(turns), 3), best.s.expand(len(turns))), COARSE_STEPS)
    residual = fine.residual(probes)
    limit = PROMISING * torch.minimum(residual.min(), fine.residual(best)[0])
    every = Poses.cat(best, fine.refine(probes.select(residual <= limit), FINE_STEPS // 2))
    residual = fine.residual(every)
    fits = residual <= EQUIVALENT * max(residual.min().item(), fine.target.noise)
    every, residual = every.select(fits), residual[fits]
    misfit = (b_vectors - every.R @ a_vectors).norm(dim=(-2, -1))
    found = every.select(misfit.argsort()[:1])
    poses = _distinct(torch.cat([found.R, every.R[residual.argsort()]]))
    return found, residual[misfit.argmin()].item(), poses


def _principal_axes(points: Float[Tensor, "points 3"]) -> Float[Tensor, "3 3"]:
    axes = torch.linalg.eigh(torch.cov(points.mT)).eigenvectors
    return axes * torch.linalg.det(axes)


def _rotations_about(axes: Float[Tensor, "axes 3"]) -> Float[Tensor, "rotations 3 3"]:
    """The identity, and rotations about each axis."""
    angles = torch.tensor(ANGLES, dtype=axes.dtype).deg2rad()
    turns = rotations.axis_angle(axes.repeat_interleave(len(angles), 0), angles.repeat(len(axes)))
    return torch.cat([torch.eye(3, dtype=axes.dtype).unsqueeze(0), turns])


def _distinct(poses: Float[Tensor, "poses 3 3"]) -> Float[Tensor, "distinct 3 3"]:
    """Poses that are not close to an earlier one."""
    kept = poses[:1]
    for pose in poses[1:]:
        if rotations.geodesic_distance(kept, pose.expand_as(kept)).rad2deg().min() > SAME_POSE:
            kept = torch.cat([kept, pose.unsqueeze(0)])
    return kept


def axis_and_angle(R: Float[Tensor, "*batch 3 3"]) -> tuple[Float[Tensor, "*batch 3"], Float[Tensor, "*batch"]]:
    """The unit axis of rotations, and their angle in [0, 180] degrees."""
    angle = rotations.geodesic_distance(torch.eye(3, dtype=R.dtype).expand_as(R), R).rad2deg()
    # The axis is the eigenvector of R + Rᵀ with the largest eigenvalue, also at 180°; its sign is that of R - Rᵀ.
    axis = torch.linalg.eigh(R + R.mT).eigenvectors[..., -1]
    skew = R - R.mT
    turning = torch.stack([skew[..., 2, 1], skew[..., 0, 2], skew[..., 1, 0]], dim=-1)
    flipped = (axis * turning).sum(-1, keepdim=True) < 0
    return torch.where(flipped, -axis, axis), angle
