"""Compile the native library: one call of the C++ compiler a source, the result kept in the user's cache.

Not `torch.utils.cpp_extension`: that needs ninja, setuptools and Python's headers, none of which this library does.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

NATIVE = Path(__file__).parent / "native"
SOURCES = sorted(NATIVE.iterdir())
# What is compiled at once: the longest first, and those together that are little more than torch's headers.
UNITS = [["bend.cpp"], ["knn.cpp"], ["images.cpp", "moments.cpp", "read.cpp"]]
# AVX-512 has more registers; its longer vectors were measured to be no faster here, and would need more padding.
MACHINES = {"AVX2": ["-march=x86-64-v3"], "AVX512": ["-march=x86-64-v4", "-mprefer-vector-width=256"]}


class BuildError(RuntimeError):
    """The native library cannot be built; the text says why, in one line."""


def compiler() -> list[str] | None:
    """The C++ compiler: `$CXX`, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    # A compiler may be a command with arguments: "ccache g++".
    return next((words for name in names if (words := shlex.split(name)) and shutil.which(words[0])), None)


def flags() -> list[str]:
    """What the compiler is told, chosen by the capability that torch found in this CPU."""
    machine = MACHINES.get(torch.backends.cpu.get_cpu_capability(), [])
    root = Path(torch.__file__).parent
    return [
        "-std=c++20",
        "-O3",
        *machine,
        # No signs of errors to keep: square roots and comparisons can then be vectorised. Arithmetic stays exact.
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fopenmp",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{root / 'include' / more}" for more in ("", "torch/csrc/api/include")),
    ]


def cache() -> Path:
    """The library's folder among the user's caches."""
    if sys.platform == "darwin":
        home = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        home = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "vector-neurons"


def library() -> Path:
    """Path of the library for these sources, this torch and this machine, whether built or not."""
    key = hashlib.sha256("\n".join([torch.__version__, platform.machine(), *flags()]).encode())
    for source in SOURCES:
        key.update(source.read_bytes())
    return cache() / "kernels" / f"{key.hexdigest()[:16]}.so"


def build(*, again: bool = False) -> Path:
    """Build the library unless it is there, and give its path."""
    try:
        target = library()
        if target.is_file() and not again:
            return target
        if sys.platform == "win32":
            raise BuildError("they are not built on Windows")
        found = compiler()
        if found is None:
            raise BuildError("no C++ compiler was found (install g++ or clang++, or name one in CXX)")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock")), tempfile.TemporaryDirectory(dir=target.parent) as folder:
            if target.is_file() and not again:  # by now
                return target
            where = f"once, into {target.parent} ..."
            print(f"vector_neurons: building the native kernels, {where}", file=sys.stderr, flush=True)
            fresh = Path(folder) / target.name
            _compile(found, fresh)
            fresh.replace(target)  # at once: somebody may be loading it
    except OSError as error:
        raise BuildError(f"they cannot be written: {error}") from error
    return target


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time: of many that start together, one builds, and the others wait for it."""
    import fcntl  # not on Windows

    with lock.open("w") as file:
        with suppress(OSError):  # a disk without locks: all build then, and the last one's stays
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(compiler: list[str], target: Path) -> None:
    """All units at the same time, as far as there are cores, then one library of them."""
    objects = [str(target.with_name(f"{number}.o")) for number in range(len(UNITS))]

    def make(unit: list[str], to: str) -> None:
        *before, last = [str(NATIVE / name) for name in unit]
        _run(compiler, *(word for source in before for word in ("-include", source)), "-c", last, "-o", to)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, UNITS, objects))  # raises what went wrong
    _run(compiler, *objects, f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10", "-o", str(target))


def _run(compiler: list[str], *arguments: str) -> None:
    command = [*compiler, *flags(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if done.returncode:
        lines = [*done.stderr.splitlines(), f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(f"{' '.join(compiler)} could not compile them: {first}")
