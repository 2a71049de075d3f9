"""Reader of .ply files: text or binary of either byte order; the header must match the content."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError
from .polygons import Fans, triangulate, triangulate_mixed
from .text import count_error, lines, parse_polygons, parse_table

# Names of types, and their letters, which are the same in struct and NumPy.
TYPES = {"char": "b", "uchar": "B", "short": "h", "ushort": "H", "int": "i", "uint": "I", "float": "f", "double": "d"}
TYPES |= {"int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I"}
TYPES |= {"float32": "f", "float64": "d"}
ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": ""}
CORNERS = ("vertex_indices", "vertex_index")
Array = NDArray[Any]


@dataclass(frozen=True)
class Property:
    """A column of an element: its type, and the type of its length if it is a list."""

    name: str
    type: str
    length: str | None


@dataclass(frozen=True)
class Element:
    """A table of the file: `count` rows of the same properties."""

    name: str
    count: int
    properties: list[Property] = field(default_factory=list)

    @property
    def min_row_bytes(self) -> int:
        """Bytes of a row whose lists are empty."""
        return sum(struct.calcsize(f"={p.length or p.type}") for p in self.properties)


def read(content: bytes) -> tuple[Array, Array, Array | None]:
    """Read vertices, triangles, and the normals of the vertices or None."""
    order, elements, data = _header(content)
    vertex = next((e for e in elements if e.name == "vertex"), None)
    if vertex is None or not {"x", "y", "z"} <= {p.name for p in vertex.properties}:
        raise MeshError("has no vertices: its header announces no element vertex with x, y and z")
    if any(e.name == "tristrips" and e.count for e in elements):
        raise MeshError("has triangle strips, which are not read: save it with faces")
    columns, fans = _binary(elements, data, order) if order else _text(elements, data)
    points = np.stack([columns[axis] for axis in ("x", "y", "z")], axis=-1)
    normals = [columns[axis] for axis in ("nx", "ny", "nz") if axis in columns]
    return points, fans.place(points), np.stack(normals, axis=-1) if len(normals) == 3 else None


def _header(content: bytes) -> tuple[str, list[Element], bytes]:
    newline = b"\r\n" if content[3:5] == b"\r\n" else content[3:4]
    head, end, data = content.partition(b"end_header" + newline)
    if content[:3] != b"ply" or newline not in (b"\n", b"\r", b"\r\n") or not end:
        raise MeshError("is damaged: it has no header of a .ply file")
    order, elements = None, list[Element]()
    for line in head.decode("latin1").split(newline.decode())[1:]:
        match line.split():
            case ["format", name, _] if name in ORDERS:
                order = ORDERS[name]
            case ["element", name, count]:
                if not count.isdigit():
                    raise MeshError(f"is damaged: its header announces {count} rows of {name}")
                elements.append(Element(name, int(count)))
            case ["property", "list", length, type, name] if (
                elements and type in TYPES and TYPES.get(length, "f") not in "fd"
            ):
                elements[-1].properties.append(Property(name, TYPES[type], TYPES[length]))
            case ["property", type, name] if elements and type in TYPES:
                elements[-1].properties.append(Property(name, TYPES[type], None))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise MeshError(f"is damaged: its header has the line {line[:80]!r}")
    if order is None:
        raise MeshError("is damaged: its header names no format")
    if len({e.name for e in elements}) < len(elements):
        raise MeshError("is damaged: its header announces an element twice")
    return order, [e for e in elements if e.properties], data


def _is_faces(element: Element) -> bool:
    return element.name == "face" and any(p.name in CORNERS and p.length for p in element.properties)


def _text(elements: Sequence[Element], data: bytes) -> tuple[dict[str, Array], Fans]:
    rows = lines(data)
    announced = sum(element.count for element in elements)
    if len(rows) != announced:
        raise count_error(len(rows), announced)
    start, columns, fans = 0, dict[str, Array](), triangulate_mixed([])
    for element in elements:
        some = rows[start : start + element.count]
        start += element.count
        named = {p.name: i for i, p in enumerate(element.properties)}
        if _is_faces(element) and len(named) == 1:
            fans = parse_polygons(some, announced if start == announced else None, exact=True)
        elif _is_faces(element):
            at = next(named[name] for name in CORNERS if name in named)
            fans = triangulate_mixed([int(x) for x in row[at]] for row in _split_rows(element, some))
        elif element.name == "vertex" and any(p.length for p in element.properties):
            scalars = [name for name, i in named.items() if not element.properties[i].length]
            table = [[float(row[named[name]][0]) for name in scalars] for row in _split_rows(element, some)]
            columns = dict(zip(scalars, np.array(table).reshape(-1, len(scalars)).T, strict=True))
        elif element.name == "vertex":
            found = parse_table(some) if some else np.empty((0, len(named)))
            if found.shape[1] != len(named):
                raise MeshError(f"is damaged: its vertices have {found.shape[1]} numbers instead of {len(named)}")
            columns = dict(zip(named, found.T, strict=True))
    return columns, fans


def _split_rows(element: Element, rows: Sequence[bytes]) -> Iterator[list[list[bytes]]]:
    """Yield the words of every property, row by row."""
    for number, row in enumerate(rows, 1):
        words, at, found = row.split(), 0, []
        for p in element.properties:
            count = int(words[at]) if p.length and at < len(words) else 1
            at += p.length is not None
            found.append(words[at : at + max(count, 0)])
            at += count
            if count < 0:
                break
        if at != len(words) or len(found) < len(element.properties):
            raise MeshError(f"is damaged: row {number:,} of {element.name} has {len(words)} numbers, announces {at}")
        yield found


def _binary(elements: Sequence[Element], data: bytes, order: str) -> tuple[dict[str, Array], Fans]:
    start, columns, fans = 0, dict[str, Array](), triangulate_mixed([])
    for element in elements:
        left = len(data) - start
        if element.count * element.min_row_bytes > left:
            raise count_error(left // element.min_row_bytes, element.count, f"rows of {element.name}")
        wanted: list[str] = []
        if _is_faces(element):
            wanted = [p.name for p in element.properties if p.name in CORNERS]
        elif element.name == "vertex":
            wanted = [p.name for p in element.properties if not p.length]
        found, start = (
            _table(element, wanted, data, start, order) if element.count else ({n: [] for n in wanted}, start)
        )
        if _is_faces(element):
            corners = found[wanted[0]]
            fans = triangulate_mixed(corners) if isinstance(corners, list) else triangulate(corners.astype(np.int64))
        elif element.name == "vertex":
            columns = {name: np.asarray(x).reshape(-1) for name, x in found.items()}
    if data[start:].strip():  # some programs end a file with an empty line
        raise MeshError(f"is damaged: it has {len(data):,} bytes after its header, and announces {start:,}")
    return columns, fans


def _table(
    element: Element, wanted: Sequence[str], data: bytes, start: int, order: str
) -> tuple[Mapping[str, Array | list[tuple[Any, ...]]], int]:
    """Return the values of the wanted properties, and the offset at which the element ends.

    All rows are read at once if all lists are as long as those of the first row.
    """
    try:
        lengths = [len(values) for _, values in _row(element, data, start, order)]
    except struct.error:
        raise count_error(0, element.count, f"rows of {element.name}") from None
    fields: list[Any] = []
    for p, length in zip(element.properties, lengths, strict=True):
        if p.length:
            fields.append((f"length of {p.name}", order + p.length))
        fields.append((p.name, order + p.type, (length,)) if p.length else (p.name, order + p.type))
    row = np.dtype(fields)
    if element.count * row.itemsize <= len(data) - start:
        table = np.frombuffer(data, row, element.count, start)
        lists = [p for p in element.properties if p.length]
        if all((table[f"length of {p.name}"] == table[p.name].shape[1]).all() for p in lists):
            return {name: table[name] for name in wanted}, start + element.count * row.itemsize
    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in wanted}
    for number in range(element.count):
        try:
            for p, (end, values) in zip(element.properties, _row(element, data, start, order), strict=True):
                if p.name in found:
                    found[p.name].append(values)
                start = end
        except struct.error:
            raise count_error(number, element.count, f"rows of {element.name}") from None
    return found, start


def _row(element: Element, data: bytes, at: int, order: str) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the offset at which each property of a row ends, and its values."""
    for p in element.properties:
        length = 1
        if p.length:
            (length,) = struct.unpack_from(order + p.length, data, at)
            at += struct.calcsize(order + p.length)
        if length < 0:
            raise MeshError(f"is damaged: a list of {element.name} has the length {length}")
        form = f"{order}{length}{p.type}"
        values = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        yield at, values
