"""The pack format: one data set in one safetensors file, memory-mapped, checksummed and written atomically.

Every shape of every split is a row of the same few arrays, split after split. The header of the file holds the number
of rows of each split, the names of classes and parts, and the source.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import READ_BLOCK_BYTES, FileError, atomic_replace, cache, check_regular, first_line, make_folder
from .pack_schema import OPTIONAL_ABOUT, find_problem

FORMAT = 1
SUFFIX = ".safetensors"
CHECKSUM_PLACEHOLDER = b"0" * 64  # in the header while the checksum is computed, and when it is verified
DTYPES = {
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class DataError(ValueError):
    """Data that cannot be used; the message is one line that says what is wrong and what to do."""


@dataclass(frozen=True)
class Pack:
    """An open pack, whose memory-mapped arrays read only those rows from disk that are used.

    Attributes:
        path: its file.
        about: its description: name, layout of the source, classes, splits, damaged files, ...
        arrays: tensors by name, with one row for each shape.
    """

    path: Path
    about: dict[str, Any] = field(repr=False)
    arrays: dict[str, Tensor] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_pack, (self.path,)  # another process maps the file itself

    @property
    def splits(self) -> dict[str, int]:
        """Number of shapes of every split, in the order of their rows."""
        return dict(self.about["splits"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.about["classes"])

    def rows(self, split: str) -> Tensor:
        """Return the row numbers of a split."""
        start = 0
        for name, count in self.splits.items():
            if name == split:
                return torch.arange(start, start + count)
            start += count
        raise DataError(f"{self.path} has no split {split!r}: it has {', '.join(self.splits)}")


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of packs: `root` if given, else `$VN_DATA`, else the user's cache directory."""
    given = root if root is not None else os.environ.get("VN_DATA")
    try:
        return Path(given).expanduser() if given else cache()
    except (FileError, RuntimeError) as error:  # no home
        raise DataError(f"{first_line(error)}; or set VN_DATA to a folder for packs") from error


def pack_path(pack: str | Path, root: str | Path | None = None) -> Path:
    """Return the file of a pack: a bare name is in the data root, a path with the suffix is taken as it is."""
    path = Path(pack)
    return path if path.suffix == SUFFIX else data_root(root) / f"{pack}{SUFFIX}"


def open_pack(
    pack: str | Path, root: str | Path | None = None, *, kind: str | None = None, command: str = "vn data"
) -> Pack:
    """Open a pack and check its description and the shapes of its arrays.

    Args:
        pack: name or path.
        root: folder of packs, for a name.
        kind: data set that it must belong to.
        command: the command that converts it, for error messages.
    """
    from safetensors import SafetensorError, safe_open

    path = pack_path(pack, root)
    try:
        exists = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if not exists:
        raise DataError(f"there is no pack {path}: make it with `{command}`, or set VN_DATA to the folder that has it")
    try:
        check_regular(path)
        with safe_open(path, "pt") as file:  # compares the length of the file with what its header announces
            about = json.loads((file.metadata() or {})["about"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not a pack, or is damaged ({first_line(error)}): make it again with `{command}`"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if not isinstance(about, dict):
        raise DataError(f"{path} is not a pack, or is damaged (it has no description): run `{command}` again")
    if about.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {about.get('format')!r}, this version reads {FORMAT}: run `{command}` again"
        )
    if kind is not None and about.get("name") != kind:
        raise DataError(f"{path} is a pack of {about.get('name')}, not of {kind}: make that with `{command}`")
    if problem := find_problem(about, arrays):
        raise DataError(f"{path} is damaged: {problem}; make it again with `{command}`")
    return Pack(path, OPTIONAL_ABOUT | about, arrays)


def verify(path: Path) -> str:
    """Read the whole file, compare it with its checksum, and return the checksum."""
    size = check_regular(path)
    with path.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), size))
        try:
            expected = str(json.loads(header)["__metadata__"]["sha256"])
            if not re.fullmatch("[0-9a-f]{64}", expected):
                raise ValueError("it has no checksum")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is damaged: its header cannot be read; make it again") from error
        found = hashlib.sha256(header.replace(expected.encode(), CHECKSUM_PLACEHOLDER))
        while block := file.read(READ_BLOCK_BYTES):
            found.update(block)
    if found.hexdigest() != expected:
        raise DataError(f"{path} is damaged: its content does not fit its checksum; make it again")
    return expected


def write_pack(path: Path, about: Mapping[str, Any], chunks: Sequence[Mapping[str, Tensor]]) -> None:
    """Concatenate the rows of all chunks and write them as one pack, which atomically replaces an older one.

    Chunks may be memory-mapped: they are copied one at a time. Arrays that only some of them have are left out.
    """
    names = set.intersection(*(set(chunk) for chunk in chunks))
    # Wide types first, so that each array starts at a multiple of its item size.
    order = sorted(names, key=lambda name: (-chunks[0][name].element_size(), name))
    header: dict[str, Any] = {
        "__metadata__": {"about": json.dumps({"format": FORMAT, **about}), "sha256": CHECKSUM_PLACEHOLDER.decode()}
    }
    end = 0
    for name in order:
        kinds = {(chunk[name].dtype, chunk[name].shape[1:]) for chunk in chunks}
        if len(kinds) > 1:
            raise DataError(f"shapes of one pack need {name} of one size, got {', '.join(str(k[1]) for k in kinds)}")
        dtype, shape = kinds.pop()
        start, end = end, end + sum(chunk[name].nbytes for chunk in chunks)
        rows = sum(len(chunk[name]) for chunk in chunks)
        header[name] = {"dtype": DTYPES[dtype], "shape": [rows, *shape], "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    make_folder(path.parent)
    with atomic_replace(path) as part, part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        checksum = hashlib.sha256(text)
        for block in (chunk[name].contiguous().numpy() for name in order for chunk in chunks):
            file.write(block.data)
            checksum.update(block.data)
        file.seek(8 + text.index(CHECKSUM_PLACEHOLDER))
        file.write(checksum.hexdigest().encode())
