"""Pooling over points or neighbors."""

from collections.abc import Callable
from typing import TypeGuard

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ..geometry.neighbors import tie_tolerance
from ..geometry.segments import first_largest, segment_amax, segment_mean, take
from ..typing import Mask, NewVectors, Pool, Vectors
from . import functional as VF
from ._checks import check_vectors, hooked
from ._dispatch import LayerInput, fusable
from ._graph import check_batch
from ._range import in_float64, needs_float64
from .block import Block
from .linear import Linear


class MeanPool(nn.Module):
    """Mean over the axis before the vectors: the points of a cloud, or the neighbors of a point.

    Shape:
        - x: `(B, ..., N, 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., 3, C)`
        - with batch `(N,)`, int64, the cloud of each point in any order, x: `(N, 3, C)`, out: `(clouds, 3, C)`; `size`
          is the number of clouds, by default the largest in batch plus 1; a cloud without points gets zeros

    Equivariant to O(D) and scaling, invariant to permutations.

    >>> vn.MeanPool()(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def forward(
        self,
        x: Vectors,
        mask: Mask | None = None,
        *,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Vectors:
        if batch is not None or size is not None:
            return segment_mean(x, *check_batch(self, batch, x, mask, size, rank=3))
        check_vectors(self, x, None, rank=4)
        return VF.mean_pool(x, mask)


class MaxPool(nn.Module):
    """VN-Max over the axis before the vectors: per channel, the vector best aligned with its direction `W V`.

    As in the paper, `W` only decides which vector is taken. A choice has no gradient, so `W` stays as initialized.

    Args:
        channels: vectors in and out.
        num_elements: gives each of so many neighbors a direction matrix of its own (the supplement's `W_k`).

    Shape:
        - x: `(B, ..., N, 3, channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., 3, channels)`
        - batch and size as in `MeanPool`

    Equivariant to O(D) and scaling, invariant to permutations (with `num_elements` not).

    >>> vn.MaxPool(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, channels: int, *, num_elements: int | None = None) -> None:
        super().__init__()
        self.direction = Linear(channels, channels, num_elements=num_elements)
        self.direction.weight.requires_grad_(False)  # distributed training would wait for its gradient

    def forward(
        self,
        x: Vectors,
        mask: Mask | None = None,
        *,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Vectors:
        segmented = batch is not None or size is not None
        check_vectors(self, x, self.direction.in_channels, rank=3 if segmented else 4)
        if needs_float64(x):
            return in_float64(self.forward, x, mask, batch=batch, size=size)
        if segmented:
            if self.direction.num_elements is not None:
                raise ValueError("MaxPool(num_elements=K) needs K neighbors in order, (B, N, K, 3, C): not batch")
            return segment_max_pool(x, self.direction(x), *check_batch(self, batch, x, mask, size, rank=3))
        return VF.max_pool(x, self.direction(x), mask)


def segment_max_pool(x: Vectors, k: Vectors, index: Int[Tensor, " rows"], size: int) -> Vectors:
    """VN-Max over the rows of each segment, as `functional.max_pool`: `x` `(E, 3, C)` to `(size, 3, C)`."""
    wide, directions = (y if y.dtype == torch.float64 else y.float() for y in (x.detach(), k.detach()))
    product = (wide * directions).sum(-2)
    lengths = (VF.squared_norm(wide) * VF.squared_norm(directions)).sqrt()
    tolerance = tie_tolerance(product.dtype) * segment_amax(lengths, index, size)
    return take(x, first_largest(product, index, size, tolerance))


POOLS: dict[Pool, Callable[[int], nn.Module]] = {"mean": lambda channels: MeanPool(), "max": MaxPool}


def can_fuse(block: nn.Module, pool: nn.Module, x: LayerInput) -> TypeGuard[Block]:
    """Whether the kernels can average the output of the block, so that it need not be stored before the pool."""
    plain = type(pool) is MeanPool and type(block) is Block and not hooked(pool) and not hooked(block)
    return plain and fusable(x)


def block_pool(block: nn.Module, pool: nn.Module, x: Vectors, mask: Mask | None = None) -> NewVectors:
    """Apply a block and a pool over points, in one kernel where possible."""
    if mask is None and can_fuse(block, pool, x):
        return block(x, mean_pool=True)
    return pool(block(x, mask), mask)
