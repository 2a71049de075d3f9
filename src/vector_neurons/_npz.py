"""Arrays of .npz and .npy files, bounded: an array is allocated only after its header was compared with the file.

Pickled objects are never loaded.
"""

import errno
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._files import FileError, check_regular, retry_transient

# Members that inflate by more than this ratio are refused as zip bombs, if they are larger than this.
MAX_COMPRESSION_RATIO, RATIO_CHECK_MIN_BYTES = 200, 2**28


def load_npz(path: Path, select: Callable[[Sequence[str]], Sequence[str]], max_bytes: int) -> dict[str, NDArray[Any]]:
    """Load the arrays of an .npz file whose names `select` returns, given all names; no others are inflated.

    Raises `FileError` if they take more than `max_bytes` as float64, and `ValueError` or `zipfile.BadZipFile` if the
    file is damaged.
    """

    def read() -> dict[str, NDArray[Any]]:
        check_regular(path)
        # Opened here, because zipfile leaves a file open that turns out to be damaged.
        with path.open("rb") as opened, zipfile.ZipFile(opened) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            selected = {name: members[name] for name in select(list(members))}
            inflated = sum(info.file_size for info in selected.values())
            _check_size(path, inflated, max_bytes)
            compressed = sum(info.compress_size for info in selected.values())
            if inflated > RATIO_CHECK_MIN_BYTES and inflated > MAX_COMPRESSION_RATIO * compressed:
                raise FileError(f"{path} is refused: {compressed:,} bytes inflate to {inflated:,}")
            memory = 0
            for name, info in selected.items():
                with archive.open(info) as member:
                    memory += _float64_bytes(member, info.file_size, name)
            _check_size(path, memory, max_bytes)
            arrays = {}
            for name, info in selected.items():
                with archive.open(info) as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
            return arrays

    try:
        return retry_transient(read)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a directory that points before the file's beginning
            raise ValueError("its directory is damaged") from error
        raise


def load_npy(path: Path, max_bytes: int) -> NDArray[Any]:
    """Load the array of an .npy file; raises as `load_npz` does."""

    def read() -> NDArray[Any]:
        size = check_regular(path)
        with path.open("rb") as file:
            _check_size(path, _float64_bytes(file, size, "the array"), max_bytes)
            file.seek(0)
            found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            return found

    return retry_transient(read)


def _float64_bytes(file: Any, size: int, name: str) -> int:
    """Return the bytes that an array takes as float64, after comparing its header with the size of its file."""
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


def _check_size(path: Path, memory: int, max_bytes: int) -> None:
    if memory > max_bytes:
        raise FileError(
            f"{path} is too large: its arrays take {memory:,} bytes in memory, at most {max_bytes:,} are read"
        )
