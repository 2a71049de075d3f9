"""Layers of ordinary neurons, for features `(..., C)`, under the names and arguments of `nn.vector`.

A network written once over a kit becomes its classical twin with this one. Arguments that only make sense for vectors
(`shared_direction`, `nonlinearity`, `orthonormal`, …) are accepted and change nothing. None of it is equivariant.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.neighbours import edge_features
from ..geometry.sampling import center
from ..typing import BlockOptions, Mask, Nonlinearity, Norm, Points, Pool, Scalars
from .checks import check_scalars
from .functional import masked_max, masked_mean
from .shared import EdgeConvBase, MLPBase, NoNorm, masked_batch_norm, rows_of
from .unbuilt import Edges, Everywhere

NewScalars = Float[Tensor, "... out"]


def width(channels: int) -> int:
    """Scalar neurons in place of `channels` scalars: all of them."""
    return channels


def lift(*clouds: Points) -> Float[Tensor, "*batch points channels"]:
    """Make features of a cloud `(B, N, 3)` and further vectors of its points: their coordinates as channels."""
    return torch.cat(clouds, dim=-1)


class Linear(nn.Module):
    """An affine map; with `elements=N` one for each of the N elements of the axis before the channels."""

    def __init__(self, in_channels: int, out_channels: int, *, elements: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.elements = in_channels, out_channels, elements
        stack = () if elements is None else (elements,)
        self.weight = nn.Parameter(torch.empty(*stack, out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(*stack, out_channels)) if bias else None
        bound = in_channels**-0.5  # torch's own default for nn.Linear
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Scalars | Edges | Everywhere) -> NewScalars:
        if isinstance(x, Edges | Everywhere):
            return x.linear(self.weight) if self.bias is None else x.linear(self.weight) + self.bias
        check_scalars(self, x, self.in_channels)
        if self.elements is None:
            return nn.functional.linear(x, self.weight, self.bias)
        image = (self.weight @ x.unsqueeze(-1)).squeeze(-1)
        return image if self.bias is None else image + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, elements={self.elements}, bias={self.bias is not None}"


class LeakyReLU(nn.LeakyReLU):
    """The ordinary leaky ReLU; `slope=0` is ReLU."""

    def __init__(
        self, channels: int, *, slope: float = 0.2, shared_direction: bool = False, eps: float | None = None
    ) -> None:
        super().__init__(slope)

    def forward(self, x: Scalars | Everywhere) -> Scalars | Everywhere:  # type: ignore[override]
        if isinstance(x, Everywhere):
            return Everywhere(super().forward(x.overall), super().forward(x.x))
        return super().forward(x)


class Activation(nn.Module):
    """Any scalar function, applied to every neuron."""

    def __init__(
        self,
        channels: int,
        h: Callable[[Tensor], Tensor],
        *,
        signed: bool = True,
        shared_direction: bool = False,
    ) -> None:
        super().__init__()
        self.h = h

    def forward(self, x: Scalars) -> Scalars:
        return self.h(x)


class BatchNorm(nn.Module):
    """Batch norm over every axis but the channels, at any rank."""

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
        normalised = masked_batch_norm(self.bn, x.flatten(0, -2), rows_of(mask, x.shape[:-1]))
        return normalised.view_as(x).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each element."""

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        return super().forward(x)


class InstanceNorm(nn.Module):
    """Each sample's channels get mean 0 and variance 1 over the elements (all axes between batch and channels)."""

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, len(self.weight), rank=3)
        elements = list(range(1, x.ndim - 1))
        centred = x - masked_mean(x, elements, mask)
        variance = masked_mean(centred.square(), elements, mask)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": NoNorm,
}


class Block(nn.Module):
    """Linear → norm → non-linearity."""

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
        bias: bool | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"unknown norm {norm!r}: choose one of {', '.join(NORMS)}")
        # A norm removes a bias, or brings its own: by default there is one only without norm.
        self.linear = Linear(in_channels, out_channels, bias=norm == "none" if bias is None else bias)
        self.norm = NORMS[norm](out_channels)
        self.activation = activation or nn.LeakyReLU(slope)

    def forward(self, x: Scalars | Edges | Everywhere, mask: Mask | None = None) -> NewScalars:
        return self.activation(self.norm(self.linear(x), mask))


class MLP(MLPBase):
    """Blocks from width to width, and a plain linear map to the last."""

    linear, block = Linear, Block


class Dropout(nn.Dropout):
    """The ordinary dropout."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)


class MeanPool(nn.Module):
    """Mean over the axis before the channels: points of a cloud (global) or neighbours of a point (local)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, self.channels, rank=3)
        return masked_mean(x, [-2], mask).squeeze(-2)


def pooled(block: nn.Module, pool: nn.Module, x: Scalars, mask: Mask | None = None) -> NewScalars:
    """A block and a pool over points."""
    result: Tensor = pool(block(x, mask), mask)
    return result


class MaxPool(nn.Module):
    """Maximum over the axis before the channels."""

    def __init__(self, channels: int, *, elements: int | None = None) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, self.channels, rank=3)
        return masked_max(x, mask)


POOLS: dict[Pool, type[nn.Module]] = {"mean": MeanPool, "max": MaxPool}


class EdgeConv(EdgeConvBase):
    """DGCNN's edge convolution: `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbours m of n.

    `cross` takes the channels for coordinates of vectors, three by three, and adds their products `x_m × x_n`.
    """

    block, pools = Block, POOLS

    def check(self, x: Tensor) -> None:
        check_scalars(self, x, self.in_channels, rank=3)
        if self.cross and self.in_channels % 3:
            raise ValueError(f"cross products need coordinates in threes, got {self.in_channels} channels")

    def edges(self, x: Tensor, neighbours: Tensor) -> Tensor:
        if self.cross:
            vectors = x.view(*x.shape[:-1], -1, 3).mT  # the coordinates of one vector stand together, as lifted
            return edge_features(vectors, neighbours, cross=True).mT.flatten(-2)
        return edge_features(x, neighbours)


class Invariant(nn.Module):
    """Scalars have no pose to lose: passes them on."""

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
        self.out_channels = channels

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        return x

    def with_frame(self, x: Scalars, mask: Mask | None = None) -> tuple[Scalars, None]:
        """Give the scalars, and no frame."""
        return x, None

    def pooled(self, x: Scalars, mask: Mask | None = None) -> tuple[Scalars, Scalars, None]:
        """Give the maximum and the mean over the points of a cloud, and no frame."""
        return masked_max(x, mask), masked_mean(x, [1], mask).squeeze(1), None

    @staticmethod
    def read(x: Scalars, frame: None) -> Scalars:
        """Pass further scalars on."""
        return x


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
