"""Read meshes and clouds from files. The only importer of trimesh, which is imported when it is needed."""

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._files import FileError, first_line, read_bytes
from .._npz import load_npy, load_npz
from . import formats, glb, pcd, ply, xyz
from .mesh import ARRAYS_MAX_BYTES, FILE_MAX_BYTES, Mesh, MeshError, MeshWarning, UnreadableError, check_mesh

MESH_SUFFIXES = (".ply", ".obj", ".stl", ".off", ".glb")
CLOUD_SUFFIXES = (".xyz", ".npy", ".npz", ".pcd", ".csv", ".pts")
SUFFIXES = (*MESH_SUFFIXES, *CLOUD_SUFFIXES)
SIGNATURES = {".ply": (b"ply\n", b"ply\r"), ".glb": (b"glTF",), ".npy": (b"\x93NUMPY",)}
UTF16 = (b"\xff\xfe", b"\xfe\xff")
MeshAndNote = tuple[Mesh, str]  # the note says what of the file is not used, if anything


def read(path: str | Path, *, drop_nan: bool = False) -> Mesh:
    """Read a mesh or a point cloud from a file, in float64.

    Meshes are read from .ply, .obj, .stl, .off and .glb files, clouds from .ply, .glb, .xyz, .pts, .csv, .pcd, .npy and
    .npz files. Rows of a cloud are `x y z`, or `x y z nx ny nz` if the latter three have unit length; other columns are
    ignored with a `MeshWarning`. An .npz file has the arrays `points` (and `normals`), or `vertices` and `faces`.

    Args:
        path: the file; its suffix says the format.
        drop_nan: leave out points of a cloud that are NaN or infinite, as depth cameras write them, with a
            `MeshWarning` that says how many.

    Raises:
        MeshError: the file is missing, damaged, truncated or too large, or has NaN or infinite coordinates.
        UnreadableError: the system does not give the file, as without permission; it may be undamaged.

    >>> import tempfile
    >>> from vector_neurons.mesh import Mesh, write
    >>> triangle = Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = write(triangle, f"{folder}/triangle.ply")
    ...     read(f"{folder}/triangle.ply").vertices.shape
    torch.Size([3, 3])
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        if not suffix and not os.path.lexists(path):
            raise MeshError(f"there is no file or folder {path}")
        if os.path.isdir(path):
            raise MeshError(f"{path} cannot be read: it is a folder")
        raise MeshError(f"{path}: cannot read {suffix or 'a file without a suffix'}, only {' '.join(SUFFIXES)}")
    try:
        mesh, note = _parse(path, suffix)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MeshError(f"there is no file {path}") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    except MemoryError as error:
        raise UnreadableError(f"{path} cannot be read: there is not enough memory") from error
    except (MeshError, FileError) as error:
        raise MeshError(str(error) if str(path) in str(error) else f"{path} {error}") from error
    except Exception as error:  # a damaged file may raise anything in its parser
        raise MeshError(f"{path} is damaged: {first_line(error)}") from error
    if drop_nan and mesh.is_cloud:
        mesh, dropped = _drop_nonfinite(mesh)
        note = ", ".join(filter(None, (note, dropped)))
    try:
        check_mesh(mesh)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    if note:
        warnings.warn(f"{path}: {note}", MeshWarning, stacklevel=2)
    return mesh


def encode(mesh: Mesh, suffix: str) -> bytes:
    """Encode a mesh as a .ply, .obj, .stl, .off or .glb file; a cloud, without normals, as .ply or .glb."""
    import trimesh

    known = (".ply", ".glb") if mesh.is_cloud else MESH_SUFFIXES
    if suffix not in known:
        kind = "a cloud" if mesh.is_cloud else "a mesh"
        raise MeshError(f"cannot write {kind} as {suffix or 'a file without a suffix'}, only {' '.join(known)}")
    vertices, faces = mesh.vertices.numpy(), mesh.faces.numpy()
    cloud: Any = trimesh.PointCloud
    shape: Any = cloud(vertices) if mesh.is_cloud else trimesh.Trimesh(vertices, faces, process=False)
    content: str | bytes = shape.export(file_type=suffix[1:])
    return content.encode() if isinstance(content, str) else content


def _parse(path: Path, suffix: str) -> MeshAndNote:
    if suffix in (".npz", ".npy") and path.is_file() and path.stat().st_size == 0:
        raise MeshError("is empty")
    if suffix == ".npz":
        return _from_arrays(load_npz(path, _select_arrays, ARRAYS_MAX_BYTES))
    if suffix == ".npy":
        return _cloud(xyz.unnamed_columns(load_npy(path, ARRAYS_MAX_BYTES)))
    return decode(read_bytes(path, FILE_MAX_BYTES), suffix)


def decode(content: bytes, suffix: str) -> MeshAndNote:
    """Decode the content of a file of any format but .npy and .npz; returns the mesh and a note."""
    if not content:
        raise MeshError("is empty")
    own = next((name for name, mark in SIGNATURES.items() if content.startswith(mark)), suffix)
    if own != suffix:
        raise MeshError(f"is a {own} file by its content: rename it")
    if suffix != ".glb" and content.startswith(UTF16):
        raise MeshError("is text in UTF-16: save it as UTF-8")
    if suffix == ".glb":
        return _read_glb(glb.check(content)), ""
    if suffix == ".pcd":
        return _cloud(pcd.read(content))
    if suffix in CLOUD_SUFFIXES:
        return _cloud(xyz.read_text(content, suffix))
    if suffix == ".ply":
        points, triangles, normals = ply.read(content)
        return _mesh(points, triangles, None if len(triangles) else normals), ""
    read = {".off": formats.read_off, ".stl": formats.read_stl, ".obj": formats.read_obj}[suffix]
    points, triangles = read(content)
    if not len(points):
        raise MeshError("has neither triangles nor points")
    return _mesh(points, triangles), ""


def _read_glb(content: bytes) -> Mesh:
    import trimesh

    # From memory, so that no other file is opened; unprocessed, because trimesh would drop what is not finite and hide
    # that a file is damaged.
    with np.errstate(invalid="ignore", over="ignore"):  # `check_mesh` says so in words
        scene = trimesh.load_scene(io.BytesIO(content), file_type="glb", process=False, skip_materials=True)
        return from_trimesh(scene)


def from_trimesh(shape: Any) -> Mesh:
    """Convert a `Trimesh`, a `PointCloud`, or a `Scene` of these, whose meshes are joined, to a `Mesh`."""
    import trimesh

    parts = shape.dump() if isinstance(shape, trimesh.Scene) else [shape]  # every part, placed by the scene
    meshes = [part for part in parts if isinstance(part, trimesh.Trimesh)]
    if meshes:
        offsets = np.cumsum([0, *(len(part.vertices) for part in meshes)])
        faces = [part.faces + offset for part, offset in zip(meshes, offsets, strict=False)]
        vertices = np.concatenate([part.vertices for part in meshes])
        return _mesh(vertices, np.concatenate(faces) if len(vertices) else np.empty((0, 3)))
    points = [part.vertices for part in parts if isinstance(part, trimesh.PointCloud)]
    if not points:
        raise MeshError("has neither triangles nor points")
    return _mesh(np.concatenate(points))


def _select_arrays(names: Sequence[str]) -> Sequence[str]:
    if {"vertices", "faces"} <= set(names):
        return ["vertices", "faces"]
    if "points" in names:
        return [name for name in ("points", "normals") if name in names]
    if len(names) != 1:
        raise MeshError(f"has neither 'points' nor 'vertices' and 'faces': it has {', '.join(names)[:200]}")
    return names


def _from_arrays(arrays: dict[str, NDArray[Any]]) -> MeshAndNote:
    for name, array in arrays.items():
        shaped = array.ndim == 2 and (array.shape[1] == 3 or name not in ("vertices", "faces", "normals"))
        if not shaped or array.dtype.kind not in ("iu" if name == "faces" else "fiub"):
            raise MeshError(f"cannot be used: {name!r} is an array {array.shape} of {array.dtype}, not of rows of 3")
    if "faces" in arrays:
        return _mesh(arrays["vertices"], arrays["faces"]), ""
    if "normals" not in arrays:
        return _cloud(xyz.unnamed_columns(next(iter(arrays.values()))))
    points = xyz.unnamed_columns(arrays["points"][:, :3])
    if len(arrays["normals"]) != len(points.points):
        raise MeshError(f"is damaged: {len(arrays['normals']):,} normals for {len(points.points):,} points")
    return _mesh(points.points, normals=arrays["normals"]), ""


def _cloud(found: xyz.ParsedCloud) -> MeshAndNote:
    return _mesh(found.points, normals=found.normals), found.note


def _mesh(vertices: NDArray[Any], faces: NDArray[Any] | None = None, normals: NDArray[Any] | None = None) -> Mesh:
    return Mesh(
        torch.from_numpy(np.array(vertices, dtype=np.float64)).reshape(-1, 3),
        torch.from_numpy(np.array([] if faces is None else faces, dtype=np.int64)).reshape(-1, 3),
        None if normals is None else torch.from_numpy(np.array(normals, dtype=np.float64)),
    )


def _drop_nonfinite(cloud: Mesh) -> MeshAndNote:
    good = cloud.vertices.isfinite().all(-1)
    if cloud.normals is not None:
        good &= cloud.normals.isfinite().all(-1)
    dropped = int((~good).sum())
    if not dropped:
        return cloud, ""
    normals = None if cloud.normals is None else cloud.normals[good]
    note = f"{dropped:,} of {len(good):,} points are NaN or infinite and left out"
    return Mesh(cloud.vertices[good], cloud.faces, normals), note
