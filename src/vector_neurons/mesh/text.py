"""Tables of numbers and polygons in text files."""

import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError
from .polygons import Fans, triangulate, triangulate_mixed

LINE_MAX_BYTES = 2**20


def lines(content: bytes, comment: bytes | None = None) -> list[bytes]:
    """Split content into stripped lines, without blank ones and without what follows the `comment` mark.

    Lines are read one at a time, so that no second copy of the file is held in small pieces.
    """
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    found = []
    for raw in BytesIO(content):
        if len(raw) > LINE_MAX_BYTES:
            raise MeshError(f"is damaged: a line has {len(raw):,} bytes, at most {LINE_MAX_BYTES:,} are read")
        line = (raw.partition(comment)[0] if comment else raw).strip()
        if line:
            found.append(line)
    return found


def parse_table(
    rows: Sequence[bytes], separator: str | None = None, columns: Sequence[int] | None = None
) -> NDArray[Any]:
    """Parse rows of equally many numbers; only these `columns` if given."""
    if not rows:
        return np.empty((0, 0))
    try:
        return np.loadtxt(rows, delimiter=separator, usecols=columns, ndmin=2)
    except ValueError as error:
        changed = re.search(r"columns changed from (\d+) to (\d+) at row (\d+)", str(error))
        if changed is None:
            raise
        usual, found, row = map(int, changed.groups())
        if row == len(rows) and found < usual:
            raise MeshError(f"is truncated: its last line has {found} of {usual} columns") from None
        raise MeshError(f"is damaged: row {row:,} has {found} columns, and the rows before it {usual}") from None


def check_equal_columns(rows: Sequence[bytes]) -> None:
    """Raise `MeshError` unless all rows have as many columns as the first."""
    columns = len(rows[0].split()) if rows else 0
    for number, row in enumerate(rows, 1):
        if (found := len(row.split())) != columns:
            raise MeshError(f"is damaged: vertex {number:,} has {found} columns, and the first {columns}")


def count_error(found: int, announced: int, unit: str = "lines") -> MeshError:
    """Return the error for a file that has another number of rows than it announces."""
    if found < announced:
        return MeshError(f"is truncated: {found:,} {unit} instead of {announced:,}")
    return MeshError(f"is damaged: it has {found:,} {unit} and announces {announced:,}")


def parse_polygons(rows: Sequence[bytes], end: int | None, *, exact: bool) -> Fans:
    """Parse rows `n i j k ...` to fans of triangles; anything may follow the n corners unless `exact`.

    `end` is the number of lines that the file announces if these are its last ones, where it may have been cut.
    """
    try:
        table = np.loadtxt(rows, dtype=np.int64, ndmin=2) if rows else np.empty((0, 4), dtype=np.int64)
    except ValueError:  # polygons of several sizes, or colors after them
        return triangulate_mixed(_corners(rows, end, exact))
    if len(table) and not (table[:, 0] == table.shape[1] - 1).all():
        return triangulate_mixed(_corners(rows, end, exact))
    return triangulate(table[:, 1:])


def _corners(rows: Sequence[bytes], end: int | None, exact: bool) -> Iterable[list[int]]:
    for number, row in enumerate(rows, 1):
        words = row.split()
        announced, found = int(words[0]), len(words) - 1
        if announced < 0 or found < announced or (exact and found > announced):
            if end is not None and number == len(rows) and 0 <= found < announced:
                raise count_error(end - 1, end)
            raise MeshError(f"is damaged: face {number:,} announces {announced} corners and has {found}")
        yield list(map(int, words[1 : announced + 1]))
