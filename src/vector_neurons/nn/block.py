"""Linear → norm → non-linearity, and stacks of it."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Unpack

from torch import Tensor, nn

from ..typing import ActivationFunction, BlockOptions, DirectionSource, Mask, NewVectors, Norm, Vectors
from . import _dispatch
from . import functional as VF
from ._checks import check_vectors, hooked
from ._factored import ConcatMean, EdgeInput
from ._range import in_float64, needs_float64
from .activation import scalar_function
from .features import AnyChannels, Features
from .linear import Linear
from .norm import NORMS, BatchNorm, NoNorm


class Block(nn.Module):
    """Linear → norm → non-linearity, the paper's unit of depth (VN-LinearLeakyReLU).

    `q = norm(W V)`, a direction `k`, and the leaky ReLU of `q` along `k`.

    Args:
        in_channels: vectors in.
        out_channels: vectors out.
        norm: `"batch"`, `"log-batch"`, `"layer"`, `"instance"` or `"none"`.
        direction: where the direction comes from: the block's `"input"`, `k = U V` (the paper's built-in
            non-linearity), or the block's `"output"` so far, `k = U q` (its detached one).
        negative_slope: of the leaky ReLU.
        activation: any scalar function in place of the leaky ReLU, or its name, see `Activation`.
        shared_direction: learn one direction for all channels.
        eps: the authors' absolute eps (1e-6) in batch norm and leaky ReLU, for outputs identical to theirs.

    Shape:
        - x: `(..., 3, in_channels)`; with a batch norm `(B, ..., 3, in_channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(..., 3, out_channels)`; with `mean_pool` the axis before the vectors is averaged away

    Equivariant to O(D) and permutations; to scaling without a batch norm.

    >>> vn.Block(4, 8)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 8])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm = "batch",
        direction: DirectionSource = "input",
        negative_slope: float = 0.2,
        activation: ActivationFunction | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        if direction not in ("input", "output"):
            raise ValueError(f'unknown direction {direction!r}: choose "input" or "output"')
        self.direction_source, self.negative_slope = direction, negative_slope
        self.activation = None if activation is None else scalar_function(activation)
        self.eps = eps
        self.linear = Linear(in_channels, out_channels)
        if activation is None:
            # Half of the vectors shrink to the slope along one of three axes; this restores the squared length.
            self.linear.reset_parameters(gain=(1 - (1 - negative_slope**2) / 6) ** -0.5)
        self.norm = NORMS[norm](out_channels)
        if isinstance(self.norm, BatchNorm):
            self.norm.eps = eps
        source = in_channels if direction == "input" else out_channels
        self.direction = Linear(source, 1 if shared_direction else out_channels)

    def forward(
        self, x: Vectors | EdgeInput | ConcatMean, mask: Mask | None = None, *, mean_pool: bool = False
    ) -> NewVectors:
        if needs_float64(x):
            return in_float64(self.forward, x, mask, mean_pool=mean_pool)
        if self._fusable(x, mask):
            return self._fused(x, mean_pool)
        q = self.norm(self.linear(x), mask)
        k = self.direction(x if self.direction_source == "input" else q)
        if self.activation is None:
            out = VF.leaky_relu(q, k, self.negative_slope, eps=self.eps)
        else:
            out = VF.activation(q, k, self.activation)
        return VF.mean_pool(out) if mean_pool else out

    def _fusable(self, x: Tensor | EdgeInput | ConcatMean, mask: Mask | None) -> bool:
        # The fused kernel does not call the parts of the block: not if they have hooks or were replaced.
        parts = type(self.linear) is type(self.direction) is Linear and not any(map(hooked, self.children()))
        parts = parts and self.linear.num_elements is self.direction.num_elements is None
        known = type(self.norm) is NoNorm
        if type(self.norm) is BatchNorm:
            known = self.norm.eps == self.eps and self.norm.fusable(mask)
        plain = self.direction_source == "input" and self.activation is None
        return parts and known and plain and _dispatch.fusable(x) and not _dispatch.autocast(x)

    def _fused(self, x: Tensor | EdgeInput | ConcatMean, mean_pool: bool) -> Tensor:
        batch_norm = self.norm if isinstance(self.norm, BatchNorm) else None
        if isinstance(x, Tensor):
            check_vectors(self, x, self.linear.in_channels, rank=2 if batch_norm is None else 3)
        features = _dispatch.project(x, self.linear.weight, self.direction.weight)
        affine = None if batch_norm is None else batch_norm.length_affine(features)
        return features.norm_leaky_relu(affine, negative_slope=self.negative_slope, eps=self.eps, mean_pool=mean_pool)

    def extra_repr(self) -> str:
        leaky = f"negative_slope={self.negative_slope}"
        return f"direction={self.direction_source!r}, {leaky if self.activation is None else self.activation}"


class MLPBase(nn.Sequential):
    """Blocks from width to width, and a linear map to the last."""

    linear: ClassVar[type[nn.Module]]
    block: ClassVar[type[nn.Module]]

    def __init__(self, widths: Sequence[AnyChannels], **options: Unpack[BlockOptions]) -> None:
        if len(widths) < 2:
            raise ValueError(f"an MLP needs at least an input and an output width, got {list(widths)}")
        blocks = [self.block(a, b, **options) for a, b in pairwise(widths[:-1])]
        super().__init__(*blocks, self.linear(*widths[-2:]))

    def forward(self, x: Tensor | ConcatMean | Features, mask: Mask | None = None) -> Tensor | Features:
        *blocks, linear = self
        for block in blocks:
            x = block(x, mask)
        return linear(x)

    def __getitem__(self, index: slice | int) -> nn.Module:
        # nn.Sequential would build an MLP from a slice; a slice of it is an nn.Sequential, which takes no mask.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self.named_children())[index]))
        return super().__getitem__(index)


class MLP(MLPBase):
    """VN-MLP: a `Block` from width to width, and a `Linear` to the last.

    Args:
        widths: channels in, of every hidden layer, and out.
        options: of the blocks.

    Shape:
        - x: `(..., 3, widths[0])`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(..., 3, widths[-1])`

    Equivariant to O(D) and permutations; to scaling without a batch norm.

    >>> vn.MLP([4, 16, 8])(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 8])
    """

    linear, block = Linear, Block
