"""Run layers in float64 on features whose squares would overflow or underflow single precision.

Finding them costs one pass over a layer's input on a CPU. It is not done on other devices (reading the value would wait
for them) nor in compiled graphs, where squares overflow from about 1e19 on (1e9 with cross products).
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import sync


class RangeError(ValueError):
    """Values beyond the range of their dtype; the message is one line."""


MAX_SQUARABLE = 2.0**57  # squared lengths, summed over channels, fit float32, with room for a linear map
MAX_CROSSABLE = 2.0**28  # the same for cross products
MIN_SQUARABLE = 2.0**-17  # a thousandth of this, squared, is above what `functional` treats as zero
MAX_GRADIENT = 2.0**100  # a network can still sum many of these


def is_concrete(x: Tensor) -> bool:
    """Whether control flow may depend on the values of a tensor: not when compiled, traced or under torch.func."""
    eager = x.device.type != "meta" and not torch.compiler.is_compiling() and not torch._C._is_tracing()
    return eager and not torch._C._are_functorch_transforms_active()


def needs_float64(x: Any, largest: float = MAX_SQUARABLE) -> bool:
    """Whether squares of features (a tensor, or the first of a factored input) would overflow or underflow."""
    size = max_abs(x[0] if isinstance(x, tuple) else x)
    return largest < size < torch.inf or 0 < size < MIN_SQUARABLE


def check_magnitude(x: Tensor, largest: float, what: str) -> None:
    """Refuse values beyond `largest`."""
    size = max_abs(x)
    if largest < size < torch.inf:
        raise RangeError(out_of_range(f"{what} with coordinates of {size:.0e} lead to numbers", x.dtype))


def max_abs(x: Any) -> float:
    """The largest absolute value of a CPU tensor in single precision; 0 for others, whose range is not checked."""
    # Tensor subclasses may hold no values; float16 is computed in float32 anyway.
    if type(x) not in (Tensor, nn.Parameter) or x.dtype not in (torch.float32, torch.bfloat16):
        return 0.0
    if x.device.type != "cpu" or not is_concrete(x) or not x.numel():
        return 0.0
    low, high = torch.aminmax(x.detach())
    return max(-low.item(), high.item())


def in_float64(forward: Callable[..., Any], x: Any, *args: Any, **options: Any) -> Any:
    """Call a layer's method on features in float64 and round the result; refuse results beyond the input's dtype."""
    module, name = forward.__self__, forward.__name__  # type: ignore[attr-defined]
    wide, dtype = (type(x)(*map(widen, x)), x[0].dtype) if isinstance(x, tuple) else (widen(x), x.dtype)
    result = getattr(_replica(module), name)(wide, *args, **options)
    # An error in one of many processes would leave the others waiting for its batch statistics: there the loss tells.
    what = None if module.training and sync.enabled() else type(module).__name__
    if isinstance(result, Tensor):
        return narrow(result, dtype, what)
    return tuple(narrow(y, dtype, what) for y in result)


def narrow(x: Tensor, dtype: torch.dtype, what: str | None) -> Tensor:
    """Convert to `dtype`; if a finite value does not fit, raise an error about `what`, or give infinity without it."""
    size = x.detach().abs().amax().item() if what and x.numel() else 0.0
    if torch.finfo(dtype).max < size < torch.inf:
        raise RangeError(out_of_range(f"{what} gives features of {size:.0e}", dtype))
    return x.to(dtype)


def out_of_range(what: str, dtype: torch.dtype) -> str:
    """The message about values that do not fit a dtype."""
    kind = str(dtype).removeprefix("torch.")
    return (
        f"{what}, beyond the range of {kind}: bring clouds to unit size (geometry.sampling.unit_ball), or use float64"
    )


def widen(x: Tensor) -> Tensor:
    """Convert to float64; the gradient is clamped to `MAX_GRADIENT` on the way back, since inf would become NaN."""
    return _Widen.apply(x)  # type: ignore[no-untyped-call]


class _Widen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return x.double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-MAX_GRADIENT, MAX_GRADIENT).to(ctx.dtype)


def _replica(module: nn.Module) -> nn.Module:
    """A shallow copy with parameters in float64, whose gradients flow back to the module's own; buffers are shared.

    Not `torch.func.functional_call`, which changes the module during the call, for other threads too, and calls its
    hooks again.
    """
    replica = copy.copy(module)
    parameters = {name: None if p is None else widen(p) for name, p in module._parameters.items()}
    modules = {name: None if m is None else _replica(m) for name, m in module._modules.items()}
    replica.__dict__.update(_parameters=parameters, _modules=modules)
    return replica
