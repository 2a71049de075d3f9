"""Fast bodies of a few functions, in C++ for CPUs. Never required: without them the plain bodies do the same work.

The native library is compiled once, at first use, into the user's cache (`vn kernels build` does it ahead of time).
Which body runs is said by `kernels.use("auto" | "eager" | "native")` or the environment variable `VN_KERNELS`:
`"auto"` takes the native one where it can be built, and warns once where it cannot.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor

from .build import BuildError, build, cache, library
from .operators import register

Body = Literal["auto", "eager", "native"]


class _State:
    chosen: Body = "auto"
    loaded: bool | None = None  # None: not tried yet


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


# Inside a compiled graph the answer is a constant, found in Python, where the library can be loaded. This is what
# torch.compiler.assume_constant_result does, which also imports the whole compiler.
_native._dynamo_marked_constant = True  # type: ignore[attr-defined]


def native(x: Tensor) -> bool:
    """Whether the native body should work on this tensor: on a CPU, in single or double precision."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and _native()


def _load() -> None:
    if not _State.loaded:
        torch.ops.load_library(build())  # type: ignore[no-untyped-call]
        register()
        _State.loaded = True


def _try() -> bool:
    if _State.loaded is None:
        try:
            _load()
        except BuildError as error:
            _State.loaded = False
            warnings.warn(f"vector_neurons runs without its native kernels: {error}", stacklevel=2)
    return bool(_State.loaded)


_environment = os.environ.get("VN_KERNELS", "auto")
if _environment not in get_args(Body):
    raise ValueError(f"VN_KERNELS is {_environment!r}: choose one of {', '.join(get_args(Body))}")
_State.chosen = _environment  # type: ignore[assignment]

__all__ = ["Body", "BuildError", "available", "build", "cache", "chosen", "library", "native", "use", "using"]
