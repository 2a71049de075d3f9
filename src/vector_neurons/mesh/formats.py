"""Readers of .off, .stl and .obj meshes; counts in a file must match its content.

No reader follows a reference to another file: materials and textures are not part of a surface.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError
from .polygons import triangulate, triangulate_mixed
from .text import check_equal_columns, count_error, lines, parse_polygons, parse_table

Array = NDArray[Any]
OFF_HEADER = re.compile(rb"(?:ST)?(?:CN?|NC?)?OFF(?![A-Za-z])", re.IGNORECASE)  # MeshLab writes NCOFF
STL_HEAD, STL_FACE = 84, 50  # bytes
STL_ROW = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("more", "<u2")])


def read_off(content: bytes) -> tuple[Array, Array]:
    """Read vertices and triangles. The counts may be in the first line, as in some files of ModelNet40."""
    rows = lines(content, b"#")
    kind = OFF_HEADER.match(rows[0]) if rows else None
    if kind is None:
        raise MeshError("is damaged: it has no header of an .off file")
    rest = rows[0][kind.end() :].strip()
    rows = [rest, *rows[1:]] if rest else rows[1:]
    counts = rows[0].split() if rows else []
    if not 2 <= len(counts) <= 3 or not all(word.isdigit() for word in counts):
        found = rows[0][:40].decode("ascii", "replace") if rows else ""
        raise MeshError(f"is damaged: it announces {found!r} instead of the numbers of vertices and faces")
    vertices, faces = map(int, counts[:2])
    announced = 1 + vertices + faces
    if len(rows) != announced:
        raise count_error(len(rows), announced)
    check_equal_columns(rows[1 : 1 + vertices])  # a face among the vertices differs in its number of columns
    points = parse_table(rows[1 : 1 + vertices], columns=(0, 1, 2))
    return points, parse_polygons(rows[1 + vertices :], announced, exact=False).place(points)


def read_stl(content: bytes) -> tuple[Array, Array]:
    """Read vertices, three for each triangle, and triangles; text or binary."""
    announced = STL_HEAD + STL_FACE * int.from_bytes(content[80:STL_HEAD], "little")
    # Some programs begin a binary file with "solid" as well: its size tells them apart.
    if len(content) == announced or content.lstrip()[:5].lower() != b"solid" or b"\0" in content[:512]:
        if len(content) != announced:
            raise count_error(len(content), announced, "bytes")
        corners = np.frombuffer(content, STL_ROW, offset=STL_HEAD)["corners"].reshape(-1, 3)
    else:
        corners = _stl_text(lines(content))
    return corners, np.arange(len(corners)).reshape(-1, 3)


def _stl_text(rows: Sequence[bytes]) -> Array:
    words = (b"solid", b"facet", b"outer", b"vertex", b"endloop", b"endfacet", b"endsolid")
    count = dict.fromkeys(words, 0)
    corners = []
    for row in rows:
        word = row.split(maxsplit=1)[0].lower()
        if word not in count and row is not rows[-1]:  # which may be cut
            raise MeshError(f"is damaged: it has the line {row[:80].decode('ascii', 'replace')!r}")
        count[word] = count.get(word, 0) + 1
        if word == b"vertex":
            corners.append(row[len(word) :])
    facets, complete = count[b"facet"], count[b"endfacet"]
    if count[b"endsolid"] != count[b"solid"] or facets != complete:
        raise MeshError(f"is truncated: {complete:,} of {facets:,} facets are complete, and it has no end")
    if len(corners) != 3 * facets:
        raise MeshError(f"is damaged: {facets:,} facets have {len(corners):,} vertices")
    found = parse_table(corners)
    if corners and found.shape[1] != 3:
        raise MeshError(f"is damaged: its vertices have {found.shape[1]} coordinates")
    return found if corners else np.empty((0, 3))


def read_obj(content: bytes) -> tuple[Array, Array]:
    """Read vertices and triangles; indices may be relative (negative), normals and textures are ignored."""
    rows = [row for row in lines(re.sub(rb"\\\r?\n", b" ", content), b"#") if row.split(maxsplit=1)[0] in (b"v", b"f")]
    faces = [row for row in rows if row[:1] == b"f"]
    if faces and len({re.sub(rb"-?\d+", b"", corner) for corner in faces[-1].split()[1:]}) > 1:
        raise MeshError(f"is truncated: its last face is {faces[-1][-80:].decode('ascii', 'replace')!r}")
    points = np.empty((0, 3))
    if len(faces) < len(rows):
        points = np.loadtxt((row[1:] for row in rows if row[:1] == b"v"), usecols=(0, 1, 2), ndmin=2)
    if any(b"-" in face for face in faces):
        return points, triangulate_mixed(_corners(rows)).place(points)
    try:
        corners = (
            np.loadtxt(map(_vertex_indices, faces), dtype=np.int64, ndmin=2)
            if faces
            else np.empty((0, 3), dtype=np.int64)
        )
    except ValueError:  # polygons of several sizes
        return points, triangulate_mixed(_corners(rows)).place(points)
    return points, triangulate(corners - 1).place(points)


def _vertex_indices(face: bytes) -> bytes:
    """Strip the indices of textures and normals from a face."""
    return re.sub(rb"/\S*", b"", face[1:])


def _corners(rows: Sequence[bytes]) -> Iterator[list[int]]:
    vertices = 0
    for row in rows:
        if row[:1] == b"v":
            vertices += 1
        else:
            yield [vertices + corner if corner < 0 else corner - 1 for corner in map(int, _vertex_indices(row).split())]
