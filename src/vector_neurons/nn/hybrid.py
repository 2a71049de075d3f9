"""Scalars beside vectors: features of both kinds, and the layers that mix them.

An invariant scalar stream learns faster than vectors alone; vectors carry the directions, and a learned frame turns
them into scalars wherever they are needed. The idea of VN-In, applied at every layer and every edge.
"""

import torch
from torch import nn

from ..typing import Mask, Norm
from . import _dispatch, scalar
from ._checks import check_scalars, check_vectors
from .features import Features
from .frame import FixedFrame, Frame, frame_layer
from .frame_conv import FrameConv
from .linear import Linear


class HybridBlock(nn.Module):
    """A block on features of both kinds: scalars see the vectors in a frame, vectors are gated by scalars.

    `s' = act(norm(W [s, Tᵀ V]))` with a learned frame T, and `V' = sigmoid(G s') ⊙ (W V)`.

    Args:
        in_channels: scalars and vectors in.
        out_channels: scalars and vectors out.
        norm: of the scalars, `"batch"`, `"layer"` or `"none"`.
        negative_slope: of the leaky ReLU of the scalars.
        orthonormal: as in `Frame`.
        fixed: use the axes of space as frame, for a scalar counterpart.

    Shape:
        - x: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) (with `orthonormal` to SO(3) only) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> y = vn.nn.hybrid.HybridBlock((8, 4), (16, 6))(x)
    >>> y.scalars.shape, y.vectors.shape
    (torch.Size([2, 10, 16]), torch.Size([2, 10, 3, 6]))
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        norm: Norm = "batch",
        negative_slope: float = 0.1,
        orthonormal: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, (scalars, vectors) = in_channels, in_channels
        self.frame = frame_layer(vectors, orthonormal=orthonormal, fixed=fixed)
        self.block = scalar.Block(scalars + 3 * vectors, out_channels[0], norm=norm, negative_slope=negative_slope)
        self.linear = Linear(vectors, out_channels[1])
        self.gate = nn.Linear(out_channels[0], out_channels[1])

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_scalars(self, x.scalars, self.in_channels[0])
        check_vectors(self, x.vectors, self.in_channels[1], rank=3)
        invariants = _dispatch.project_onto_frame(x.vectors, self.frame(x.vectors, mask))
        s = self.block(torch.cat([x.scalars, invariants], dim=-1), mask)
        return Features(s, self.gate(s).sigmoid().unsqueeze(-2) * self.linear(x.vectors))


from .propagation import FeaturePropagation  # noqa: E402 - it holds a HybridBlock

__all__ = ["FeaturePropagation", "Features", "FixedFrame", "Frame", "FrameConv", "HybridBlock"]
