"""Batch statistics of all processes together, on any device, in training that many processes share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _State:
    on = False


@contextmanager
def synchronised(on: bool = True) -> Iterator[None]:
    """Within, every batch norm in training mode learns from the rows of all processes, which must call it in step."""
    before, _State.on = _State.on, on
    try:
        yield
    finally:
        _State.on = before


def shared() -> bool:
    """Whether batch statistics are those of all processes."""
    return _State.on


class _Total(torch.autograd.Function):
    """A sum over processes. Each one's loss depends on what every other put in: so do gradients add up."""

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


def total(x: Tensor) -> Tensor:
    """The sum over all processes, which autograd sees."""
    summed: Tensor = _Total.apply(x)  # type: ignore[no-untyped-call]
    return summed
