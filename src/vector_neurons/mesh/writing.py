"""Write meshes to files without losing precision or faces to the rounding of the format."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .._files import write_file
from .io import decode, encode
from .mesh import Mesh, MeshError

MAX_VERTEX_ERROR = 1e-4  # of a vertex in a file, relative to the size of the mesh
MAX_COLLAPSED_FRACTION = 0.25  # of the faces, which may lose their area in a file


class Written(NamedTuple):
    """The mesh as the file holds it, and whether its vertices moved by less than 1e-4 of its size."""

    mesh: Mesh
    exact: bool


def write(mesh: Mesh, path: str | Path) -> Written:
    """Write a mesh to a .ply, .obj, .stl, .off or .glb file, atomically; a cloud, without normals, as .ply or .glb.

    A .ply file also gets the confidence of the vertices, if the mesh has it, as the property `quality`, which MeshLab
    shows.

    Formats round coordinates, to seven digits or to eight decimals. Where that would move vertices by more than 1e-4 of
    the size of the mesh, a .ply file is written in double precision; other formats raise `MeshError` if they would lose
    faces.

    Args:
        mesh: what to write.
        path: the file; its suffix says the format.

    Returns:
        The mesh as it was written, after rounding, and whether it is exact to 1e-4 of its size.

    >>> import tempfile
    >>> import torch
    >>> triangle = Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(triangle, f"{folder}/triangle.stl").exact
    True
    """
    path = Path(path)
    suffix = path.suffix.lower()
    size = (mesh.vertices.amax(0) - mesh.vertices.amin(0)).max().item() if len(mesh.vertices) else 0.0
    needs_double = _max_difference(mesh.vertices, mesh.vertices.float()) > MAX_VERTEX_ERROR * size
    try:
        own = suffix == ".ply" and (needs_double or mesh.confidence is not None)
        content = encode_ply(mesh) if own else encode(mesh, suffix)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    try:
        stored = decode(content, suffix)[0]
    except MeshError as error:
        raise MeshError(f"{path} could not be read again: {suffix} cannot hold this mesh, write .ply") from error
    lost = _collapsed_faces(stored) - _collapsed_faces(mesh)
    if lost > MAX_COLLAPSED_FRACTION * len(mesh.faces) or len(stored.faces) != len(mesh.faces):
        raise MeshError(
            f"{path} would lose {lost:,} of {len(mesh.faces):,} faces: {suffix} keeps too few digits so far from the "
            "origin, or of numbers so small; write .ply, or move or scale the scan"
        )
    write_file(path, content)
    return Written(stored, _max_difference(_corners(mesh), _corners(stored)) <= MAX_VERTEX_ERROR * size)


def _max_difference(a: Tensor, b: Tensor) -> float:
    return (a - b.to(a.dtype)).abs().max().item() if a.numel() else 0.0


def _corners(mesh: Mesh) -> Tensor:
    """Return the corners of all faces, as .stl files repeat vertices; of a cloud, its points."""
    return mesh.vertices if mesh.is_cloud else mesh.vertices[mesh.faces]


def _collapsed_faces(mesh: Mesh) -> int:
    """Count the faces with two corners at the same coordinates."""
    if mesh.is_cloud:
        return 0
    corners = _corners(mesh)
    return int((corners == corners.roll(1, dims=1)).all(-1).any(-1).sum())


def encode_ply(
    mesh: Mesh, vertex_colors: NDArray[np.uint8] | None = None, face_colors: NDArray[np.uint8] | None = None
) -> bytes:
    """Encode a mesh or a cloud as a .ply file in double precision, with a color `(r, g, b)` of each vertex and face.

    >>> import torch
    >>> encode_ply(Mesh(torch.zeros(1, 3), torch.empty(0, 3, dtype=torch.int64))).splitlines()[:2]
    [b'ply', b'format binary_little_endian 1.0']
    """
    color = ["uchar red", "uchar green", "uchar blue"]
    vertices = [(mesh.vertices.numpy().astype("<f8"), [f"double {axis}" for axis in "xyz"])]
    if mesh.confidence is not None:
        vertices.append((mesh.confidence.numpy().astype("<f4"), ["float quality"]))
    corners = np.empty(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    corners["count"], corners["corners"] = 3, mesh.faces.numpy()
    faces = [(corners, ["list uchar int vertex_indices"])]
    for columns, colors in ((vertices, vertex_colors), (faces, face_colors)):
        if colors is not None:
            columns.append((colors, color))
    header, content = ["ply", "format binary_little_endian 1.0"], []
    for element, columns in (("vertex", vertices), ("face", faces)):
        names = [name for _, some in columns for name in some]
        header += [f"element {element} {len(columns[0][0])}", *(f"property {name}" for name in names)]
        content.append(_rows([array for array, _ in columns]))
    return "\n".join([*header, "end_header", ""]).encode() + b"".join(content)


def _rows(columns: list[NDArray[Any]]) -> bytes:
    """The bytes of the columns, row by row."""
    parts = [np.frombuffer(x.tobytes(), np.uint8).reshape(len(x), x.itemsize * math.prod(x.shape[1:])) for x in columns]
    return np.concatenate(parts, axis=1).tobytes()
