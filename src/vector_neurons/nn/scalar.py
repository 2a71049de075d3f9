"""The kit of scalar neurons, for features `(..., C)`: the names and arguments of `nn.vector`, none of it equivariant.

A network written over a kit becomes its classical twin with this one. Arguments that only apply to vectors
(`shared_direction`, `direction`, `orthonormal`, …) are accepted and ignored.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal, TypeGuard, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import edge_features
from ..geometry.sampling import center
from ..geometry.segments import segment_max, segment_mean
from ..typing import (
    ActivationFunction,
    BlockOptions,
    DirectionSource,
    Mask,
    Neighbors,
    NewScalars,
    Norm,
    Points,
    Pool,
    Scalars,
)
from . import _dispatch_scalar, sync
from ._batch_stats import masked_batch_norm
from ._checks import check_scalars, hooked
from ._factored import ConcatGlobal, EdgeInput
from ._graph import check_batch
from ._masked import flat_mask, masked_mean
from .activation import scalar_function
from .attention import AttentionBase
from .block import MLPBase
from .edge_conv import EdgeConvBase
from .norm import NoNorm
from .residual import ResidualBlockBase


def width(channels: int) -> int:
    """Number of scalar channels in place of `channels` scalar ones: all of them.

    >>> vn.nn.scalar.width(1023)
    1023
    """
    return channels


def lift(*clouds: Points) -> Float[Tensor, "*batch points channels"]:
    """Make features of a cloud `(B, N, 3)` and further vectors of its points: their coordinates as channels.

    >>> vn.nn.scalar.lift(torch.zeros(2, 10, 3)).shape
    torch.Size([2, 10, 3])
    """
    return torch.cat(clouds, dim=-1)


class Linear(nn.Module):
    """An affine map; with `num_elements=N` one for each of the N elements of the axis before the channels.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.Linear(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, num_elements: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.num_elements = in_channels, out_channels, num_elements
        stack = () if num_elements is None else (num_elements,)
        self.weight = nn.Parameter(torch.empty(*stack, out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(*stack, out_channels)) if bias else None
        bound = in_channels**-0.5  # torch's own default for nn.Linear
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Scalars | EdgeInput | ConcatGlobal) -> NewScalars:
        if isinstance(x, EdgeInput | ConcatGlobal):
            return x.linear(self.weight) if self.bias is None else x.linear(self.weight) + self.bias
        check_scalars(self, x, self.in_channels)
        if self.num_elements is None:
            return _dispatch_scalar.scalar_linear(x, self.weight, self.bias)
        mapped = (self.weight @ x.unsqueeze(-1)).squeeze(-1)
        return mapped if self.bias is None else mapped + self.bias

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, num_elements={self.num_elements}, bias={self.bias is not None}"
        )


class AffineLinear(Linear):
    """A `Linear`: with a bias there is no need for weights that sum to 1.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.AffineLinear(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, bias=bias)


class LeakyReLU(nn.LeakyReLU):
    """The ordinary leaky ReLU; `negative_slope=0` is ReLU.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.LeakyReLU(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self, channels: int, *, negative_slope: float = 0.2, shared_direction: bool = False, eps: float | None = None
    ) -> None:
        super().__init__(negative_slope)

    def forward(self, x: Scalars | ConcatGlobal) -> Scalars | ConcatGlobal:  # type: ignore[override]
        if isinstance(x, ConcatGlobal):
            return ConcatGlobal(super().forward(x.overall), super().forward(x.x))
        return super().forward(x)


class Activation(nn.Module):
    """Any scalar function, applied to every neuron.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Activation(6, torch.tanh)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self,
        channels: int,
        h: ActivationFunction,
        *,
        signed: bool = True,
        shared_direction: bool = False,
    ) -> None:
        super().__init__()
        self.h = scalar_function(h)

    def forward(self, x: Scalars) -> Scalars:
        return self.h(x)


class BatchNorm(nn.Module):
    """Batch norm over every axis but the channels, at any rank.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.BatchNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self,
        channels: int,
        *,
        mode: Literal["norm", "log"] = "norm",
        momentum: float | None = 0.1,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, momentum=momentum)

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, self.bn.num_features, rank=2)
        if _fusable_norm(self, x, mask):
            return _dispatch_scalar.scalar_norm(self.bn, x, negative_slope=1.0)[0]
        normalized = masked_batch_norm(self.bn, x.flatten(0, -2), flat_mask(mask, x.shape[:-1]))
        return normalized.view_as(x).to(x.dtype)


def _fusable_norm(norm: nn.Module, x: Tensor, mask: Mask | None) -> TypeGuard[BatchNorm]:
    """Whether kernels can compute this batch norm, without calling it."""
    if type(norm) is not BatchNorm or type(norm.bn) is not nn.BatchNorm1d or hooked(norm.bn):
        return False
    plain = mask is None and x.dtype == norm.bn.weight.dtype and x.ndim >= 2 and not sync.enabled()
    return plain and _dispatch_scalar.scalar_fusable(x)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each element.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.LayerNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        return super().forward(x)


class InstanceNorm(nn.Module):
    """Each sample's channels get mean 0 and variance 1 over the elements (all axes between batch and channels).

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.InstanceNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, len(self.weight), rank=3)
        elements = list(range(1, x.ndim - 1))
        centered = x - masked_mean(x, elements, mask)
        variance = masked_mean(centered.square(), elements, mask)
        return centered * (variance + self.eps).rsqrt() * self.weight + self.bias


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": NoNorm,
}


class Block(nn.Module):
    """Linear → norm → non-linearity.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.Block(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
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
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        if direction not in ("input", "output"):
            raise ValueError(f'unknown direction {direction!r}: choose "input" or "output"')
        # A norm removes a bias, or brings its own: by default there is one only without norm.
        self.linear = Linear(in_channels, out_channels, bias=norm == "none" if bias is None else bias)
        self.norm = NORMS[norm](out_channels)
        self.activation = nn.LeakyReLU(negative_slope) if activation is None else scalar_function(activation)

    def forward(self, x: Scalars | EdgeInput | ConcatGlobal, mask: Mask | None = None) -> NewScalars:
        return self._apply_all(x, mask, with_max=False)[0]

    def with_max(self, x: Scalars, mask: Mask | None = None) -> tuple[NewScalars, NewScalars]:
        """The block, and its maximum over the axis before the channels."""
        return self._apply_all(x, mask, with_max=True)

    def activate(self, x: NewScalars, mask: Mask | None = None) -> NewScalars:
        """Norm and non-linearity, of scalars that are mapped already."""
        return self._activate(x, mask, with_max=False)[0]

    def constant_norm(self, x: Tensor, mask: Mask | None) -> Tensor | None:
        """The norm for kernels that apply it and the leaky ReLU to a linear map of x, if it is constant."""
        bn = self._fusable_norm(x, mask)
        return None if bn is None or not self._plain_linear() else _dispatch_scalar.constant_norm(bn, self.linear.bias)

    def edge_max(self, x: Scalars, neighbors: Neighbors) -> NewScalars | None:
        """The block on the edges of a graph, and its maximum over the neighbors of each point, if a kernel can."""
        bn, linear = self._fusable_norm(x, None), self.linear
        if bn is None or not self._plain_linear() or linear.bias is not None or linear.weight.dtype != x.dtype:
            return None
        return _dispatch_scalar.edge_max(bn, x, linear.weight, neighbors, self.negative_slope)

    def point_max(self, x: Scalars) -> NewScalars | None:
        """The block, and its maximum over the points `(B, N, C)`, if a kernel can."""
        bn, linear = self._fusable_norm(x, None), self.linear
        if bn is None or not self._plain_linear() or linear.weight.dtype != x.dtype:
            return None
        check_scalars(self, x, linear.in_channels)
        return _dispatch_scalar.block_max(bn, x, linear.weight, linear.bias, self.negative_slope)

    def _apply_all(
        self, x: Scalars | EdgeInput | ConcatGlobal, mask: Mask | None, *, with_max: bool
    ) -> tuple[Tensor, Tensor]:
        if (
            isinstance(x, Tensor)
            and _dispatch_scalar.many_rows(x)
            and (norm := self.constant_norm(x, mask)) is not None
        ):
            check_scalars(self, x, self.linear.in_channels)
            return _dispatch_scalar.scalar_block(x, self.linear.weight, norm, self.negative_slope, with_max=with_max)
        if isinstance(x, Tensor) and self._plain_linear() and (bn := self._fusable_norm(x, mask)) is not None:
            check_scalars(self, x, self.linear.in_channels)
            mapped, bias = _dispatch_scalar.scalar_linear(x, self.linear.weight, None), self.linear.bias
            return _dispatch_scalar.scalar_norm(bn, mapped, self.negative_slope, with_max=with_max, bias=bias)
        return self._activate(self.linear(x), mask, with_max=with_max)

    def _plain_linear(self) -> bool:
        """Whether kernels can take the linear map's parameters instead of calling it."""
        return type(self.linear) is Linear and self.linear.num_elements is None and not hooked(self.linear)

    def _activate(self, x: Tensor, mask: Mask | None, *, with_max: bool) -> tuple[Tensor, Tensor]:
        bn = self._fusable_norm(x, mask)
        if bn is not None:
            return _dispatch_scalar.scalar_norm(bn, x, self.negative_slope, with_max=with_max)
        out = self.activation(self.norm(x, mask))
        return out, out.max(-2).values if with_max else out

    def _fusable_norm(self, x: Tensor, mask: Mask | None) -> nn.BatchNorm1d | None:
        """The batch norm, if a kernel can compute it together with the leaky ReLU."""
        norm, activation = self.norm, self.activation
        # The kernel does not call the norm and the activation: not if they were replaced or have hooks.
        if type(activation) is not nn.LeakyReLU or hooked(norm) or hooked(activation):
            return None
        return norm.bn if _fusable_norm(norm, x, mask) else None

    @property
    def negative_slope(self) -> float:
        """Of the leaky ReLU."""
        return getattr(self.activation, "negative_slope", 0.0)


class MLP(MLPBase):
    """Blocks from width to width, and a plain linear map to the last.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.MLP([6, 16, 8])(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    linear, block = Linear, Block


class ResidualBlock(ResidualBlockBase):
    """`S x + B a(norm(A a(norm(x))))`: adds two linear maps, each after a norm and a non-linearity.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.ResidualBlock(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    linear, leaky_relu, any_activation, norms = Linear, LeakyReLU, Activation, NORMS
    no_bias: ClassVar[dict[str, bool]] = {"bias": False}


class Attention(AttentionBase):
    """Multi-head attention among the elements of a sample, or from them to those of a context.

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`
        - out: `(B, N, C)`

    Not equivariant.

    >>> vn.nn.scalar.Attention(6, heads=2)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    linear = Linear

    def check(self, x: Tensor, channels: int) -> None:
        check_scalars(self, x, channels, rank=3)
        if x.ndim > 3:
            raise ValueError(f"Attention takes features (B, N, {channels}), got {tuple(x.shape)}: flatten the axes")


class Dropout(nn.Dropout):
    """The ordinary dropout.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Dropout()(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)


class MeanPool(nn.Module):
    """Mean over the axis before the channels: points of a cloud (global) or neighbors of a point (local).

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`, or `(N, C)` with batch `(N,)`
        - out: `(B, ..., C)`

    Not equivariant.

    >>> vn.nn.scalar.MeanPool()(torch.randn(2, 10, 6)).shape
    torch.Size([2, 6])
    """

    def forward(
        self,
        x: Scalars,
        mask: Mask | None = None,
        *,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Scalars:
        if batch is not None or size is not None:
            return segment_mean(x, *check_batch(self, batch, x, mask, size, rank=2))
        check_scalars(self, x, None, rank=3)
        return masked_mean(x, [-2], mask).squeeze(-2)


def block_pool(block: nn.Module, pool: nn.Module, x: Scalars, mask: Mask | None = None) -> NewScalars:
    """Apply a block and a pool over points, without the block's output at the points where possible."""
    # The kernel does not call the block and the pool: not if they were replaced or have hooks.
    if type(block) is Block and type(pool) is MaxPool and mask is None and not hooked(block) and not hooked(pool):
        largest = block.point_max(x)
        if largest is not None:
            return largest
    return pool(block(x, mask), mask)


class MaxPool(nn.Module):
    """Maximum over the axis before the channels.

    Of equal elements, the native backend gives the gradient to the first, the eager one to all of them evenly.

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`, or `(N, C)` with batch `(N,)`
        - out: `(B, ..., C)`

    Not equivariant.

    >>> vn.nn.scalar.MaxPool(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 6])
    """

    def __init__(self, channels: int, *, num_elements: int | None = None) -> None:
        super().__init__()
        self.channels = channels

    def forward(
        self,
        x: Scalars,
        mask: Mask | None = None,
        *,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Scalars:
        segmented = batch is not None or size is not None
        check_scalars(self, x, self.channels, rank=2 if segmented else 3)
        if segmented:
            return segment_max(x, *check_batch(self, batch, x, mask, size, rank=2))
        return _dispatch_scalar.max_mean(x, mask)[0]


POOLS: dict[Pool, Callable[[int], nn.Module]] = {"mean": lambda channels: MeanPool(), "max": MaxPool}


class EdgeConv(EdgeConvBase):
    """DGCNN's edge convolution: `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbors m of n.

    `cross` takes the channels for coordinates of vectors, three by three, and adds their products `x_m × x_n`.

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`, or `(N, C)` with edges `(2, E)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.EdgeConv(6, 8, k=4)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    block, pools, rank = Block, POOLS, 2

    def check(self, x: Tensor) -> None:
        check_scalars(self, x, self.in_channels, rank=3)
        if self.cross and self.in_channels % 3:
            raise ValueError(f"cross products need coordinates in threes, got {self.in_channels} channels")

    def convolve(self, x: Tensor, neighbors: Tensor, mask: Mask | None) -> Tensor:
        block, *more = self.blocks
        # The kernel does not call the block and the pool: not if they were replaced or have hooks.
        called = type(self.pool) is not MaxPool or hooked(self.pool) or hooked(block)
        regular = mask is None and neighbors.ndim == 3 and neighbors.numel() > 0
        if type(block) is Block and not (more or called or self.cross) and regular:
            pooled = block.edge_max(x, neighbors)
            if pooled is not None:
                return pooled
        return super().convolve(x, neighbors, mask)

    def edges(self, x: Tensor, neighbors: Tensor) -> Tensor:
        if self.cross:
            vectors = x.view(*x.shape[:-1], -1, 3).mT  # the coordinates of one vector stand together, as lifted
            return edge_features(vectors, neighbors, cross=True).mT.flatten(-2)
        return edge_features(x, neighbors)


class Invariant(nn.Module):
    """The identity: scalar features have no frame. With `pool` the maximum and the mean over points.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Invariant(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self,
        channels: int,
        *,
        kind: Literal["frame", "gram", "norm"] = "frame",
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        project_mean: bool = False,
        orthonormal: bool = False,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        self.out_channels = channels

    def forward(
        self,
        x: Scalars,
        mask: Mask | None = None,
        *,
        return_frame: bool = False,
        pool: bool = False,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Scalars | tuple[Tensor | None, ...]:
        segmented = batch is not None or size is not None
        segments = check_batch(self, batch, x, mask, size, rank=2) if segmented else None
        if pool and segments:
            return segment_max(x, *segments), segment_mean(x, *segments), None
        if pool:
            return *_dispatch_scalar.max_mean(x, mask), None
        return (x, None) if return_frame else x

    @staticmethod
    def project(x: Scalars, frame: None) -> Scalars:
        """Return further scalars as they are."""
        return x


__all__ = [
    "MLP",
    "NORMS",
    "POOLS",
    "Activation",
    "AffineLinear",
    "Attention",
    "BatchNorm",
    "Block",
    "Dropout",
    "EdgeConv",
    "InstanceNorm",
    "Invariant",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool",
    "MeanPool",
    "ResidualBlock",
    "center",
    "lift",
    "width",
]
