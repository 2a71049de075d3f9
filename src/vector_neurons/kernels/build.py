"""Compile the native library: one call of the C++ compiler, its result kept in the user's cache.

Not `torch.utils.cpp_extension`: that needs ninja, setuptools and Python's headers, none of which this library does.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCES = sorted((Path(__file__).parent / "native").iterdir())
# AVX-512 machines run the AVX2 code: measured, it is as fast here, with less padding of channels.
MACHINES = {"AVX2": "x86-64-v3", "AVX512": "x86-64-v3"}


class BuildError(RuntimeError):
    """The native library cannot be built; the text says why, in one line."""


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


def flags() -> list[str]:
    """What the compiler is told, chosen by the capability that torch found in this CPU."""
    machine = MACHINES.get(torch.backends.cpu.get_cpu_capability())
    root = Path(torch.__file__).parent
    return [
        "-std=c++20",
        "-O3",
        *([f"-march={machine}"] if machine else []),
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
    target = library()
    if target.is_file() and not again:
        return target
    if sys.platform == "win32":
        raise BuildError("they are not built on Windows")
    found = compiler()
    if found is None:
        raise BuildError("no C++ compiler was found (install g++ or clang++, or name one in CXX)")
    print(f"vector_neurons: building the native kernels, once, into {target.parent} ...", file=sys.stderr, flush=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            fresh = Path(folder) / target.name
            libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]
            command = [found, *flags(), *(str(s) for s in SOURCES if s.suffix == ".cpp"), *libraries, "-o", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
                raise BuildError(f"{found} could not compile them: {first}")
            fresh.replace(target)  # at once: two processes may build at the same time
    except OSError as error:
        raise BuildError(f"they cannot be written: {error}") from error
    return target
