"""Blocks on features of both kinds: scalars use the vectors in a learned frame, vectors are gated by scalars."""

from typing import Any

import torch
from torch import nn

from ..typing import ActivationFunction, DirectionSource, Mask, Norm
from . import _dispatch, scalar
from . import linear as vector
from ._checks import check_scalars, check_vectors
from ._range import in_float64, needs_float64
from .block import MLPBase
from .features import Channels, Features
from .frame import frame_layer
from .norm import NORMS


class HybridBlock(nn.Module):
    """A block on features of both kinds: scalars see the vectors in a frame, vectors are gated by scalars.

    `s' = act(norm(W [s, Tᵀ V]))` with a learned frame T, and `V' = sigmoid(G s') ⊙ norm(W V)`.

    Args:
        in_channels: scalars and vectors in.
        out_channels: scalars and vectors out.
        norm: of the scalars, `"batch"`, `"layer"` or `"none"`.
        vector_norm: of the vectors, `"none"` or any norm of vectors.
        negative_slope: of the leaky ReLU of the scalars.
        activation: any function in place of the leaky ReLU, or its name.
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
        vector_norm: Norm = "none",
        negative_slope: float = 0.1,
        activation: ActivationFunction | None = None,
        orthonormal: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, (scalars, vectors) = in_channels, in_channels
        self.frame = frame_layer(vectors, orthonormal=orthonormal, fixed=fixed)
        self.block = scalar.Block(
            scalars + 3 * vectors, out_channels[0], norm=norm, negative_slope=negative_slope, activation=activation
        )
        self.linear = vector.Linear(vectors, out_channels[1])
        self.gate = nn.Linear(out_channels[0], out_channels[1])
        self.vector_norm = NORMS[vector_norm](out_channels[1])

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, self.in_channels, rank=2)
        invariants = _dispatch.project_onto_frame(x.vectors, self.frame(x.vectors, mask))
        s = self.block(torch.cat([x.scalars, invariants], dim=-1), mask)
        v = self.vector_norm(self.linear(x.vectors), mask)
        return Features(s, self.gate(s).sigmoid().unsqueeze(-2) * v)


def check_features(layer: nn.Module, x: Any, channels: tuple[int | None, int | None], *, rank: int = 1) -> None:
    """Refuse what is not features of both kinds, and wrong shapes. `rank` is the least of the scalars."""
    if not isinstance(x, Features):
        name = type(layer).__name__
        raise TypeError(f"{name} takes Features(scalars, vectors), got a {type(x).__name__}: see nn.hybrid.lift")
    check_vectors(layer, x.vectors, channels[1], rank=rank + 1)
    check_scalars(layer, x.scalars, channels[0], rank=rank)
    if x.scalars.shape[:-1] != x.vectors.shape[:-2]:
        shapes = f"scalars {tuple(x.scalars.shape)} and vectors {tuple(x.vectors.shape)}"
        raise ValueError(f"{type(layer).__name__} takes scalars and vectors of the same elements, got {shapes}")


class Block(HybridBlock):
    """`HybridBlock` with the arguments of the other kits; its norm is that of scalars and of vectors.

    Arguments as in the vector layer; those about directions (`direction`, `shared_direction`) and `eps` are accepted
    and ignored: vectors are gated, not cut along a direction.

    Shape:
        - x: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Block((8, 4), (16, 6))(x).channels
    Channels(scalars=16, vectors=6)
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        norm: Norm = "batch",
        direction: DirectionSource = "input",
        negative_slope: float = 0.2,
        activation: ActivationFunction | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        if direction not in ("input", "output"):
            raise ValueError(f'unknown direction {direction!r}: choose "input" or "output"')
        super().__init__(
            in_channels,
            out_channels,
            norm=norm,
            vector_norm=norm,
            negative_slope=negative_slope,
            activation=activation,
        )

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, self.in_channels, rank=2)
        if needs_float64(x.vectors):
            return Features(*in_float64(self.forward, x, mask))
        return super().forward(x, mask)


class Linear(nn.Module):
    """A linear map of each kind: `s' = W s + b` and `V' = W V`. Kinds mix in `Block`, not here.

    Arguments as in the scalar layer; the bias is that of the scalars.

    Shape:
        - x: `(..., S)` and `(..., 3, C)`
        - out: the same with other numbers of channels

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Linear((8, 4), (16, 6))(x).channels
    Channels(scalars=16, vectors=6)
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        num_elements: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        if in_channels[0] == 0 < out_channels[0]:
            raise ValueError("Linear maps scalars to scalars, and there are none in: start with a Block")
        self.scalars = scalar.Linear(in_channels[0], out_channels[0], num_elements=num_elements, bias=bias)
        self.vectors = vector.Linear(in_channels[1], out_channels[1], num_elements=num_elements)

    def forward(self, x: Features) -> Features:
        check_features(self, x, self.in_channels)
        return Features(self.scalars(x.scalars), self.vectors(x.vectors))


class ResidualBlock(nn.Module):
    """Add a block and a linear map to features of both kinds: `S x + B Block(x)`.

    The shortcut S is the identity if the widths agree, else a linear map. B starts at zero, so that a new block is its
    shortcut. Arguments as in the vector layer; those about directions and `eps` are accepted and ignored.

    Shape:
        - x: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.ResidualBlock((8, 4), (16, 6))(x).channels
    Channels(scalars=16, vectors=6)
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int] | None = None,
        hidden: tuple[int, int] | None = None,
        *,
        norm: Norm = "batch",
        negative_slope: float = 0.2,
        activation: ActivationFunction | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        hidden = out_channels if hidden is None else hidden
        self.block = Block(in_channels, hidden, norm=norm, negative_slope=negative_slope, activation=activation)
        self.linear_out = Linear(hidden, out_channels)
        for kind in (self.linear_out.scalars, self.linear_out.vectors):
            nn.init.zeros_(kind.weight)
        same = tuple(in_channels) == tuple(out_channels)
        self.shortcut = nn.Identity() if same else Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        return self.shortcut(x) + self.linear_out(self.block(x, mask))


class MLP(MLPBase):
    """A `Block` from width to width, and a `Linear` to the last.

    Arguments as in the vector layer; widths are pairs.

    Shape:
        - x: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.MLP([(8, 4), (16, 6), (2, 1)])(x).channels
    Channels(scalars=2, vectors=1)
    """

    linear, block = Linear, Block


def width(channels: int) -> Channels:
    """Numbers of scalars and vectors in place of `channels` scalars: half of the numbers belong to each kind.

    A sixth of `channels` (at least one) are vectors, of three numbers each, and the rest are scalars. The points of a
    cloud, `width(3)`, are one vector.

    >>> vn.nn.hybrid.width(64), vn.nn.hybrid.width(3)
    (Channels(scalars=34, vectors=10), Channels(scalars=0, vectors=1))
    """
    vectors = max(1, channels // 6)
    return Channels(max(0, channels - 3 * vectors), vectors)
