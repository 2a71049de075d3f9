"""Write meshes to files without losing precision or faces to the rounding of the format."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
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
    needs_double = suffix == ".ply" and _max_difference(mesh.vertices, mesh.vertices.float()) > MAX_VERTEX_ERROR * size
    try:
        content = _double_ply(mesh) if needs_double else encode(mesh, suffix)
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


def _double_ply(mesh: Mesh) -> bytes:
    """Encode a .ply file in double precision, which trimesh does not write."""
    vertices = np.ascontiguousarray(mesh.vertices.numpy(), dtype="<f8")
    faces = np.empty(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces.numpy()
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(vertices)}"]
    header += [f"property double {axis}" for axis in "xyz"]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header", ""]
    return "\n".join(header).encode() + vertices.tobytes() + faces.tobytes()
