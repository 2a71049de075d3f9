"""Meshes and clouds in files. The only importer of trimesh, which is loaded when it is needed and not before."""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._files import first_line
from . import clouds, formats, pcd, ply
from .mesh import Mesh, MeshError, MeshWarning, UnreadableError
from .mesh import check as check
from .stored import load_npy, load_npz, read_bytes

MESHES = (".ply", ".obj", ".stl", ".off", ".glb")
CLOUDS = (".xyz", ".npy", ".npz", ".pcd", ".csv", ".pts")
SUFFIXES = (*MESHES, *CLOUDS)
Found = tuple[Mesh, str]  # and a note on what of the file is not used


def read(path: str | Path, *, drop_nan: bool = False) -> Mesh:
    """Read a mesh or a cloud, in float64: .ply .obj .stl .off .glb, and clouds in .xyz .pts .csv .pcd .npy .npz.

    Rows of clouds are `x y z`, and `x y z nx ny nz` if the latter are of unit length; an .npz file has `points` (and
    `normals`) or `vertices` and `faces`. A file whose counts and content differ is refused. Other columns are not used,
    which is said by a `MeshWarning`. `drop_nan` leaves out points of a cloud that are NaN or infinite, as depth cameras
    write them, and says how many.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MeshError(f"{path}: cannot read {suffix or 'a file without a suffix'}, only {' '.join(SUFFIXES)}")
    try:
        mesh, note = _parse(path, suffix)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MeshError(f"there is no file {path}") from error
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    except MemoryError as error:
        raise UnreadableError(f"{path} cannot be read: there is not enough memory") from error
    except MeshError as error:
        raise MeshError(str(error) if str(path) in str(error) else f"{path} {error}") from error
    except Exception as error:  # a damaged file makes its parser stumble in ways that no list would cover
        raise MeshError(f"{path} is damaged: {first_line(error)}") from error
    if drop_nan and mesh.is_cloud:
        mesh, dropped = _finite(mesh)
        note = ", ".join(filter(None, (note, dropped)))
    try:
        check(mesh)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    if note:
        warnings.warn(f"{path}: {note}", MeshWarning, stacklevel=2)
    return mesh


def encode(mesh: Mesh, suffix: str) -> bytes:
    """A mesh as the content of a .ply .obj .stl .off or .glb file; a cloud, without normals, of a .ply or .glb file."""
    import trimesh

    known = (".ply", ".glb") if mesh.is_cloud else MESHES
    if suffix not in known:
        kind = "a cloud" if mesh.is_cloud else "a mesh"
        raise MeshError(f"cannot write {kind} as {suffix or 'a file without a suffix'}, only {' '.join(known)}")
    vertices, faces = mesh.vertices.numpy(), mesh.faces.numpy()
    cloud: Any = trimesh.PointCloud
    shape: Any = cloud(vertices) if mesh.is_cloud else trimesh.Trimesh(vertices, faces, process=False)
    content: str | bytes = shape.export(file_type=suffix[1:])
    return content.encode() if isinstance(content, str) else content


def _parse(path: Path, suffix: str) -> Found:
    if suffix == ".npz":
        return _by_name(load_npz(path, _wanted))
    if suffix == ".npy":
        return _cloud(clouds.columns(load_npy(path)))
    return decode(read_bytes(path), suffix)


def decode(content: bytes, suffix: str) -> Found:
    """A mesh or a cloud from the content of a file of this format, all but .npy and .npz."""
    if not content:
        raise MeshError("is empty")
    if suffix == ".glb":
        formats.check_glb(content)
        return _by_trimesh(content), ""
    if suffix == ".pcd":
        return _cloud(pcd.read(content))
    if suffix in CLOUDS:
        return _cloud(clouds.read_text(content, suffix))
    if suffix == ".ply":
        points, triangles, normals = ply.read(content)
        return _mesh(points, triangles, None if len(triangles) else normals), ""
    read = {".off": formats.read_off, ".stl": formats.read_stl, ".obj": formats.read_obj}[suffix]
    points, triangles = read(content)
    if not len(points):
        raise MeshError("has neither triangles nor points")
    return _mesh(points, triangles), ""


def _by_trimesh(content: bytes) -> Mesh:
    import trimesh

    # From memory, so that nothing beside the file is looked at; unprocessed, because trimesh would drop what is not
    # finite and hide that a file is damaged.
    scene = trimesh.load_scene(io.BytesIO(content), file_type="glb", process=False, skip_materials=True)
    parts = scene.dump()  # every part where the scene puts it
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


def _wanted(names: Sequence[str]) -> Sequence[str]:
    if {"vertices", "faces"} <= set(names):
        return ["vertices", "faces"]
    if "points" in names:
        return [name for name in ("points", "normals") if name in names]
    if len(names) != 1:
        raise MeshError(f"has neither 'points' nor 'vertices' and 'faces': it has {', '.join(names)[:200]}")
    return names


def _by_name(arrays: dict[str, NDArray[Any]]) -> Found:
    for name, array in arrays.items():
        shaped = array.ndim == 2 and (array.shape[1] == 3 or name not in ("vertices", "faces", "normals"))
        if not shaped or array.dtype.kind not in ("iu" if name == "faces" else "fiub"):
            raise MeshError(f"cannot be used: {name!r} is an array {array.shape} of {array.dtype}, not of rows of 3")
    if "faces" in arrays:
        return _mesh(arrays["vertices"], arrays["faces"]), ""
    if "normals" not in arrays:
        return _cloud(clouds.columns(next(iter(arrays.values()))))
    points = clouds.columns(arrays["points"][:, :3])
    if len(arrays["normals"]) != len(points.points):
        raise MeshError(f"is damaged: {len(arrays['normals']):,} normals for {len(points.points):,} points")
    return _mesh(points.points, normals=arrays["normals"]), ""


def _cloud(found: clouds.Points) -> Found:
    return _mesh(found.points, normals=found.normals), found.note


def _mesh(vertices: NDArray[Any], faces: NDArray[Any] | None = None, normals: NDArray[Any] | None = None) -> Mesh:
    return Mesh(
        torch.from_numpy(np.array(vertices, dtype=np.float64)).reshape(-1, 3),
        torch.from_numpy(np.array([] if faces is None else faces, dtype=np.int64)).reshape(-1, 3),
        None if normals is None else torch.from_numpy(np.array(normals, dtype=np.float64)),
    )


def _finite(cloud: Mesh) -> Found:
    good = cloud.vertices.isfinite().all(-1)
    if cloud.normals is not None:
        good &= cloud.normals.isfinite().all(-1)
    dropped = int((~good).sum())
    if not dropped:
        return cloud, ""
    normals = None if cloud.normals is None else cloud.normals[good]
    note = f"{dropped:,} of {len(good):,} points are NaN or infinite and left out"
    return Mesh(cloud.vertices[good], cloud.faces, normals), note
