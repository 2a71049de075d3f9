"""Compile the C++ kernels into a shared library in the user's cache, with one call of the compiler per unit.

`torch.utils.cpp_extension` is not used: it needs ninja, setuptools and Python's headers, which this library does not.
"""

import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import torch

from .._constants import RELATIVE_FLOOR
from .._files import FileError, cache, check_regular, first_line, flush, locked, make_folder, read_json, sha256

CPU = Path(__file__).parent / "cpu"
SOURCES = sorted(CPU.iterdir())
# Compilation units, the longest first. Sources that compile no longer than torch's headers do share one.
UNITS = [
    ["norm_leaky_relu.cpp"],
    ["knn.cpp"],
    ["page_pool.cpp", "project.cpp", "length_sums.cpp", "frame_pool.cpp"],
    ["scalar_norm.cpp", "frame_conv.cpp", "farthest_points.cpp"],
    ["edge_max.cpp", "max_mean.cpp"],
]
# AVX-512 for its larger number of registers; its longer vectors were no faster here, and would need more padding.
MACHINES = {"AVX2": ["-march=x86-64-v3"], "AVX512": ["-march=x86-64-v4", "-mprefer-vector-width=256"]}
# With VN_SANITIZE=1, for `make sanitize`: any out-of-bounds access and any undefined behavior ends the process.
# -fsanitize=vptr is off: it would need run-time type information that torch does not export.
SANITIZE = ["-O1", "-g", "-fno-omit-frame-pointer", "-DVN_SANITIZE"]
SANITIZE += ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
# Estimated seconds of one core, for all units and for the longest of them: between a fast and a slow machine.
SECONDS, LONGEST = 115, 45
LEFTOVER = 24 * 3600  # seconds after which the folder of a killed compilation is removed


class BuildError(RuntimeError):
    """The native library cannot be built or loaded; the message says why, in one line."""


def compiler() -> list[str] | None:
    """The C++ compiler: `$CXX`, or the first of the usual names."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    # A compiler may be a command with arguments: "ccache g++".
    with suppress(ValueError):  # an unbalanced quotation mark
        return next((words for name in names if (words := shlex.split(name)) and shutil.which(words[0])), None)
    return None


def flags() -> list[str]:
    """Compiler flags for this CPU, as torch detected it. They are part of the library's cache key and hold no paths."""
    machine = MACHINES.get(torch.backends.cpu.get_cpu_capability(), [])
    sanitized = os.environ.get("VN_SANITIZE", "0") not in ("", "0")
    return [
        "-std=c++20",
        *(SANITIZE if sanitized else ["-O3"]),
        *machine,
        # Without errno and floating-point traps, square roots and comparisons are vectorized; results stay the same.
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fopenmp",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DVN_RELATIVE_FLOOR={RELATIVE_FLOOR!r}",
    ]


def _paths() -> list[str]:
    """Flags with the paths of torch and the sources, which are kept out of the compiled library."""
    root = Path(torch.__file__).parent
    headers = [f"-isystem{root / 'include' / more}" for more in ("", "torch/csrc/api/include")]
    return [*headers, f"-L{root / 'lib'}", *(f"-ffile-prefix-map={path}={path.name}" for path in (root, CPU))]


def library() -> Path:
    """Path of the library for these sources, this build of torch and this machine, whether built or not.

    It does not depend on where torch is installed: environments with the same build of torch share a library, whose
    undefined symbols are resolved by the torch that is already loaded.

    >>> library().suffix
    '.so'
    """
    build_of_torch = [torch.__version__, torch.__config__.show()]
    parts = [*build_of_torch, platform.machine(), *platform.libc_ver(), *flags()]
    key = hashlib.sha256("\n".join(parts).encode())
    for source in SOURCES:
        key.update(source.read_bytes())
    try:
        return cache() / "kernels" / f"{key.hexdigest()[:16]}.so"
    except FileError as error:  # no home
        raise BuildError(str(error)) from error


def built() -> Path | None:
    """Path of the library if it was built and is intact, otherwise None.

    Raises:
        BuildError: another user could have written the library.

    >>> built() in (None, library())
    True
    """
    try:
        target = library()
        for path in (cache(), target.parent, target, _record(target)):
            _refuse_shared(path)
        # Loading a truncated library would crash the process (SIGBUS), at once or later.
        found = {"size": check_regular(target), "sha256": sha256(target)}
        return target if read_json(_record(target), max_bytes=1000) == found else None
    except (FileError, OSError):  # building it will say more
        return None


def build(*, again: bool = False) -> Path:
    """Build the library unless that was done before, and return its path.

    Args:
        again: build it even if it exists.

    Raises:
        BuildError: there is no compiler, it fails, or the cache cannot be written.

    >>> built() is None or build() == library()
    True
    """
    try:
        if (found := built()) and not again:
            return found
        target = library()
        if sys.platform == "win32":
            raise BuildError("they are not built on Windows")
        command = compiler()
        if command is None:
            raise BuildError("no C++ compiler was found (install g++ or clang++, or name one in CXX)")
        make_folder(target.parent)
        # Of several processes that start together one builds, and the others wait for it.
        lock = target.with_suffix(".lock")
        with locked(lock, on_wait=lambda holder: _say(f"waiting for the native kernels, {holder}")):
            if (found := built()) and not again:  # by another process
                return found
            _build(command, target)
    except (OSError, FileError) as error:
        raise BuildError(f"they cannot be written: {first_line(error)}") from error
    return target


def _build(command: list[str], target: Path) -> None:
    if target.exists() and not built():
        _say(f"{target} is damaged and will be replaced")
    cores, started = os.cpu_count() or 1, time.monotonic()
    estimate = f"about {max(LONGEST, SECONDS / cores):.0f} s on {cores} {'core' if cores == 1 else 'cores'}"
    _say(f"building the native kernels, once, {estimate} (VN_KERNELS=eager does without them) ...")
    for left in target.parent.glob("building-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFTOVER:
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-", ignore_cleanup_errors=True) as folder:
        new = Path(folder) / target.name
        _compile(command, new)
        record = _record(new)
        record.write_text(json.dumps({"size": check_regular(new), "sha256": sha256(new)}))
        for file in (new, record):
            file.chmod(0o600)  # whatever the umask
            flush(file)
        # Replaced atomically: another process may be loading it. After a crash in between, the record does not match,
        # and the library is built again.
        for file in (new, record):
            file.replace(target.with_name(file.name))
        flush(target.parent)
    _say(f"built the native kernels in {time.monotonic() - started:.0f} s, into {target.parent}")


def _record(target: Path) -> Path:
    """The file beside a library with its size and checksum."""
    return target.with_suffix(".json")


def _refuse_shared(path: Path) -> None:
    """Raise `BuildError` if another user could have written a file or folder from which code is loaded."""
    if sys.platform == "win32":
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_uid not in (0, os.getuid()):
        raise BuildError(f"{path} belongs to another user (name a folder of your own in XDG_CACHE_HOME)")
    if found.st_mode & 0o022:
        raise BuildError(f"{path} can be written by other users (run `chmod go-w {path}`)")


def _say(line: str) -> None:
    print(f"vector_neurons: {line}", file=sys.stderr, flush=True)


def _compile(compiler: list[str], target: Path) -> None:
    """Compile the units in parallel, and link them."""
    objects = [str(target.with_name(f"{number}.o")) for number in range(len(UNITS))]

    def make(unit: list[str], to: str) -> None:
        *before, last = [str(CPU / name) for name in unit]
        _run(compiler, *(word for source in before for word in ("-include", source)), "-c", last, "-o", to)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, UNITS, objects))  # raises the first error
    _run(compiler, *objects, "-ltorch_cpu", "-lc10", "-o", str(target))


def _run(compiler: list[str], *arguments: str) -> None:
    command = [*compiler, *flags(), *_paths(), *arguments]
    english = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=english)
    except OSError as error:
        raise BuildError(f"{compiler[0]} could not be started: {first_line(error)}") from error
    if done.returncode:
        lines = [*done.stderr.splitlines(), f"exit code {done.returncode}"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise BuildError(f"{' '.join(compiler)} could not compile them: {first}")
