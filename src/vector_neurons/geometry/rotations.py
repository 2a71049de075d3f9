"""Rotation matrices: random by protocol, from an axis and an angle, and the angle between two."""

import torch
from jaxtyping import Float
from torch import Tensor

from ..typing import Matrices, Points, Rotations


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


def angle(a: Matrices, b: Matrices) -> Float[Tensor, "*batch"]:
    """Angle in [0, π] of the rotation that takes `a` to `b`, in 2-D or 3-D; accurate at both ends of the range.

    >>> vn.geometry.rotations.angle(torch.eye(3), torch.eye(3)).item()
    0.0
    """
    dim = a.shape[-1]
    if dim not in (2, 3):
        raise ValueError(f"a rotation has one angle only in 2-D and 3-D, got matrices {tuple(a.shape)}")
    relative = a.mT @ b
    # ‖R - Rᵀ‖ = 2√2 sin θ and tr R = dim - 2 + 2 cos θ; arccos of the trace alone loses half the digits at 0 and π.
    sine = torch.linalg.matrix_norm(relative - relative.mT) / 8**0.5
    cosine = (relative.diagonal(dim1=-2, dim2=-1).sum(-1) - (dim - 2)) / 2
    return torch.atan2(sine, cosine)


def rotate(points: Points, R: Float[Tensor, "... dim dim"]) -> Points:
    """Rotate a cloud `(..., N, dim)` by `R`: one matrix, or one for each cloud of the batch.

    >>> vn.geometry.rotations.rotate(torch.randn(2, 10, 3), torch.eye(3)).shape
    torch.Size([2, 10, 3])
    """
    return points @ R.mT


__all__ = ["angle", "axis_angle", "draw", "rotate"]
