"""Meshes written to files, which keep some digits only: so that nothing is lost, or not at all."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from .._files import write_file
from .io import decode, encode
from .mesh import Mesh, MeshError

COARSE = 1e-4  # of the size of a mesh, by which its vertices may be off in a file
COLLAPSED = 0.25  # of the faces of a mesh may lose their area in a file


class Written(NamedTuple):
    """What a file holds, and whether its vertices are where they were."""

    mesh: Mesh
    exact: bool


def write(mesh: Mesh, path: str | Path) -> Written:
    """Write a mesh as .ply .obj .stl .off or .glb, whole or not at all; a cloud, without normals, as .ply or .glb.

    Formats round, to seven digits or to eight decimals. Where that would matter a .ply is written in double precision,
    and any other is refused if it would lose faces.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    size = (mesh.vertices.amax(0) - mesh.vertices.amin(0)).max().item() if len(mesh.vertices) else 0.0
    coarse = suffix == ".ply" and _moved(mesh.vertices, mesh.vertices.float()) > COARSE * size
    try:
        content = _double(mesh) if coarse else encode(mesh, suffix)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    try:
        held = decode(content, suffix)[0]
    except MeshError as error:
        raise MeshError(f"{path} could not be read again: {suffix} cannot hold this mesh, write .ply") from error
    lost = _collapsed(held) - _collapsed(mesh)
    if lost > COLLAPSED * len(mesh.faces) or len(held.faces) != len(mesh.faces):
        raise MeshError(
            f"{path} would lose {lost:,} of {len(mesh.faces):,} faces: {suffix} keeps too few digits so far from the "
            "origin, or of numbers so small; write .ply, or move or scale the scan"
        )
    write_file(path, content)
    return Written(held, _moved(_corners(mesh), _corners(held)) <= COARSE * size)


def _moved(a: Tensor, b: Tensor) -> float:
    return (a - b.to(a.dtype)).abs().max().item() if a.numel() else 0.0


def _corners(mesh: Mesh) -> Tensor:
    """The corners of all faces; a .stl file repeats vertices. Of a cloud, its points."""
    return mesh.vertices if mesh.is_cloud else mesh.vertices[mesh.faces]


def _collapsed(mesh: Mesh) -> int:
    """How many faces have two corners at one place."""
    if mesh.is_cloud:
        return 0
    corners = _corners(mesh)
    return int((corners == corners.roll(1, dims=1)).all(-1).any(-1).sum())


def _double(mesh: Mesh) -> bytes:
    """A .ply file in double precision, which trimesh does not write."""
    vertices = np.ascontiguousarray(mesh.vertices.numpy(), dtype="<f8")
    faces = np.empty(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces.numpy()
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(vertices)}"]
    header += [f"property double {axis}" for axis in "xyz"]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header", ""]
    return "\n".join(header).encode() + vertices.tobytes() + faces.tobytes()
