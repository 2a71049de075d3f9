"""Bytes and arrays of files, with bounds that are checked before anything is read.

Only regular files are read, transient errors of the system are retried, and an array is allocated only after its
header was compared with the bytes that are there.
"""

import errno
import math
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .._files import FileError, check_regular
from .mesh import MeshError

T = TypeVar("T")
FILE_MAX_BYTES = 2**28  # of one mesh or cloud: parsed, it takes a few times as much memory
ARRAYS_MAX_BYTES = 2**29  # of the arrays of one mesh or cloud, in memory
RATIO_MAX, RATIO_FREE_BYTES = 200, 2**28  # compression beyond which a large member is no data but a bomb
TRANSIENT = {
    *(errno.EAGAIN, errno.EINTR, errno.EIO, errno.ENFILE, errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT, errno.EBUSY)
}
WAITS = (0.05, 0.2, 0.8)  # seconds before another attempt


def patiently(read: Callable[[], T]) -> T:
    """Call a function that reads, again after a while if the system was busy."""
    for wait in WAITS:
        try:
            return read()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(wait)
    return read()


def regular(path: Path) -> int:
    """The size of a regular file, in bytes; what is none is refused. Errors of the system are raised as they are."""
    try:
        return check_regular(path)
    except FileError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise MeshError(str(error)) from error


def read_bytes(path: Path) -> bytes:
    """The content of a regular file."""

    def read() -> bytes:
        if (size := regular(path)) > FILE_MAX_BYTES:
            raise MeshError(
                f"{path} is too large: {size:,} bytes, at most {FILE_MAX_BYTES:,} are read; reduce it first"
            )
        return path.read_bytes()

    return patiently(read)


def load_npz(
    path: Path, pick: Callable[[Sequence[str]], Sequence[str]], most: int | None = None
) -> dict[str, NDArray[Any]]:
    """Arrays of an `.npz` file: those that `pick` chooses from their names, and no others are inflated."""

    def read() -> dict[str, NDArray[Any]]:
        regular(path)
        # Opened here, because zipfile leaves a file open that turns out to be damaged.
        with path.open("rb") as opened, zipfile.ZipFile(opened) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: members[name] for name in pick(list(members))}
            large = sum(info.file_size for info in wanted.values())
            _bound(path, large, most)
            small = sum(info.compress_size for info in wanted.values())
            if large > RATIO_FREE_BYTES and large > RATIO_MAX * small:
                raise MeshError(f"{path} is refused: {small:,} bytes inflate to {large:,}")
            memory = 0
            for name, info in wanted.items():
                with archive.open(info) as member:
                    memory += _announced(member, info.file_size, name)
            _bound(path, memory, most)
            arrays = {}
            for name, info in wanted.items():
                with archive.open(info) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays

    try:
        return patiently(read)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a directory that points before the file's beginning
            raise ValueError("its directory is damaged") from error
        raise


def load_npy(path: Path, most: int | None = None) -> NDArray[Any]:
    """The array of an `.npy` file."""

    def read() -> NDArray[Any]:
        size = regular(path)
        with path.open("rb") as file:
            _bound(path, _announced(file, size, "the array"), most)
            file.seek(0)
            found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            return found

    return patiently(read)


def _announced(file: Any, size: int, name: str) -> int:
    """Bytes that an array takes as float64, after its header was compared with the size of its file."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has format {version}, which is not read")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = header(file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are not read")
    announced, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or announced != found:
        raise ValueError(f"{name} {shape} takes {announced:,} bytes, and {found:,} are there")
    return math.prod(shape) * max(dtype.itemsize, 8)


def _bound(path: Path, memory: int, most: int | None) -> None:
    most = ARRAYS_MAX_BYTES if most is None else most
    if memory > most:
        raise MeshError(f"{path} is too large: its arrays take {memory:,} bytes in memory, at most {most:,} are read")
