"""Fast bodies of a few functions, in C++ for CPUs and in Triton for CUDA. Never required: the plain bodies do the same.

The native library is compiled once, at first use, into the user's cache (`vn kernels build` does it ahead of time).
Which body runs is said by `kernels.use("auto" | "eager" | "native")` or the environment variable `VN_KERNELS`:
`"auto"` takes the native one where it can be built, and warns once where it cannot. On CUDA, where triton comes with
torch, native is Triton; where that is missing or fails, and where torch is told to be deterministic, CUDA has the plain
bodies.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import Tensor

from .._files import cache
from .build import BuildError, build, built, library
from .operators import register

Body = Literal["auto", "eager", "native"]


register()


class _State:
    chosen: Body = "auto"
    loaded: bool | None = None  # None: not tried yet
    triton: bool | None = None


def use(body: Body) -> None:
    """Choose the body from here on; `"native"` fails where it cannot be built, `"auto"` falls back to the plain one."""
    if body not in get_args(Body):
        raise ValueError(f"unknown kernels {body!r}: choose one of {', '.join(get_args(Body))}")
    if body == "native":
        _load()
    _State.chosen = body


def chosen() -> Body:
    """What `use` or the environment chose."""
    return _State.chosen


@contextmanager
def using(body: Body) -> Iterator[None]:
    """Choose the body for the length of a `with` block."""
    before = _State.chosen
    use(body)
    try:
        yield
    finally:
        _State.chosen = before


def available() -> tuple[Body, ...]:
    """The bodies that work here; builds the native one if that has not been tried."""
    return ("eager", "native") if _try() else ("eager",)


def _native() -> bool:
    return _State.chosen != "eager" and _try()


def _triton() -> bool:
    # Gradients at neighbours are added in no fixed order there.
    return _State.chosen != "eager" and not torch.are_deterministic_algorithms_enabled() and _try_triton()


# Inside a compiled graph the answers are constants, found in Python, where libraries can be loaded. This is what
# torch.compiler.assume_constant_result does, which also imports the whole compiler.
_native._dynamo_marked_constant = _triton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def native(x: Tensor) -> bool:
    """Whether the native body of blocks should work on this tensor: on a CPU or CUDA, in single or double precision."""
    if x.dtype not in (torch.float32, torch.float64) or (not torch.compiler.is_compiling() and _transformed()):
        return False
    return _triton() if x.device.type == "cuda" else x.device.type == "cpu" and _native()


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, which needs the plain bodies."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def _load() -> None:
    if not _State.loaded:
        try:
            torch.ops.load_library(build())  # type: ignore[no-untyped-call]
        except BuildError:
            raise
        except (OSError, RuntimeError) as error:  # no home folder, a library of another system, a disk without programs
            raise BuildError(str(error).partition("\n")[0]) from error
        _State.loaded = True


def _try() -> bool:
    if _State.loaded is None:
        try:
            _load()
        except BuildError as error:
            _State.loaded = False
            warnings.warn(f"vector_neurons runs without its native kernels: {error}", stacklevel=2)
    return bool(_State.loaded)


def _try_triton() -> bool:
    if _State.triton is None:
        _State.triton = find_spec("triton") is not None
        if _State.triton:
            try:
                from . import triton

                triton.probe()
                triton.register()
            except Exception as error:  # of many kinds: no C compiler, no driver, a GPU too old or too new
                _State.triton = False
                why = str(error).partition("\n")[0]
                warnings.warn(f"vector_neurons runs without its Triton kernels on CUDA: {why}", stacklevel=2)
    return _State.triton


_environment = os.environ.get("VN_KERNELS", "auto")
if _environment not in get_args(Body):
    raise ValueError(f"VN_KERNELS is {_environment!r}: choose one of {', '.join(get_args(Body))}")
_State.chosen = _environment  # type: ignore[assignment]
if _environment == "native":
    _load()

__all__ = [
    "Body", "BuildError", "available", "build", "built", "cache", "chosen", "library", "native", "use", "using",
]  # fmt: skip
