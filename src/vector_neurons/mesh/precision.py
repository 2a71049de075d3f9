"""Meshes in files that keep too few digits: written so that nothing is lost, or refused."""

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from .._files import flush
from .io import read, write
from .mesh import Mesh, MeshError

COARSE = 1e-4  # of the size of a mesh, by which its vertices may be off in a file
COLLAPSED = 0.25  # of the faces of a mesh may lose their area in a file


def save(mesh: Mesh, path: Path) -> tuple[Mesh, bool]:
    """Write a mesh, whole or not at all: what the file then holds, and whether vertices are where they were.

    Formats round, to seven digits or to so many decimals. Where that would matter a .ply is written in double
    precision, and any other is refused if it would lose faces.
    """
    suffix, size = path.suffix.lower(), (mesh.vertices.amax(0) - mesh.vertices.amin(0)).max().item()
    part = path.with_name(f".vn-{os.getpid()}{suffix}")  # a name beside it that is not too long, of the same format
    try:
        if suffix == ".ply" and _moved(mesh.vertices, mesh.vertices.float()) > COARSE * size:
            _write_double(mesh, part)
        else:
            write(mesh, part)
        try:
            held = read(part)
        except MeshError as error:
            raise MeshError(f"{path} could not be read again: {suffix} cannot hold this mesh, write .ply") from error
        lost = _collapsed(held) - _collapsed(mesh)
        if lost > COLLAPSED * len(mesh.faces) or len(held.faces) != len(mesh.faces):
            raise MeshError(
                f"{path} would lose {lost:,} of {len(mesh.faces):,} faces: {suffix} keeps too few digits so far from "
                "the origin, or of numbers so small; write .ply, or move or scale the scan"
            )
        exact = _moved(_corners(mesh), _corners(held)) <= COARSE * size
        flush(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return held, exact


def _moved(a: Tensor, b: Tensor) -> float:
    return (a - b.to(a.dtype)).abs().max().item()


def _corners(mesh: Mesh) -> Float[Tensor, "faces 3 3"]:
    return mesh.vertices[mesh.faces]


def _collapsed(mesh: Mesh) -> int:
    """How many faces have two corners at one place."""
    corners = _corners(mesh)
    return int((corners == corners.roll(1, dims=1)).all(-1).any(-1).sum())


def _write_double(mesh: Mesh, path: Path) -> None:
    """A .ply file in double precision, which trimesh reads but does not write."""
    vertices = np.ascontiguousarray(mesh.vertices.numpy(), dtype="<f8")
    faces = np.empty(len(mesh.faces), dtype=[("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces.numpy()
    header = ["ply", "format binary_little_endian 1.0", f"element vertex {len(vertices)}"]
    header += [f"property double {axis}" for axis in "xyz"]
    header += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header", ""]
    path.write_bytes("\n".join(header).encode() + vertices.tobytes() + faces.tobytes())
