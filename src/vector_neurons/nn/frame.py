"""Three vectors per element, in which others are expressed: their inner products are invariant."""

import torch
from torch import nn

from ..typing import Frames, Mask, Vectors
from . import functional as VF
from .linear import Linear

SOFT_FLOOR = 0.1  # relative length below which `Frame` shortens vectors instead of normalizing their rounding


class Frame(nn.Module):
    """Three vectors per element, linear in its features and of unit length: `T = U V / ‖U V‖`, column by column.

    Where a column nearly vanishes, as in symmetric neighborhoods, it is shortened instead of normalized: below a tenth
    of the sample's RMS length its direction would be rounding.

    Args:
        channels: vectors in.
        orthonormal: Gram-Schmidt and a cross product instead: a rotation matrix, which tells mirror images apart.

    Shape:
        - x: `(B, ..., 3, channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., 3, 3)`, three vectors as columns

    Equivariant to O(3) (with `orthonormal` to SO(3) only), invariant to scaling.

    >>> vn.nn.hybrid.Frame(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 3])
    """

    def __init__(self, channels: int, *, orthonormal: bool = False) -> None:
        super().__init__()
        self.linear, self.orthonormal = Linear(channels, 2 if orthonormal else 3), orthonormal

    def forward(self, x: Vectors, mask: Mask | None = None) -> Frames:
        frame = VF.soft_unit(self.linear(x), floor=SOFT_FLOOR, mask=mask)
        return VF.orthonormal_frame(frame) if self.orthonormal else frame


class FixedFrame(nn.Module):
    """The axes of space as the frame of every element, for the scalar counterpart of a network: not equivariant.

    Shape:
        - x: `(B, ..., 3, channels)`
        - out: `(B, ..., 3, 3)`

    Not equivariant.

    >>> vn.nn.hybrid.FixedFrame()(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 3])
    """

    def forward(self, x: Vectors, mask: Mask | None = None) -> Frames:
        return torch.eye(3, dtype=x.dtype, device=x.device).expand(*x.shape[:-1], 3)


def frame_layer(channels: int, *, orthonormal: bool, fixed: bool) -> nn.Module:
    """A learned frame, or with `fixed` the axes of space."""
    return FixedFrame() if fixed else Frame(channels, orthonormal=orthonormal)
