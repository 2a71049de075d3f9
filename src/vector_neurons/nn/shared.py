"""What vector and scalar neurons have in common, written once over a kit's own `Linear`, `Block` and pools.

A `mask` `(B, N)` says which points exist where clouds of different sizes stand in one batch; layers that look beyond
one point (graphs, pools, means, statistics) take it.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.neighbours import knn
from ..typing import BlockOptions, Mask, Neighbours, Pool
from . import sync
from .extremes import RangeError, out_of_range, readable
from .functional import mask_like
from .fused import autocast
from .unbuilt import Edges, WithMean

AnyBatchNorm = nn.BatchNorm1d | nn.SyncBatchNorm


class NoNorm(nn.Module):
    """The norm `"none"`."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        return x


def rows_of(mask: Mask | None, shape: Sequence[int]) -> Tensor | None:
    """The mask of points, one entry for each of all the elements (edges, too) of `shape`."""
    return None if mask is None else mask_like(mask, len(shape)).expand(shape).flatten()


def masked_batch_norm(bn: AnyBatchNorm, rows: Tensor, mask: Tensor | None) -> Tensor:
    """Batch norm of `rows` `(M, C)`, its statistics learned from the rows that exist."""
    rows = rows.to(bn.weight.dtype)
    if bn.training and isinstance(bn, nn.SyncBatchNorm):  # statistics from all processes
        return bn(rows) if mask is None else torch.zeros_like(rows).masked_scatter(mask.unsqueeze(-1), bn(rows[mask]))
    if not bn.training and bn.running_mean is not None and bn.running_var is not None:
        mean, variance = bn.running_mean, bn.running_var
    else:
        mean, variance, count = batch_statistics(rows, mask, share=bn.training and sync.shared())
        if bn.training and bn.track_running_stats:
            learn(bn, mean, variance, count)
    return torch.addcmul(bn.bias, rows - mean, bn.weight * (variance + bn.eps).rsqrt())


def check_enough(elements: int) -> None:
    """Refuse to learn a spread from a single element."""
    if elements < 2:
        raise ValueError(f"batch norm in training mode needs more than one element to learn from, got {elements}")


def batch_statistics(rows: Tensor, mask: Tensor | None, *, share: bool = False) -> tuple[Tensor, Tensor, int | Tensor]:
    """Mean and (biased) variance of each column of `rows` `(M, C)`, over the rows that exist, and their number.

    By two plain sums: torch's batch norm and `var_mean` add up row by row, which costs a float64 gradient two digits.
    With `share`, over the rows of all processes.
    """
    if not share:
        check_enough(len(rows))
    mean, count = batch_mean(rows, mask, share=share)
    variance, _ = batch_mean((rows - mean).square(), mask, share=share)
    return mean, variance, count


def batch_mean(rows: Tensor, mask: Tensor | None, *, share: bool) -> tuple[Tensor, int | Tensor]:
    """Mean over the rows that exist, and their number; with `share` of all processes."""
    if mask is None and not share:
        return rows.mean(0), len(rows)
    present = rows.new_ones(len(rows), 1, dtype=torch.bool) if mask is None else mask.unsqueeze(-1)
    sums, count = rows.where(present, 0).sum(0), present.sum()
    if share:
        sums, count = sync.total(sums), sync.total(count)
    return sums / count, count


@torch.no_grad()
def learn(bn: AnyBatchNorm, mean: Tensor, variance: Tensor, count: int | Tensor) -> None:
    """Move the running statistics towards the batch's, as torch's batch norm does."""
    past_mean, past_variance = bn.get_buffer("running_mean"), bn.get_buffer("running_var")
    count = count.to(variance.dtype) if isinstance(count, Tensor) else count
    unbiased = variance * (count / (count - 1))
    if readable(unbiased) and unbiased.device.type == "cpu":  # else every later evaluation would suffer
        largest, dtype = unbiased.amax().item(), past_variance.dtype
        if torch.finfo(dtype).max < largest < torch.inf:
            raise RangeError(out_of_range(f"batch norm would learn a variance of {largest:.0e}", dtype))
    bn.get_buffer("num_batches_tracked").add_(1)
    # Without a momentum, all batches since the start count alike.
    share = bn.get_buffer("num_batches_tracked").to(mean.dtype).reciprocal() if bn.momentum is None else bn.momentum
    past_mean.lerp_(mean.to(past_mean.dtype), share)
    past_variance.lerp_(unbiased.to(past_variance.dtype), share)


class MLPBase(nn.Sequential):
    """Blocks from width to width, and a plain linear map to the last."""

    linear: ClassVar[type[nn.Module]]
    block: ClassVar[type[nn.Module]]

    def __init__(self, widths: Sequence[int], **options: Unpack[BlockOptions]) -> None:
        if len(widths) < 2:
            raise ValueError(f"an MLP needs at least an input and an output width, got {list(widths)}")
        blocks = [self.block(a, b, **options) for a, b in pairwise(widths[:-1])]
        super().__init__(*blocks, self.linear(*widths[-2:]))

    def forward(self, x: Tensor | WithMean, mask: Mask | None = None) -> Tensor:
        *blocks, linear = self
        for block in blocks:
            x = block(x, mask)
        last: Tensor = linear(x)
        return last

    def __getitem__(self, index: slice | int) -> nn.Module:
        # A part of an MLP is no MLP, which nn.Sequential would build from it; like any nn.Sequential it takes no mask.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self.named_children())[index]))
        return super().__getitem__(index)


class EdgeConvBase(nn.Module, ABC):
    """Edges of a graph, a block on each, a pool over each point's neighbours."""

    block: ClassVar[type[nn.Module]]
    pools: ClassVar[dict[Pool, type[nn.Module]]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int | Sequence[int],
        k: int = 20,
        *,
        cross: bool = False,
        pool: Pool = "mean",
        include_self: bool = True,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"an edge convolution needs k >= 1 neighbours, got {k}")
        if pool not in self.pools:
            raise ValueError(f"unknown pool {pool!r}: choose one of {', '.join(self.pools)}")
        widths = [out_channels] if isinstance(out_channels, int) else list(out_channels)
        self.in_channels, self.out_channels, self.k = in_channels, widths[-1], k
        self.cross, self.include_self = cross, include_self
        edge_channels = in_channels * (3 if cross else 2)
        self.blocks = nn.ModuleList(self.block(a, b, **options) for a, b in pairwise([edge_channels, *widths]))
        self.pool = self.pools[pool](self.out_channels)

    def forward(
        self,
        x: Float[Tensor, "batch points *feature"],
        neighbours: Neighbours | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch points *out"]:
        self.check(x)
        if neighbours is None:
            neighbours = knn(x, self.k, include_self=self.include_self, mask=mask)
        else:
            self._check_graph(neighbours, x)
        return self.convolve(x, neighbours, mask)

    def convolve(self, x: Tensor, neighbours: Tensor, mask: Mask | None) -> Tensor:
        """Blocks on the edges of the graph, and the pool."""
        # A lifted cloud's edges are cheap, and their differences small: there, building them keeps a digit.
        # Half precision would lose the difference of neighbours in the difference of their images.
        half = x.dtype in (torch.float16, torch.bfloat16) or autocast(x)
        build = self.cross or self.in_channels <= 3 or half
        edges = self.edges(x, neighbours) if build else Edges(x, neighbours)
        *first, last = self.blocks
        for block in first:
            edges = block(edges, mask)
        return self.pooled(last, edges, mask)

    @staticmethod
    def _check_graph(neighbours: Tensor, x: Tensor) -> None:
        if neighbours.shape[:2] != x.shape[:2]:
            expected, found = tuple(x.shape[:2]), tuple(neighbours.shape)
            raise ValueError(f"a graph of {expected} clouds and points has neighbours {(*expected, 'k')}, got {found}")
        if (
            neighbours.numel()
            and readable(neighbours)
            and not (neighbours.min() >= 0 and neighbours.max() < x.shape[1])
        ):
            raise ValueError(f"neighbours must be indices 0 to {x.shape[1] - 1} of the cloud's own points")

    def pooled(self, block: nn.Module, edges: Tensor | Edges, mask: Mask | None) -> Tensor:
        """The last block, and the pool."""
        result: Tensor = self.pool(block(edges, mask))
        return result

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse features of the wrong shape."""

    @abstractmethod
    def edges(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Features of every edge."""

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, k={self.k}, cross={self.cross}"
