"""Features so large or small that their squares leave the range of single precision: layers work on them in double.

The look that tells them apart costs one pass over a layer's input, on a CPU. There is none on other devices (it would
wait for them) nor in compiled graphs, where squares overflow from some 1e19 on (1e9 with cross products).
"""

import copy
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from . import sync

T = TypeVar("T")


class RangeError(ValueError):
    """Numbers beyond the range of their type; the message is one line."""


# Squares of lengths, and their sums over channels, are in the range of float32, with room for a linear map.
LARGE = 2.0**57
LARGE_CROSS = 2.0**28  # the same of cross products
SMALL = 2.0**-17  # a thousandth of this, squared, is still above what `functional` takes for zero
GRADIENT = 2.0**100  # of which a network can still add up many


def readable(x: Tensor) -> bool:
    """Whether code may depend on the numbers in a tensor: not while it is compiled or transformed by torch.func."""
    plain = x.device.type != "meta" and not torch.compiler.is_compiling() and not torch._C._is_tracing()
    return plain and not torch._C._are_functorch_transforms_active()


def extreme(x: Any, large: float = LARGE) -> bool:
    """Whether squares of features, a tensor or the first of a tuple, would overflow or vanish; those of zero do not."""
    size = size_of(x[0] if isinstance(x, tuple) else x)
    return large < size < torch.inf or 0 < size < SMALL


def check_size(x: Tensor, most: float, what: str) -> None:
    """Refuse numbers beyond `most`."""
    size = size_of(x)
    if most < size < torch.inf:
        raise RangeError(out_of_range(f"{what} with coordinates of {size:.0e} lead to numbers", x.dtype))


def size_of(x: Any) -> float:
    """The largest absolute value, or 0 if it must not be looked at, is not in single precision, or there is none."""
    # Other types of tensors may have no numbers; those of float16 are widened anyway.
    if type(x) not in (Tensor, nn.Parameter) or x.dtype not in (torch.float32, torch.bfloat16):
        return 0.0
    if x.device.type != "cpu" or not readable(x) or not x.numel():
        return 0.0
    low, high = torch.aminmax(x.detach())
    return max(-low.item(), high.item())


def in_double(method: Callable[..., T], x: Any, *more: Any) -> T:
    """What a layer's method gives for features in float64, in their own precision; refused if that is too narrow."""
    module, name = method.__self__, method.__name__  # type: ignore[attr-defined]
    wide, dtype = (type(x)(*map(widen, x)), x[0].dtype) if isinstance(x, tuple) else (widen(x), x.dtype)
    found: Any = getattr(_replica(module), name)(wide, *more)
    one = isinstance(found, Tensor)
    # One of many processes must not leave the others waiting for its batch statistics: there the loss will tell.
    what = None if module.training and sync.shared() else type(module).__name__
    narrowed = tuple(narrow(y, dtype, what) for y in ((found,) if one else found))
    return cast(T, narrowed[0] if one else narrowed)


def narrow(x: Tensor, dtype: torch.dtype, what: str | None) -> Tensor:
    """A result in single precision; an error about `what` if it does not fit, or infinity without."""
    size = x.detach().abs().amax().item() if what and x.numel() else 0.0
    if torch.finfo(dtype).max < size < torch.inf:
        raise RangeError(out_of_range(f"{what} gives features of {size:.0e}", dtype))
    return x.to(dtype)


def out_of_range(what: str, dtype: torch.dtype) -> str:
    """The words for numbers that do not fit."""
    kind = str(dtype).removeprefix("torch.")
    return (
        f"{what}, beyond the range of {kind}: bring clouds to unit size (geometry.sampling.unit_ball), or use float64"
    )


def widen(x: Tensor) -> Tensor:
    """The same in float64. A gradient beyond the range of single precision ends at `GRADIENT`: inf would become NaN."""
    wide: Tensor = _Widen.apply(x)  # type: ignore[no-untyped-call]
    return wide


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return x.double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-GRADIENT, GRADIENT).to(ctx.dtype)


def _replica(module: nn.Module) -> nn.Module:
    """The module with parameters in float64, from which gradients go back to its own; buffers are the same.

    Not `torch.func.functional_call`, which changes the module for the time of the call, for other threads too, and
    calls its hooks again.
    """
    replica = copy.copy(module)
    parameters = {name: None if p is None else widen(p) for name, p in module._parameters.items()}
    modules = {name: None if m is None else _replica(m) for name, m in module._modules.items()}
    replica.__dict__.update(_parameters=parameters, _modules=modules)
    return replica
