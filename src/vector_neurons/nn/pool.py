"""Pooling over points or neighbors."""

from collections.abc import Callable
from typing import TypeGuard

from torch import nn

from ..typing import Mask, NewVectors, Pool, Vectors
from . import functional as VF
from ._checks import check_vectors, hooked
from ._dispatch import LayerInput, fusable
from ._range import in_float64, needs_float64
from .block import Block
from .linear import Linear


class MeanPool(nn.Module):
    """Mean over the axis before the vectors: the points of a cloud, or the neighbors of a point.

    Shape:
        - x: `(B, ..., N, 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., 3, C)`

    Equivariant to O(D) and scaling, invariant to permutations.

    >>> vn.MeanPool()(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
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

    Equivariant to O(D) and scaling, invariant to permutations (with `num_elements` not).

    >>> vn.MaxPool(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, channels: int, *, num_elements: int | None = None) -> None:
        super().__init__()
        self.direction = Linear(channels, channels, num_elements=num_elements)
        self.direction.weight.requires_grad_(False)  # distributed training would wait for its gradient

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, self.direction.in_channels, rank=4)
        if needs_float64(x):
            return in_float64(self.forward, x, mask)
        return VF.max_pool(x, self.direction(x), mask)


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
