"""Pooling of scalar features over points or neighbors."""

from collections.abc import Callable

from jaxtyping import Int
from torch import Tensor, nn

from ..geometry.segments import segment_max, segment_mean
from ..typing import Mask, NewScalars, Pool, Scalars
from . import _dispatch_scalar
from ._checks import check_scalars, hooked
from ._graph import check_batch
from ._masked import masked_mean
from .scalar_block import Block


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
