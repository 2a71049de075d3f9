"""Fast bodies of a few functions, in C++ for CPUs and in Triton for CUDA. Never required: the plain bodies do the same.

The native library is compiled once, at first use, into the user's cache (`vn kernels build` does it ahead of time).
Which body runs is said by `kernels.use("auto" | "eager" | "native" | "built")` or the environment's `VN_KERNELS`:
`"auto"` takes the native one where it can be built, and warns once where it cannot; `"built"` takes it only where that
was done before, for work that is shorter than compiling. On CUDA, where triton comes with torch, native is Triton;
where that is missing or fails, and where torch is told to be deterministic, CUDA has the plain bodies.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .._files import cache, first_line
from .build import BuildError, build, built, library
from .operators import register

Body = Literal["auto", "eager", "native", "built"]


register()


class _State:
    default: Body = "auto"
    native: Literal["untried", "missing", "failed", "loaded"] = "untried"  # missing: `"built"` found none
    triton: bool | None = None


_chosen_here: ContextVar[Body | None] = ContextVar("vector_neurons.kernels", default=None)


def use(body: Body) -> None:
    """Choose the body for the whole process from here on, except in `using` blocks.

    `"native"` fails where it cannot be built, `"auto"` falls back to the plain one, and so does `"built"`, which takes
    the native one only if it has been built before.
    """
    _State.default = _checked(body)


def prefer_built() -> None:
    """Have `"auto"` mean `"built"` from here on: for work that is shorter than compiling the kernels would be."""
    if _State.default == "auto":
        _State.default = "built"


def chosen() -> Body:
    """What `using`, `use` or the environment chose."""
    return _chosen_here.get() or _State.default


@contextmanager
def using(body: Body) -> Iterator[None]:
    """Choose the body for the length of a `with` block, in this thread (or asynchronous task) only."""
    token = _chosen_here.set(_checked(body))
    try:
        yield
    finally:
        _chosen_here.reset(token)


def _checked(body: Body) -> Body:
    if body not in get_args(Body):
        raise ValueError(f"unknown kernels {body!r}: choose one of {', '.join(get_args(Body))}")
    if body == "native":
        _load()
    return body


def available() -> tuple[Body, ...]:
    """The bodies that work here; builds the native one if that has not been tried and `"built"` does not forbid it."""
    return ("eager", "native") if _try() else ("eager",)


def _native() -> bool:
    return chosen() != "eager" and _try()


def _triton() -> bool:
    # Gradients at neighbours are added in no fixed order there.
    return chosen() != "eager" and not torch.are_deterministic_algorithms_enabled() and _try_triton()


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


def _load(*, may_build: bool = True) -> None:
    if _State.native == "loaded":
        return
    try:
        path = build() if may_build else built()
        if path is not None:
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except BuildError:
        raise
    except (OSError, RuntimeError) as error:  # a library of another system, a disk without programs
        raise BuildError(first_line(error.__cause__ or error)) from error  # torch's own does not say why
    _State.native = "missing" if path is None else "loaded"


def _try() -> bool:
    """Whether the library is loaded, which is tried once, and once more if it was missing and may be built by now."""
    may_build = chosen() != "built"
    if _State.native == "untried" or (_State.native == "missing" and may_build):
        try:
            _load(may_build=may_build)
        except BuildError as error:
            _State.native = "failed"
            warnings.warn(f"vector_neurons runs without its native kernels: {error}", stacklevel=2)
    return _State.native == "loaded"


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


_environment: Any = os.environ.get("VN_KERNELS", "auto")
if _environment not in get_args(Body):
    raise ValueError(f"VN_KERNELS is {_environment!r}: choose one of {', '.join(get_args(Body))}")
use(_environment)

__all__ = [
    "Body", "BuildError", "available", "build", "built", "cache", "chosen", "library", "native", "prefer_built", "use",
    "using",
]  # fmt: skip
