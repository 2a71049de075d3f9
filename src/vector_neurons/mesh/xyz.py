"""Reader of .xyz, .pts and .csv clouds, and the meaning of the columns of a table of points."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError
from .text import count_error, lines, parse_table

Array = NDArray[Any]
AXES = "xyz"
# What programs call the columns of points and normals; the last two are ParaView's.
POINT_NAMES = ("{axis}", "points:{number}", "points_{number}")
NORMAL_NAMES = ("n{axis}", "normal_{axis}", "normals:{number}", "normals_{number}")
UNIT_TOLERANCE = 0.05  # by which the length of a normal may differ from 1: files round
BOM = b"\xef\xbb\xbf"
COMMENTS = (b"#", b"//")


@dataclass(frozen=True)
class ParsedCloud:
    """A cloud, its normals if the file has some, and a note on the columns that are not used."""

    points: Array
    normals: Array | None = None
    note: str = ""


def unnamed_columns(table: Array, allowed_widths: Sequence[int] = ()) -> ParsedCloud:
    """Return points and normals of a table without names: `x y z`, and normals if columns 4 to 6 are of unit length.

    Colors are not of unit length: they go up to 255, or fill the cube of side 1. Tables of 4 or 5 columns are refused
    unless `allowed_widths` contains their width.
    """
    if table.dtype.kind not in "fiub" or table.ndim != 2 or table.shape[1] < 3:
        found = f"{table.shape}" if table.dtype.kind in "fiub" else f"{table.shape} of {table.dtype}"
        raise MeshError(f"cannot be used: columns must be x y z or x y z nx ny nz, got an array {found}")
    width = table.shape[1]
    if width in (4, 5) and width not in allowed_widths:
        raise MeshError(f"cannot be used: columns must be x y z or x y z nx ny nz, got an array {table.shape}")
    normals = table[:, 3:6].astype(np.float64) if width >= 6 else None
    if normals is not None:
        length = np.sqrt(np.square(normals).sum(axis=1))
        unit, zero = np.abs(length - 1) < UNIT_TOLERANCE, length == 0
        normals = normals if (unit | zero | ~np.isfinite(length)).all() and not zero.all() else None
    used = 3 if normals is None else 6
    names = "x y z" if normals is None else "x y z nx ny nz"
    why = ": columns 4 to 6 are not unit normals" if width >= 6 and normals is None else ""
    note = f"of {width} columns, {names} are used{why}" if used < width else ""
    return ParsedCloud(table[:, :3], normals, note)


def read_text(content: bytes, suffix: str) -> ParsedCloud:
    """Read a cloud from the content of an .xyz, .pts or .csv file.

    Columns are separated by blanks, commas, semicolons (then a comma may be the decimal point) or tabs. A first line
    may name them; in .xyz and .pts it may be the number of points instead, with a comment in the second.
    """
    rows = lines(content.removeprefix(BOM))
    names: list[str] = []
    while rows and (rows[0].startswith(COMMENTS) or not _numeric(rows[0])):
        words = [word.lower() for word in _split(rows[0].lstrip(b"#/ "), _separator(rows[0]))]
        if column_indices(words, POINT_NAMES) and not _is_prose(words, rows):
            names = words
        elif not rows[0].startswith(COMMENTS):
            break
        del rows[0]
    if suffix != ".csv" and rows and rows[0].isdigit():
        announced = int(rows[0])
        comment = len(rows) == announced + 2 and not _numeric(rows[1])
        rows = rows[1 + comment :]
        _refuse_atoms(rows)
        if len(rows) != announced:
            raise count_error(len(rows), announced, "points")
    if not rows:
        raise MeshError("has no rows of numbers")
    _refuse_atoms(rows)
    separator = _separator(rows[0])
    if separator == ";":
        rows = [row.replace(b",", b".") for row in rows]
    if not names and suffix == ".csv" and not _numeric(rows[0]):
        head = rows[0][:80].decode("utf-8", "replace")
        raise MeshError(f"has the columns {head!r}: name those of the points x, y, z")
    if not names:
        return unnamed_columns(parse_table(rows, separator), (4,) if suffix == ".pts" else ())
    if (found := len(_split(rows[-1], separator))) < len(names):
        raise MeshError(f"is truncated: its last line has {found} of {len(names)} columns")
    for number, row in enumerate(rows, 1):  # a column without a name would shift all others
        if (found := len(_split(row, separator))) != len(names):
            raise MeshError(f"is damaged: row {number:,} has {found} columns, and {len(names)} have names")
    points, normals = column_indices(names, POINT_NAMES), column_indices(names, NORMAL_NAMES)
    table = parse_table(rows, separator, (*points, *normals))
    return named_columns(table[:, :3], table[:, 3:] if normals else None, names)


def _is_prose(words: Sequence[str], rows: Sequence[bytes]) -> bool:
    """Whether the first row is a comment on x, y and z rather than the names of all columns.

    It has more words than there are columns then, and begins with x y z or stands above three columns: in any other
    case, the columns of x, y and z would not be known without it.
    """
    first = next((row for row in rows if _numeric(row)), b"")
    width = len(_split(first, _separator(first)))
    return rows[0].startswith(COMMENTS) and len(words) > width and (list(words[:3]) == list(AXES) or width == 3)


def named_columns(points: Array, normals: Array | None, names: Sequence[str]) -> ParsedCloud:
    """Combine points and normals from a table with these column names, and note whether others are unused."""
    used = "x y z" if normals is None else "x y z and normals"
    more = len(names) > points.shape[1] + (0 if normals is None else 3)
    return ParsedCloud(points, normals, f"of its columns {' '.join(names)[:80]}, {used} are used" if more else "")


def column_indices(names: Sequence[str], patterns: Sequence[str]) -> list[int]:
    """Return the indices of the x, y and z columns named by the first pattern that matches, or an empty list."""
    for pattern in patterns:
        wanted = [pattern.format(axis=axis, number=i) for i, axis in enumerate(AXES)]
        if all(name in names for name in wanted):
            return [names.index(name) for name in wanted]
    return []


def _separator(row: bytes) -> str | None:
    return next((mark for mark in (";", ",") if mark.encode() in row), None)


def _split(row: bytes, separator: str | None) -> list[str]:
    return [word.strip(' "') for word in row.decode("utf-8", "replace").split(separator)]


def _numeric(row: bytes) -> bool:
    try:
        return sum(isinstance(float(word[0]), float) for word in re.finditer(rb"[^\s,;]+", row)) > 0
    except ValueError:
        return False


def _refuse_atoms(rows: Sequence[bytes]) -> None:
    row = rows[min(1, len(rows) - 1)] if rows else b""
    if re.match(rb"[A-Za-z]{1,3}\s+[-+.\d]", row) and not _numeric(row):
        raise MeshError("is a file of atoms: its rows begin with the names of elements, and only numbers are read")
