"""The scale of clouds: exact scaling by powers of two, and clouds of unit size with the way back."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..typing import Points

COINCIDE = 32  # units of rounding, relative to the largest coordinate: points nearer than this to their mean coincide

_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.6 has only the latter

# For every dtype: an integer of the same size, the bits of the mantissa, the bias of the exponent.
BITS = {
    torch.float32: (torch.int32, 23, 127),
    torch.float64: (torch.int64, 52, 1023),
    torch.float16: (torch.int16, 10, 15),
    torch.bfloat16: (torch.int16, 7, 127),
}


class UnitCloud(NamedTuple):
    """Clouds about the origin with RMS radius 1, and what leads back to the original ones.

    A network that is equivariant to O(3), applied to `points`, becomes equivariant to similarities (SIM(3), rotation,
    translation and scale together) if `restore` and `restore_vectors` are applied to what it predicts.
    """

    points: Float[Tensor, "*batch points dim"]
    center: Float[Tensor, "*batch 1 dim"]
    scale: Float[Tensor, "*batch 1 1"]

    def restore(self, points: Float[Tensor, "*batch others dim"]) -> Float[Tensor, "*batch others dim"]:
        """Carry points predicted in the unit cloud, any number of each, to the original one."""
        return points * self.scale + self.center

    def restore_vectors(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Carry displacements, or vector features `(*batch, ..., 3, C)`, to the original scale."""
        batch = self.scale.shape[:-2]
        return x * self.scale.view(*batch, *[1] * (x.ndim - len(batch)))


def unit_rms(points: Points, *, mask: Bool[Tensor, "*batch points"] | None = None) -> UnitCloud:
    """Center each cloud on its mean and scale it to RMS radius 1; the result can carry predictions back.

    Points that coincide get scale 1. Unlike that of `unit_ball`, the scale depends on all points and not on the
    farthest.

    Args:
        points: clouds.
        mask: True at points and False at padding, which is set to 0.

    Shape:
        - points: `(B, N, 3)`
        - mask: `(B, N)`
        - out: points `(B, N, 3)`, center `(B, 1, 3)`, scale `(B, 1, 1)`

    Equivariant to O(D), invariant to translations and scaling.

    >>> unit = vn.geometry.scale.unit_rms(torch.tensor([[1.0, 0.0, 0.0], [5.0, 0.0, 0.0]]))
    >>> unit.points.tolist(), unit.scale.item()
    ([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], 2.0)
    >>> unit.restore(unit.points).tolist()
    [[1.0, 0.0, 0.0], [5.0, 0.0, 0.0]]
    """
    if points.ndim < 2:
        raise ValueError(f"unit_rms takes clouds (B, N, 3), got {tuple(points.shape)}")
    if mask is not None and mask.shape != points.shape[:-1]:
        raise ValueError(
            f"the mask of clouds {tuple(points.shape)} is {tuple(points.shape[:-1])}, got {tuple(mask.shape)}"
        )
    present = torch.ones_like(points[..., :1], dtype=torch.bool) if mask is None else mask.unsqueeze(-1)
    points = points.where(present, 0)
    count = present.sum(-2, keepdim=True).clamp_min(1).to(points.dtype)
    # In units in which squares are in range; multiplication by a power of two is exact.
    unit = power_of_two(points, (-2, -1))
    center = (points * unit).sum(-2, keepdim=True) / count
    offset = (points * unit - center).where(present, 0)
    finer = power_of_two(offset, (-2, -1))
    square = (offset * finer).square().sum((-2, -1), keepdim=True) / count
    # What is left of equal points is the rounding of their mean, which must not be scaled to 1.
    apart = square > (COINCIDE * torch.finfo(points.dtype).eps * finer) ** 2
    radius = square.where(apart, 1).sqrt()
    scale = (radius / finer / unit).where(apart, 1)
    return UnitCloud(offset * (finer / radius).where(apart, 1 / unit), center / unit, scale)


def power_of_two(x: Float[Tensor, "*shape"], dim: int | tuple[int, ...]) -> Float[Tensor, "*kept"]:
    """The power of two that scales the largest absolute value along `dim`, which is kept, to between 1/2 and 1.

    It is 1 where all values are zero or one is not finite.

    >>> vn.geometry.scale.power_of_two(torch.tensor([[3.0, -5.0], [0.0, 0.0]]), dim=1).flatten().tolist()
    [0.125, 1.0]
    """
    if not x.numel():
        return torch.ones_like(x.detach().sum(dim, keepdim=True))
    largest = x.detach().abs().amax(dim, keepdim=True)
    if _is_exporting():  # ONNX has no view of the bits
        scale = torch.exp2(-1 - largest.log2().floor())
    else:
        # By the bits of the exponent: torch.frexp is not on every device, and torch.ldexp need not be exact.
        integer, mantissa, bias = BITS[x.dtype]
        exponent = largest.view(integer) >> mantissa
        scale = ((2 * bias - 1 - exponent).clamp(1, 2 * bias) << mantissa).view(x.dtype)
    return scale.where((largest > 0) & largest.isfinite(), 1)


__all__ = ["UnitCloud", "power_of_two", "unit_rms"]
