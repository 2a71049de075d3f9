"""Batch statistics over all processes of a distributed training, on any device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _State:
    on = False


@contextmanager
def synchronized(on: bool = True) -> Iterator[None]:
    """Compute the statistics of every batch norm in training mode over all processes, which must call it in step."""
    before, _State.on = _State.on, on
    try:
        yield
    finally:
        _State.on = before


def enabled() -> bool:
    """Whether batch statistics are computed over all processes."""
    return _State.on


class _AllReduceSum(torch.autograd.Function):
    """A sum over processes. Every process's loss depends on every summand, so gradients are summed, too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def all_reduce_sum(x: Tensor) -> Tensor:
    """Sum over all processes, differentiable."""
    return _AllReduceSum.apply(x)  # type: ignore[no-untyped-call]
