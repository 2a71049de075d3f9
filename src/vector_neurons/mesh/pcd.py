"""Reader of .pcd clouds (Point Cloud Library): fields of any order and type, as text, binary or compressed."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError
from .text import count_error, lines, parse_table
from .xyz import NORMAL_NAMES, POINT_NAMES, ParsedCloud, column_indices, named_columns

HEADER = re.compile(rb"\s*(?:#[^\n]*\n\s*|[A-Z]+ [^\n]*\n)*?DATA (ascii|binary|binary_compressed)[ \t\r]*\n")
KINDS = {"F": "f", "I": "i", "U": "u"}
LZF_MAX_RATIO = 100  # three bytes encode at most 264
Columns = list[NDArray[Any]]


def read(content: bytes) -> ParsedCloud:
    """Read points, and normals if there are fields of that name. The view point is not applied."""
    header = HEADER.match(content)
    if header is None:
        raise MeshError("is damaged: it has no header of a .pcd file")
    about = {words[0]: words[1:] for line in header[0].decode("latin1").splitlines() if (words := line.split())}
    if lacking := [word for word in ("FIELDS", "SIZE", "TYPE", "WIDTH", "HEIGHT") if not about.get(word)]:
        raise MeshError(f"is damaged: its header has no line {lacking[0]}")
    names = about["FIELDS"]
    kinds = [f"<{KINDS[kind]}{int(size)}" for kind, size in zip(about["TYPE"], about["SIZE"], strict=True)]
    repeats = [int(count) for count in about.get("COUNT", ["1"] * len(names))]
    fields = [(str(i), kinds[i], (repeats[i],)) for i, _ in enumerate(zip(names, kinds, repeats, strict=True))]
    width, height = int(about["WIDTH"][0]), int(about["HEIGHT"][0])
    total = int(about.get("POINTS", [str(width * height)])[0])
    if total != width * height or min(total, width, *repeats) < 0:
        raise MeshError(f"is damaged: it announces {total:,} points, and {width:,} times {height:,} of them")
    table = READERS[header[1]](content[header.end() :], np.dtype(fields), total)
    lower = [name.lower() for name in names]
    points, normals = column_indices(lower, POINT_NAMES), column_indices(lower, NORMAL_NAMES)
    if not points:
        raise MeshError(f"has no fields x y z: it has {' '.join(names)[:80]}")

    def three(chosen: Sequence[int]) -> NDArray[Any]:
        return np.stack([table[i][:, 0] for i in chosen], axis=-1)

    return named_columns(three(points), three(normals) if normals else None, [name for name in lower if name != "_"])


def _text(data: bytes, row: np.dtype[Any], total: int) -> Columns:
    rows = lines(data)
    if len(rows) != total:
        raise count_error(len(rows), total, "points")
    ends = np.cumsum([row[i].shape[0] for i in range(len(row.fields or ()))])
    table = parse_table(rows) if rows else np.empty((0, ends[-1]))
    if table.shape[1] != ends[-1]:
        raise MeshError(f"is damaged: its rows have {table.shape[1]} numbers, and its fields announce {ends[-1]}")
    return np.split(table, ends[:-1], axis=1)


def _binary(data: bytes, row: np.dtype[Any], total: int) -> Columns:
    found, announced = len(data), total * row.itemsize
    if found < announced or data[announced:].strip(b"\0\r\n "):  # some programs fill up a block
        raise count_error(found, announced, "bytes after its header")
    table = np.frombuffer(data, row, total)
    return [table[str(i)] for i in range(len(row.fields or ()))]


def _compressed(data: bytes, row: np.dtype[Any], total: int) -> Columns:
    """Read columns stored one after the other, compressed by LZF."""
    compressed, inflated = (int.from_bytes(data[i : i + 4], "little") for i in (0, 4))
    if inflated != total * row.itemsize:
        raise MeshError(
            f"is damaged: it inflates to {inflated:,} bytes, and {total:,} points take {total * row.itemsize:,}"
        )
    if len(data) - 8 < compressed:
        raise count_error(len(data) - 8, compressed, "bytes after its header")
    if inflated > LZF_MAX_RATIO * compressed:
        raise MeshError(f"is damaged: {compressed:,} bytes cannot inflate to {inflated:,}")
    content, start, found = _inflate(data[8 : 8 + compressed], inflated), 0, []
    for i in range(len(row.fields or ())):
        field = row[i]
        found.append(np.frombuffer(content, field.base, total * field.shape[0], start).reshape(total, -1))
        start += total * field.itemsize
    return found


def _inflate(packed: bytes, size: int) -> bytearray:
    """Decompress LZF: a control byte c < 32 precedes c + 1 literal bytes, any other encodes a back-reference."""
    found, at = bytearray(), 0
    while at < len(packed) and len(found) <= size:
        control = packed[at]
        at += 1
        if control < 32:
            found += packed[at : at + control + 1]
            at += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += packed[at]
            at += 1
        start = len(found) - ((control & 31) << 8) - packed[at] - 1
        at += 1
        if start < 0:
            raise MeshError("is damaged: a back-reference points before the start")
        piece = found[start : start + length + 2]
        found += (piece * (-(-(length + 2) // len(piece))))[: length + 2]  # a back-reference may overlap itself
    if len(found) != size:
        raise count_error(len(found), size, "bytes, inflated,")
    return found


READERS = {b"ascii": _text, b"binary": _binary, b"binary_compressed": _compressed}
