"""A pack: one data set in one safetensors file, memory-mapped, checksummed and written in one move.

Every shape of every split is a row of the same few arrays, split after split; the file's header says how many rows a
split has, what classes and parts are called, and where it all came from.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._files import BLOCK, FileError, cache, check_regular, first_line, make_folder, replacing
from .contents import MORE, complaint

FORMAT = 1
SUFFIX = ".safetensors"
UNKNOWN_SUM = b"0" * 64  # stands in the header while the checksum is taken, and wherever it is taken again
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
    """An open pack: `arrays` are memory-mapped, so that only the rows that are used are read from disk."""

    path: Path
    about: dict[str, Any] = field(repr=False)
    arrays: dict[str, Tensor] = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_pack, (self.path,)  # another process maps the file itself, instead of being sent its content

    @property
    def splits(self) -> dict[str, int]:
        """The number of shapes of every split, in the order of their rows."""
        return dict(self.about["splits"])

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(self.about["classes"])

    def rows(self, split: str) -> Tensor:
        """Row numbers of a split."""
        start = 0
        for name, count in self.splits.items():
            if name == split:
                return torch.arange(start, start + count)
            start += count
        raise DataError(f"{self.path} has no split {split!r}: it has {', '.join(self.splits)}")


def data_root(root: str | Path | None = None) -> Path:
    """Where packs are: `root` if given, else the environment's `VN_DATA`, else the platform's cache directory."""
    given = root if root is not None else os.environ.get("VN_DATA")
    try:
        return Path(given).expanduser() if given else cache()
    except (FileError, RuntimeError) as error:  # no home
        raise DataError(f"{first_line(error)}; or say where packs are with VN_DATA") from error


def pack_path(pack: str | Path, root: str | Path | None = None) -> Path:
    """The file of a pack: a bare name stands in the data root, a path with the suffix is taken as it is."""
    path = Path(pack)
    return path if path.suffix == SUFFIX else data_root(root) / f"{pack}{SUFFIX}"


def open_pack(
    pack: str | Path, root: str | Path | None = None, *, kind: str | None = None, make: str = "vn data"
) -> Pack:
    """Open a pack by name or path, and make sure that it is of the right kind.

    `make` is the command that would make it, for the error when it is not there.
    """
    from safetensors import SafetensorError, safe_open

    path = pack_path(pack, root)
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if not there:
        raise DataError(f"there is no pack {path}: make it with `{make}`, or say where it is with VN_DATA")
    try:
        check_regular(path)
        with safe_open(path, "pt") as file:  # compares the length of the file with what its header announces
            about = json.loads((file.metadata() or {})["about"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no dictionary)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no pack, or a damaged one ({first_line(error)}): make it again with `{make}`"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if not isinstance(about, dict):
        raise DataError(f"{path} is no pack, or a damaged one (it says nothing about itself): run `{make}` again")
    if about.get("format") != FORMAT:
        raise DataError(f"{path} has format {about.get('format')!r}, this version reads {FORMAT}: run `{make}` again")
    if kind is not None and about.get("name") != kind:
        raise DataError(f"{path} is a pack of {about.get('name')}, not of {kind}: make that with `{make}`")
    if wrong := complaint(about, arrays):
        raise DataError(f"{path} is damaged: {wrong}; make it again with `{make}`")
    return Pack(path, MORE | about, arrays)


def verify(path: Path) -> str:
    """Read the whole file and compare it with its checksum, which is returned."""
    size = check_regular(path)
    with path.open("rb") as file:
        header = file.read(min(int.from_bytes(file.read(8), "little"), size))
        try:
            expected = str(json.loads(header)["__metadata__"]["sha256"])
            if not re.fullmatch("[0-9a-f]{64}", expected):
                raise ValueError("it has no checksum")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is damaged: its header cannot be read; make it again") from error
        found = hashlib.sha256(header.replace(expected.encode(), UNKNOWN_SUM))
        while block := file.read(BLOCK):
            found.update(block)
    if found.hexdigest() != expected:
        raise DataError(f"{path} is damaged: its content does not fit its checksum; make it again")
    return expected


def write_pack(path: Path, about: Mapping[str, Any], chunks: Sequence[Mapping[str, Tensor]]) -> None:
    """Write the rows of all chunks, one after the other, as one pack. An older one is replaced in one move, at the end.

    Chunks may be memory-mapped: they are copied one at a time. What only some of them have is left out.
    """
    names = set.intersection(*(set(chunk) for chunk in chunks))
    # Wide numbers first, so that each array starts at a multiple of its own width.
    order = sorted(names, key=lambda name: (-chunks[0][name].element_size(), name))
    header: dict[str, Any] = {
        "__metadata__": {"about": json.dumps({"format": FORMAT, **about}), "sha256": UNKNOWN_SUM.decode()}
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
    with replacing(path) as part, part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        checksum = hashlib.sha256(text)
        for block in (chunk[name].contiguous().numpy() for name in order for chunk in chunks):
            file.write(block.data)
            checksum.update(block.data)
        file.seek(8 + text.index(UNKNOWN_SUM))
        file.write(checksum.hexdigest().encode())


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts (a seed, a name, a number) and on nothing else, on every machine."""
    return int.from_bytes(
        hashlib.sha256("/".join(map(str, parts)).encode(errors="surrogateescape")).digest()[:4], "little"
    )


def listed(words: Iterable[str], most: int = 4) -> str:
    """The first few words and how many more there are: `a, b, c, d and 7 more`."""
    words = list(words)
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
