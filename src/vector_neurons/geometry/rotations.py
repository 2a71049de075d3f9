"""Rotation matrices: random by protocol, evenly spaced, from an axis and an angle, nearest to a matrix, and the angle
between two."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..typing import Matrices, Points, Rotations

SUPER_FIBONACCI = 1.533751168755204288118041  # the real root of ψ⁴ = ψ + 4 between 1 and 2


def draw(
    kind: Rotations,
    n: int,
    dim: int = 3,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "n dim dim"]:
    """Draw `n` random rotation matrices of R^dim.

    Args:
        kind: `"I"` is the identity; `"z"` rotates the first two coordinates by a uniform angle (in 3-D: about the z
            axis); `"SO3"` is uniform (Haar) over all rotations of R^dim.
        n: number of matrices.
        dim: dimension of the space.
        generator: source of the random numbers, on its own device, so that a seed gives the same rotations everywhere.
        dtype: of the result.
        device: of the result.

    >>> vn.geometry.rotations.draw("z", 5).shape
    torch.Size([5, 3, 3])
    """
    if n < 0 or dim < 2:
        raise ValueError(f"draw needs n >= 0 and dim >= 2, got n={n}, dim={dim}")
    # float64 until the end: an orthogonality error of float32 would be mistaken for a network's equivariance error.
    source = generator.device if generator is not None else torch.device("cpu")
    if kind == "I":
        matrices = torch.eye(dim, dtype=torch.float64).repeat(n, 1, 1)
    elif kind == "z":
        angle = 2 * torch.pi * torch.rand(n, dtype=torch.float64, device=source, generator=generator)
        matrices = torch.eye(dim, dtype=torch.float64, device=source).repeat(n, 1, 1)
        matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos()
        matrices[:, 1, 0] = angle.sin()
        matrices[:, 0, 1] = -angle.sin()
    elif kind == "SO3":
        gaussian = torch.randn(n, dim, dim, dtype=torch.float64, device=source, generator=generator)
        q, r = torch.linalg.qr(gaussian)
        # QR is unique, and q therefore Haar-distributed on O(dim), only once the diagonal of r is made positive.
        matrices = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        # Negating one column maps the reflections onto the rotations and keeps the measure.
        matrices[:, :, 0] *= torch.linalg.det(matrices).sign().unsqueeze(-1)
    else:
        raise ValueError(f'unknown rotations {kind!r}: choose "I", "z" or "SO3"')
    return matrices.to(device=device if device is not None else source, dtype=dtype)


def evenly_spaced(n: int, *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "n 3 3"]:
    """Rotations spread evenly over SO(3), the identity first: the super-Fibonacci spiral of Alexa (CVPR 2022).

    Args:
        n: number of matrices.
        dtype: of the result.

    Shape:
        - out: `(n, 3, 3)`

    >>> vn.geometry.rotations.evenly_spaced(100)[0].tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if n < 1:
        raise ValueError(f"evenly_spaced needs n >= 1, got {n}")
    s = torch.arange(n, dtype=torch.float64) + 0.5
    inner, outer = (s / n).sqrt(), (1 - s / n).sqrt()
    a, b = 2 * torch.pi * s / 2**0.5, 2 * torch.pi * s / SUPER_FIBONACCI
    w, x, y, z = outer * b.cos(), inner * a.sin(), inner * a.cos(), outer * b.sin()  # unit quaternions
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    matrices = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    matrices = matrices[0].mT @ matrices
    matrices[0] = torch.eye(3)  # but for rounding it is
    return matrices.to(dtype)


def axis_angle(axis: Float[Tensor, "*batch 3"], angle: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch 3 3"]:
    """Rotate by `angle` (radians) about `axis` (any length but zero), by Rodrigues' formula.

    >>> quarter = vn.geometry.rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(torch.pi / 2))
    >>> (quarter @ torch.tensor([1.0, 0.0, 0.0])).round(decimals=3).tolist()
    [0.0, 1.0, 0.0]
    """
    x, y, z = (axis / axis.norm(dim=-1, keepdim=True)).unbind(-1)
    o = torch.zeros_like(x)
    cross = torch.stack([o, -z, y, z, o, -x, -y, x, o], dim=-1).view(*axis.shape, 3)
    sine, cosine = angle.sin()[..., None, None], angle.cos()[..., None, None]
    identity = torch.eye(3, dtype=axis.dtype, device=axis.device)
    return identity + sine * cross + (1 - cosine) * cross @ cross


def nearest(matrices: Matrices) -> Matrices:
    """Rotation nearest to a matrix in the Frobenius norm, `argmin ‖R - M‖` over SO(dim) (orthogonal Procrustes).

    With the singular value decomposition `M = U S Vᵀ` it is `U diag(1, …, 1, det(U Vᵀ)) Vᵀ`. Gradients are those of the
    rotation, which are finite also where singular values coincide, and exact up to the second order. They grow as the
    inverse of `s₂ + s₃ det(U Vᵀ)`, relative to `s₁` and up to the inverse root of the machine epsilon. Where that sum
    is zero (matrices of rank 1, or reflected with `s₂ = s₃`) several rotations are nearest, and one of them is
    returned; for the zero matrix it is the identity.

    Shape:
        - matrices, out: `(..., dim, dim)`

    Equivariant to SO(dim) from both sides, invariant to positive scaling.

    >>> vn.geometry.rotations.nearest(torch.tensor([[2.0, 0.0], [0.0, 0.1]])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if matrices.ndim < 2 or matrices.shape[-1] != matrices.shape[-2]:
        raise ValueError(f"the nearest rotation is that of square matrices (..., 3, 3), got {tuple(matrices.shape)}")
    wide, floor = unit_size(matrices)
    known = wide.detach().isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    u, s, vh = torch.linalg.svd(wide.detach().where(known, 0))  # which refuses NaN; it comes back with `wide` below
    sign = torch.linalg.det(_product(u, vh)).sign().unsqueeze(-1)
    u = torch.cat([u[..., :-1], u[..., -1:] * sign.unsqueeze(-1)], dim=-1)
    s = torch.cat([s[..., :-1], s[..., -1:] * sign], dim=-1)
    rotation = _product(u, vh)
    # At the solution R, S = RᵀM is symmetric. A change of M turns R by the skew Ω with ΩS + SΩ = RᵀM - MᵀR, in the
    # basis V a division by sᵢ + sⱼ, not by sᵢ - sⱼ as in the gradient of the decomposition. Solving it twice from the
    # detached solution leaves the value as it is and has the first two derivatives of the solution.
    sums = (s.unsqueeze(-1) + s.unsqueeze(-2)).clamp_min(floor)
    for _ in range(2):
        aligned = _product(_product(vh, _product(rotation.mT, wide)), vh.mT)
        skew = _product(_product(vh.mT, (aligned - aligned.mT) / sums), vh)
        rotation = rotation + _product(rotation, skew + _product(skew, skew) / 2)
    return rotation.to(matrices.dtype)


def unit_size(matrices: Float[Tensor, "*batch rows columns"]) -> tuple[Float[Tensor, "*batch rows columns"], float]:
    """Matrices in float64, their largest entry 1 or -1, and the relative size of what counts as rounding.

    The divisor is a constant to the gradient: what follows must not depend on the scale.
    """
    # Apple's GPUs have no float64.
    wide = matrices.float() if matrices.device.type == "mps" else matrices.double()
    size = wide.detach().abs().amax((-2, -1), keepdim=True)
    floor = torch.finfo(torch.promote_types(matrices.dtype, torch.float32)).eps ** 0.5
    return wide / size.where(size > 0, 1), floor


def _product(a: Tensor, b: Tensor) -> Tensor:
    # Not `a @ b`, which autocast would round to half precision.
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)


def geodesic_distance(a: Matrices, b: Matrices) -> Float[Tensor, "*batch"]:
    """Angle in [0, π] of the rotation that takes `a` to `b`, in 2-D or 3-D; accurate at both ends of the range.

    Its gradient is finite everywhere, and 0 where the angle is exactly 0 or π.

    Shape:
        - a, b: `(..., 3, 3)` or `(..., 2, 2)`, rotation matrices
        - out: `(...)`, in radians

    Invariant to rotations of both from either side.

    >>> quarter = vn.geometry.rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(torch.pi / 2))
    >>> vn.geometry.rotations.geodesic_distance(torch.eye(3), quarter).rad2deg().round().item()
    90.0
    """
    if a.shape != b.shape or a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"the angle is that of two rotations (..., 3, 3), got {tuple(a.shape)} and {tuple(b.shape)}")
    dim = a.shape[-1]
    if dim not in (2, 3):
        raise ValueError(f"a rotation has one angle only in 2-D and 3-D, got matrices {tuple(a.shape)}")
    relative = _product(a.mT, b)
    # ‖R - Rᵀ‖ = 2√2 sin θ and tr R = dim - 2 + 2 cos θ; arccos of the trace alone loses half the digits at 0 and π.
    sine = torch.linalg.matrix_norm(relative - relative.mT) / 8**0.5
    cosine = (relative.diagonal(dim1=-2, dim2=-1).sum(-1) - (dim - 2)) / 2
    return torch.atan2(sine, cosine)


def geodesic_loss(
    found: Matrices, target: Matrices, *, symmetries: Float[Tensor, "group dim dim"] | None = None
) -> Float[Tensor, ""]:
    """Mean angle between rotations, in radians, for training a network that predicts poses.

    For symmetric objects, `minₛ ∠(found, target S)`: all poses that look the same are right.

    Args:
        found: predicted rotations, which take the object from its own coordinates to those of the scene.
        target: true rotations.
        symmetries: the rotations S, in the object's own coordinates, that map it to itself, the identity included.

    Shape:
        - found, target: `(..., 3, 3)`
        - symmetries: `(G, 3, 3)`
        - out: `()`

    Invariant to rotations of both from the left.

    >>> turn = vn.geometry.rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(torch.pi))
    >>> vn.geometry.rotations.geodesic_loss(turn, torch.eye(3)).rad2deg().round().item()
    180.0
    >>> vn.geometry.rotations.geodesic_loss(turn, torch.eye(3), symmetries=torch.stack([torch.eye(3), turn])).item()
    0.0
    """
    if symmetries is None:
        return geodesic_distance(found, target).mean()
    if symmetries.ndim != 3 or symmetries.shape[1:] != target.shape[-2:] or not len(symmetries):
        expected = ("G", *target.shape[-2:])
        raise ValueError(f"symmetries are rotations {expected} with G >= 1, got {tuple(symmetries.shape)}")
    same = _product(target.unsqueeze(-3), symmetries.to(target))
    return geodesic_distance(found.unsqueeze(-3).expand_as(same), same).min(dim=-1).values.mean()


def rotate(points: Points, R: Float[Tensor, "... dim dim"]) -> Points:
    """Rotate a cloud `(..., N, dim)` by `R`: one matrix, or one for each cloud of the batch.

    >>> vn.geometry.rotations.rotate(torch.randn(2, 10, 3), torch.eye(3)).shape
    torch.Size([2, 10, 3])
    """
    return points @ R.mT


__all__ = ["axis_angle", "draw", "evenly_spaced", "geodesic_distance", "geodesic_loss", "nearest", "rotate"]
