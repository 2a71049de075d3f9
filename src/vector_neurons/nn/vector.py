"""Layers of vector neurons, for features `(..., 3, C)` of any rank. Same names and arguments as `nn.scalar`.

Unless a layer says otherwise it is equivariant to O(D) in every dimension D, to permutations of the elements, and
(without batch norm, whose statistics have a scale) to scaling.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeGuard, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.neighbours import edge_features
from ..geometry.sampling import center
from ..typing import BlockOptions, Frames, Mask, Nonlinearity, Norm, Points, Pool, Vectors
from . import functional as VF
from . import fused
from .checks import check_vectors, hooked
from .extremes import LARGE, LARGE_CROSS, extreme, in_double
from .norms import NORMS, BatchNorm, InstanceNorm, LayerNorm
from .shared import EdgeConvBase, MLPBase, NoNorm
from .unbuilt import Edges, WithMean

NewVectors = Float[Tensor, "... dim out"]


def width(channels: int) -> int:
    """Vector neurons in place of `channels` scalars: a third, as the paper has it. `width(3)` is a lifted cloud's 1."""
    return channels // 3


def lift(*clouds: Points) -> Float[Tensor, "*batch points dim channels"]:
    """Make vector features of a cloud `(B, N, 3)`, and of further vectors of its points (normals): one channel each.

    >>> lift(torch.zeros(2, 10, 3)).shape
    torch.Size([2, 10, 3, 1])
    """
    return torch.stack(clouds, dim=-1)


class Linear(nn.Module):
    """VN-Linear, `V' = W V`.

    There is no bias: a constant vector would stay where it is while everything else turns. With `elements=N` each of
    the N elements of the axis before the vectors has a matrix of its own (the paper's un-shared form).
    Initialised so that a vector keeps its expected squared length.
    """

    def __init__(self, in_channels: int, out_channels: int, *, elements: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.elements = in_channels, out_channels, elements
        shape = (out_channels, in_channels) if elements is None else (elements, out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self, gain: float = 1.0) -> None:
        bound = gain * math.sqrt(3 / self.in_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Vectors | Edges | WithMean) -> NewVectors:
        if isinstance(x, Edges | WithMean):
            return x.linear(self.weight)
        check_vectors(self, x, self.in_channels, rank=2 if self.elements is None else 4)
        if self.elements is not None and x.shape[-3] != self.elements:
            raise ValueError(
                f"Linear holds a matrix for each of {self.elements} elements, got {x.shape[-3]} in {tuple(x.shape)}"
            )
        # Of single vectors, torch's own is faster.
        points = self.elements is None and x.ndim > 3 and x.device.type == "cpu"
        if points and fused.applies(x) and not fused.autocast(x):
            return fused.linear(x, self.weight)
        return VF.linear(x, self.weight)

    def extra_repr(self) -> str:
        elements = "" if self.elements is None else f", elements={self.elements}"
        return f"{self.in_channels}, {self.out_channels}{elements}"


class LeakyReLU(nn.Module):
    """VN-LeakyReLU in its detached form: bends each vector along a direction read from the same vectors.

    `slope=0` is VN-ReLU. `shared_direction` learns one direction for all channels. `eps` is as in `Block`.
    """

    def __init__(
        self, channels: int, *, slope: float = 0.2, shared_direction: bool = False, eps: float | None = None
    ) -> None:
        super().__init__()
        self.slope, self.eps = slope, eps
        self.direction = Linear(channels, 1 if shared_direction else channels)

    def forward(self, x: Vectors | WithMean) -> Vectors:
        if extreme(x):
            return in_double(self.forward, x)
        k = self.direction(x)
        q = x.build() if isinstance(x, WithMean) else x
        if fused.applies(q) and not fused.autocast(q):
            return fused.leaky_relu(q, k, self.slope, eps=self.eps)
        return VF.leaky_relu(q, k, self.slope, eps=self.eps)

    def extra_repr(self) -> str:
        return f"slope={self.slope}"


class Activation(nn.Module):
    """The supplement's general rule: a scalar function `h` applied to the part of each vector along its direction.

    `signed=False` is the supplement to the letter, `h` of the part's length; see `functional.activation`.
    """

    def __init__(
        self,
        channels: int,
        h: Callable[[Tensor], Tensor],
        *,
        signed: bool = True,
        shared_direction: bool = False,
    ) -> None:
        super().__init__()
        self.h, self.signed = h, signed
        self.direction = Linear(channels, 1 if shared_direction else channels)

    def forward(self, x: Vectors) -> Vectors:
        if extreme(x):
            return in_double(self.forward, x)
        return VF.activation(x, self.direction(x), self.h, signed=self.signed)


class Block(nn.Module):
    """Linear → norm → non-linearity, the paper's unit of depth.

    `nonlinearity="built-in"` reads the direction from the block's *input* (`q = W V`, `k = U V`); `"detached"` from the
    normalised feature. The non-linearity is a leaky ReLU of `slope`, or any scalar function given as `activation`.
    `eps` is the authors' absolute one (1e-6, in batch norm and leaky ReLU), for outputs identical to theirs.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        norm: Norm = "batch",
        nonlinearity: Nonlinearity = "built-in",
        slope: float = 0.2,
        activation: Callable[[Tensor], Tensor] | None = None,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        if nonlinearity not in ("built-in", "detached"):
            raise ValueError(f'unknown nonlinearity {nonlinearity!r}: choose "built-in" or "detached"')
        self.nonlinearity, self.slope, self.activation, self.eps = nonlinearity, slope, activation, eps
        self.linear = Linear(in_channels, out_channels)
        if activation is None:
            # Half of the vectors shrink to `slope` along one of three axes; this makes up for the lost squared length.
            self.linear.reset_parameters(gain=(1 - (1 - slope**2) / 6) ** -0.5)
        self.norm = NORMS[norm](out_channels)
        if isinstance(self.norm, BatchNorm):
            self.norm.eps = eps
        source = in_channels if nonlinearity == "built-in" else out_channels
        self.direction = Linear(source, 1 if shared_direction else out_channels)

    def forward(self, x: Vectors | Edges | WithMean, mask: Mask | None = None) -> NewVectors:
        if extreme(x):
            return in_double(self.forward, x, mask)
        if self._fusable(x, mask):
            return self._fused(x)
        q: Tensor = self.norm(self.linear(x), mask)
        k = self.direction(x if self.nonlinearity == "built-in" else q)
        if self.activation is None:
            return VF.leaky_relu(q, k, self.slope, eps=self.eps)
        return VF.activation(q, k, self.activation)

    def mean(self, x: Vectors | Edges, mask: Mask | None = None) -> NewVectors:
        """The block, and the mean over the axis before the vectors: the neighbours of a point."""
        if extreme(x):
            return in_double(self.mean, x, mask)
        return self._fused(x, pool=True) if self._fusable(x, mask) else VF.mean_pool(self(x, mask))

    def _fusable(self, x: Tensor | Edges | WithMean, mask: Mask | None) -> bool:
        # Fused, the parts of the block are not called: whoever hooked into them or exchanged them wants them to be.
        parts = type(self.linear) is type(self.direction) is Linear and not any(map(hooked, self.children()))
        parts = parts and self.linear.elements is self.direction.elements is None
        known = type(self.norm) is NoNorm
        if type(self.norm) is BatchNorm:
            known = self.norm.eps == self.eps and self.norm.fusable(mask)
        plain = self.nonlinearity == "built-in" and self.activation is None
        return parts and known and plain and fused.applies(x) and not fused.autocast(x)

    def _fused(self, x: Tensor | Edges | WithMean, pool: bool = False) -> Tensor:
        if isinstance(x, Tensor):
            rank = 3 if isinstance(self.norm, BatchNorm) else 2
            check_vectors(self, x, self.linear.in_channels, rank=rank)
        settings = self.norm.settings if isinstance(self.norm, BatchNorm) else None
        return fused.block(
            x, self.linear.weight, self.direction.weight, settings, slope=self.slope, eps=self.eps, pool=pool
        )

    def extra_repr(self) -> str:
        bend = f"slope={self.slope}" if self.activation is None else f"activation={self.activation}"
        return f"nonlinearity={self.nonlinearity!r}, {bend}"


class MLP(MLPBase):
    """VN-MLP: blocks from width to width, and a plain linear map to the last."""

    linear, block = Linear, Block


class Dropout(nn.Module):
    """Drop whole vectors: zeroing single coordinates would pick out axes."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Vectors) -> Vectors:
        return x * nn.functional.dropout(torch.ones_like(x[..., :1, :]), self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class MeanPool(nn.Module):
    """Mean over the axis before the vectors: points of a cloud (global) or neighbours of a point (local)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, self.channels, rank=4)
        return VF.mean_pool(x, mask)


class MaxPool(nn.Module):
    """VN-Max over the axis before the vectors: per channel, the vector best aligned with its direction `W V`.

    As in the paper, `W` only decides which vector is taken, and a choice has no gradient: it stays as initialised.
    With `elements=K` each of the K neighbours has a direction matrix of its own (the supplement's `W_k`).
    """

    def __init__(self, channels: int, *, elements: int | None = None) -> None:
        super().__init__()
        self.direction = Linear(channels, channels, elements=elements)
        self.direction.weight.requires_grad_(False)  # training on many processes waits for gradients of all others

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, self.direction.in_channels, rank=4)
        if extreme(x):
            return in_double(self.forward, x, mask)
        return VF.max_pool(x, self.direction(x), mask)


POOLS: dict[Pool, type[nn.Module]] = {"mean": MeanPool, "max": MaxPool}


def pooled(block: nn.Module, pool: nn.Module, x: Vectors, mask: Mask | None = None) -> NewVectors:
    """A block and a pool over points; what comes in between need not exist."""
    result: Tensor = block.mean(x) if mask is None and _averages(block, pool) else pool(block(x, mask), mask)
    return result


def _averages(block: nn.Module, pool: nn.Module) -> TypeGuard[Block]:
    return type(pool) is MeanPool and type(block) is Block and not hooked(pool) and not hooked(block)


class EdgeConv(EdgeConvBase):
    """Edge convolution: `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbours m of n.

    The graph joins each point to its `k` nearest in the space of the features `x` `(B, N, 3, C)` themselves, unless
    `neighbours` `(B, N, K)` is given: `knn(points, k)` for a graph in coordinates. Several `out_channels` stack as many
    blocks on each edge. `cross` adds the channels `x_m × x_n` (3-D only, equivariant to SO(3) but not to reflections,
    and not to scaling).
    """

    block, pools = Block, POOLS

    def check(self, x: Tensor) -> None:
        check_vectors(self, x, self.in_channels, rank=4)

    def convolve(self, x: Tensor, neighbours: Tensor, mask: Mask | None) -> Tensor:
        if extreme(x, LARGE_CROSS if self.cross else LARGE):
            return in_double(self.convolve, x, neighbours, mask)
        return super().convolve(x, neighbours, mask)

    def edges(self, x: Tensor, neighbours: Tensor) -> Tensor:
        return edge_features(x, neighbours, cross=self.cross)

    def pooled(self, block: nn.Module, edges: Tensor | Edges, mask: Mask | None) -> Tensor:
        return block.mean(edges, mask) if _averages(block, self.pool) else super().pooled(block, edges, mask)


class Invariant(nn.Module):
    """From vectors to numbers that do not change with the pose; equivariant layers end here.

    `kind="frame"` is VN-In: it learns three vectors `T_n` and reads `V_n` in them (`3 C` numbers). `frame` is how:
    `"mlp"` (three VN layers, the paper's choice) or `"linear"`. With `mean` the frame also sees the mean over all
    elements of the sample; with `read_mean` that mean is read in the frame as well (`6 C` numbers, as the authors'
    code does). `orthonormal` makes the frame a rotation (SO(3) but not O(3), 3-D only).
    `"gram"` gives all inner products (`C (C + 1) / 2`), `"norm"` the lengths (`C`). `out_channels` says how many.
    """

    def __init__(
        self,
        channels: int,
        *,
        kind: Literal["frame", "gram", "norm"] = "frame",
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        read_mean: bool = False,
        orthonormal: bool = False,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if kind not in ("frame", "gram", "norm") or frame not in ("mlp", "linear"):
            raise ValueError(
                f'Invariant has kinds "frame", "gram", "norm" and frames "mlp", "linear", got {kind!r}, {frame!r}'
            )
        if read_mean and not mean:
            raise ValueError("Invariant can read the mean in the frame only with mean=True")
        self.channels, self.kind, self.mean, self.read_mean = channels, kind, mean, read_mean
        self.orthonormal = orthonormal
        if kind == "frame":
            seen = channels * (2 if mean else 1)
            widths = [seen, max(1, seen // 2), max(1, seen // 4)] if frame == "mlp" else [seen]
            self.to_frame = MLP([*widths, 2 if orthonormal else 3], **options)
            self.out_channels = 3 * channels * (2 if read_mean else 1)
        else:
            self.out_channels = channels if kind == "norm" else channels * (channels + 1) // 2

    def forward(self, x: Vectors, mask: Mask | None = None) -> Float[Tensor, "... invariants"]:
        check_vectors(self, x, self.channels)
        if extreme(x):
            return in_double(self.forward, x, mask)
        if self.kind == "norm":
            return VF.norm(x).to(x.dtype)
        if self.kind == "gram":
            row, column = torch.triu_indices(self.channels, self.channels, device=x.device)
            return VF.invariant_product(x, x)[..., row, column]
        return self.with_frame(x, mask)[0]

    def with_frame(self, x: Vectors, mask: Mask | None = None) -> tuple[Float[Tensor, "... invariants"], Frames]:
        """Give the invariants and the frame `(..., 3, 3)` they were read in, which turns with the input."""
        if extreme(x):
            return in_double(self.with_frame, x, mask)
        overall, frame = self._frame(x, mask)
        seen = torch.cat([x, overall.expand_as(x)], dim=-1) if self.read_mean else x
        return self.read(seen, frame), frame

    def pooled(
        self, x: Float[Tensor, "batch points 3 channels"], mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch invariants"], Float[Tensor, "batch invariants"], Frames]:
        """Give the maximum and the mean of the invariants over the points of a cloud, and the frames."""
        if extreme(x):
            return in_double(self.pooled, x, mask)
        if mask is not None or x.device.type != "cpu" or not fused.applies(x):  # CUDA has native blocks, not this
            invariants, frame = self.with_frame(x, mask)
            return VF.masked_max(invariants, mask), VF.masked_mean(invariants, [1], mask).squeeze(1), frame
        overall, frame = self._frame(x, mask)
        return *fused.read_pool(x, overall if self.read_mean else None, frame.to(x.dtype)), frame

    def _frame(self, x: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor]:
        """The mean vectors of each sample, and the frames."""
        check_vectors(self, x, self.channels)
        if self.kind != "frame":
            raise ValueError(f"Invariant of kind {self.kind!r} has no frame")
        # The mean over every axis between the batch and the vectors: never over samples, whose poses differ.
        elements = list(range(1, x.ndim - 2))
        overall = VF.masked_mean(x, elements, mask) if self.mean and elements else x
        frame: Tensor = self.to_frame(WithMean(x, overall) if self.mean else x, mask)
        return overall, VF.orthonormal_frame(frame) if self.orthonormal else frame

    @staticmethod
    def read(x: Vectors, frame: Frames) -> Float[Tensor, "... invariants"]:
        """Read further vectors of the same elements in a frame."""
        return VF.read_in_frame(x, frame)

    def extra_repr(self) -> str:
        return f"{self.channels}, kind={self.kind!r}, mean={self.mean}, orthonormal={self.orthonormal}"


__all__ = [
    "MLP",
    "NORMS",
    "POOLS",
    "Activation",
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
    "center",
    "lift",
    "width",
]
