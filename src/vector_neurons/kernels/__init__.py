"""Fast backends of a few functions: C++ for CPUs ("native") and Triton for CUDA. The eager backend needs neither.

The C++ library is compiled once, at first use, into the user's cache; `vn kernels build` does it ahead of time.
`use`, `using` or the environment variable `VN_KERNELS` choose the backend:

- `"auto"` (the default): native where it can be built, otherwise eager, with one warning.
- `"eager"`: plain torch operations.
- `"native"`: native, or an error where it cannot be built.
- `"built"`: native if it was built before, otherwise eager; for work that is shorter than compiling.

On CUDA, "native" is Triton where that is installed. CUDA falls back to eager where Triton is missing or fails, and
under `torch.use_deterministic_algorithms`.

Large results of the C++ kernels are allocated from a pool of 2 MB pages, which keeps memory for reuse after the tensors
in it are freed. The memory it keeps beyond the tensors in use is at most 512 MB per process; `VN_KERNELS_POOL` sets
another bound in MB, and `VN_KERNELS_POOL=0` turns the pool off: all memory then comes from torch's allocator.
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
from .ops import register

BackendChoice = Literal["auto", "eager", "native", "built"]
Backend = Literal["eager", "native", "triton"]  # that computes
POOL_MB = 512  # default bound of the page pool
POOL_MAX_MB = 2**20  # a larger value of VN_KERNELS_POOL is a mistake: bytes for megabytes

register()


class _State:
    default: BackendChoice = "auto"
    native: Literal["untried", "missing", "failed", "loaded"] = "untried"  # missing: `"built"` found none
    triton: bool | None = None


_chosen_here: ContextVar[BackendChoice | None] = ContextVar("vector_neurons.kernels", default=None)


def use(backend: BackendChoice) -> None:
    """Choose the backend for the whole process; `using` overrides it within a block.

    Args:
        backend: `"auto"`, `"eager"`, `"native"` or `"built"`, as described in `vector_neurons.kernels`.

    Raises:
        BuildError: `"native"` was chosen and cannot be built.

    >>> before = chosen()
    >>> use("eager")
    >>> chosen()
    'eager'
    >>> use(before)
    """
    _State.default = _checked(backend)


def prefer_built() -> None:
    """Turn a choice of `"auto"` into `"built"`: for work that is shorter than compiling the kernels.

    Any other choice of the user's stays.

    >>> before = chosen()
    >>> use("auto")
    >>> prefer_built()
    >>> chosen()
    'built'
    >>> use(before)
    """
    if _State.default == "auto":
        _State.default = "built"


def chosen() -> BackendChoice:
    """The choice in force: that of `using`, of `use` or of `VN_KERNELS`, in this order.

    >>> with using("built"):
    ...     chosen()
    'built'
    """
    return _chosen_here.get() or _State.default


@contextmanager
def using(backend: BackendChoice) -> Iterator[None]:
    """Choose the backend within a `with` block, for this thread or asynchronous task only.

    Args:
        backend: `"auto"`, `"eager"`, `"native"` or `"built"`, as described in `vector_neurons.kernels`.

    Raises:
        BuildError: `"native"` was chosen and cannot be built.

    >>> with using("eager"):
    ...     backend_of(torch.zeros(2, 3))
    'eager'
    """
    token = _chosen_here.set(_checked(backend))
    try:
        yield
    finally:
        _chosen_here.reset(token)


def _checked(backend: BackendChoice) -> BackendChoice:
    if backend not in get_args(BackendChoice):
        raise ValueError(f"unknown kernels {backend!r}: choose one of {', '.join(get_args(BackendChoice))}")
    if backend == "native":
        _load()
    return backend


def available() -> tuple[BackendChoice, ...]:
    """The backends that work on this machine's CPU: `("eager", "native")` or `("eager",)`.

    Builds the native library if that has not been tried, unless the choice is `"built"`.

    >>> available()[0]
    'eager'
    """
    return ("eager", "native") if _try_native() else ("eager",)


def applicable(x: Tensor) -> bool:
    """Whether blocks should run on a native backend, C++ or Triton, for this tensor.

    They do for float32 and float64 on a CPU or on CUDA, outside of `torch.func` transforms and forward-mode
    differentiation, where the choice in force allows it.

    Args:
        x: input of a block; only dtype and device count.

    >>> applicable(torch.zeros(2, 3, dtype=torch.bfloat16))
    False
    """
    return backend_of(x) != "eager"


def backend_of(x: Tensor) -> Backend:
    """The backend on which blocks run for this tensor, see `applicable`.

    Args:
        x: input of a block; only dtype and device count.

    >>> backend_of(torch.zeros(2, 3, dtype=torch.int64))
    'eager'
    """
    if x.dtype not in (torch.float32, torch.float64) or (not torch.compiler.is_compiling() and _transformed()):
        return "eager"
    if x.device.type == "cpu" and _use_native():
        return "native"
    return "triton" if x.device.type == "cuda" and _use_triton() else "eager"


def _use_native() -> bool:
    return chosen() != "eager" and _try_native()


def _use_triton() -> bool:
    # Its gradients at neighbors are added atomically, in no fixed order.
    return chosen() != "eager" and not torch.are_deterministic_algorithms_enabled() and _try_triton()


# Inside a compiled graph the answers are constants, found in Python, where libraries can be loaded. This is what
# torch.compiler.assume_constant_result does, which also imports the whole compiler.
_use_native._dynamo_marked_constant = _use_triton._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active, which need the eager backend."""
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def _load(*, may_build: bool = True) -> None:
    if _State.native == "loaded":
        return
    try:
        pool_bytes = _pool_bytes()
        path = build() if may_build else built()
        if path is not None:
            torch.ops.load_library(path)  # type: ignore[no-untyped-call]
            torch.ops.vector_neurons.set_page_pool_limit(pool_bytes)
    except BuildError:
        raise
    except (OSError, RuntimeError) as error:  # a library of another system, a file system mounted noexec
        raise BuildError(first_line(error.__cause__ or error)) from error  # torch's own message gives no reason
    _State.native = "missing" if path is None else "loaded"


def _pool_bytes() -> int:
    """The bound of the page pool, from the environment."""
    text = os.environ.get("VN_KERNELS_POOL", str(POOL_MB))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= POOL_MAX_MB):
        raise BuildError(
            f"VN_KERNELS_POOL is {text!r}: give the MB of memory to keep, 0 to {POOL_MAX_MB} (0 turns the pool off)"
        )
    return int(text) * 2**20


def _try_native() -> bool:
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
                from .cuda import ops

                ops.probe()
                ops.register()
            except Exception as error:  # of many kinds: no C compiler, no driver, a GPU too old or too new
                _State.triton = False
                why = str(error).partition("\n")[0]
                warnings.warn(f"vector_neurons runs without its Triton kernels on CUDA: {why}", stacklevel=2)
    return _State.triton


_environment: Any = os.environ.get("VN_KERNELS", "auto")
if _environment not in get_args(BackendChoice):
    raise ValueError(f"VN_KERNELS is {_environment!r}: choose one of {', '.join(get_args(BackendChoice))}")
use(_environment)

__all__ = [
    "Backend",
    "BackendChoice",
    "BuildError",
    "applicable",
    "available",
    "backend_of",
    "build",
    "built",
    "cache",
    "chosen",
    "library",
    "prefer_built",
    "use",
    "using",
]
