"""Meshes and clouds in files. The only importer of trimesh, which is loaded when a file is read and not before."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

MESHES = (".ply", ".obj", ".stl", ".off", ".glb")
CLOUDS = (".xyz", ".npy", ".npz")
SUFFIXES = (*MESHES, *CLOUDS)


class MeshError(ValueError):
    """A file or a mesh that cannot be used; the message is one line."""


@dataclass(frozen=True)
class Mesh:
    """Triangles, or a bare cloud when there are no faces. `normals` are what a file gives for the points of a cloud."""

    vertices: Float[Tensor, "vertices 3"]
    faces: Int[Tensor, "faces 3"]
    normals: Float[Tensor, "vertices 3"] | None = None

    @property
    def is_cloud(self) -> bool:
        """Whether there are only points."""
        return len(self.faces) == 0


def read(path: str | Path) -> Mesh:
    """Read a mesh or a cloud, in float64: .ply .obj .stl .off .glb by trimesh, .xyz as text, .npy and .npz by NumPy.

    Rows of clouds are `x y z` or `x y z nx ny nz`; an .npz file has `points` (and `normals`) or `vertices` and `faces`.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MeshError(f"{path}: cannot read {suffix or 'a file without a suffix'}, only {' '.join(SUFFIXES)}")
    if not path.is_file():
        raise MeshError(f"there is no file {path}")
    if path.stat().st_size == 0:
        raise MeshError(f"{path} is empty")
    try:
        mesh = _by_trimesh(path) if suffix in MESHES else _by_numpy(path, suffix)
    except MeshError:
        raise
    except Exception as error:  # a damaged file makes its parser stumble in ways that no list would cover
        lines = str(error).strip().splitlines()
        raise MeshError(f"{path} is damaged: {lines[0] if lines else type(error).__name__}") from error
    try:
        check(mesh)
    except MeshError as error:
        raise MeshError(f"{path}: {error}") from None
    return mesh


def check(mesh: Mesh) -> None:
    """Refuse a mesh without points, with coordinates that are no numbers, or with faces that name no vertex."""
    if len(mesh.vertices) == 0:
        raise MeshError("it has no points")
    bad = int((~torch.isfinite(mesh.vertices)).any(-1).sum())
    if bad:
        raise MeshError(f"{bad:,} of {len(mesh.vertices):,} points have coordinates that are NaN or infinite")
    if mesh.normals is not None and not mesh.normals.isfinite().all():
        raise MeshError("some of its normals are NaN or infinite")
    if len(mesh.faces) and not 0 <= int(mesh.faces.min()) <= int(mesh.faces.max()) < len(mesh.vertices):
        raise MeshError("it is damaged, its faces name vertices that do not exist")


def write(mesh: Mesh, path: str | Path) -> None:
    """Write a mesh as .ply .obj .stl .off or .glb; a cloud, without normals, as .ply or .glb."""
    import trimesh

    path = Path(path)
    known = (".ply", ".glb") if mesh.is_cloud else MESHES
    if path.suffix.lower() not in known:
        kind = "a cloud" if mesh.is_cloud else "a mesh"
        raise MeshError(
            f"{path}: cannot write {kind} as {path.suffix or 'a file without a suffix'}, only {' '.join(known)}"
        )
    vertices, faces = mesh.vertices.numpy(), mesh.faces.numpy()
    cloud: Any = trimesh.PointCloud
    shape = cloud(vertices) if mesh.is_cloud else trimesh.Trimesh(vertices, faces, process=False)
    shape.export(path)


def _by_trimesh(path: Path) -> Mesh:
    import trimesh

    _complete(path)
    # Unprocessed: trimesh would drop what is not finite and hide that a file is damaged.
    scene = trimesh.load_scene(path, process=False)
    parts = scene.dump()  # every part where the scene puts it
    meshes = [part for part in parts if isinstance(part, trimesh.Trimesh)]
    if meshes:
        offsets = np.cumsum([0, *(len(part.vertices) for part in meshes)])
        faces = [part.faces + offset for part, offset in zip(meshes, offsets, strict=False)]
        vertices = np.concatenate([part.vertices for part in meshes])
        return _mesh(vertices, np.concatenate(faces) if len(vertices) else np.empty((0, 3)))
    points = [part.vertices for part in parts if isinstance(part, trimesh.PointCloud)]
    if not points:
        raise MeshError(f"{path} has neither triangles nor points")
    normals = _ply_normals(parts[0]) if len(parts) == 1 else None
    return _mesh(np.concatenate(points), np.empty((0, 3)), normals)


def _complete(path: Path) -> None:
    """Refuse a file that ends too early, where trimesh would take what there is, or guess at another format."""
    content = path.read_bytes()
    suffix = path.suffix.lower()
    if suffix == ".stl" and not content.startswith(b"solid"):
        announced, found = 84 + 50 * int.from_bytes(content[80:84], "little"), len(content)
    elif suffix == ".glb" and content.startswith(b"glTF"):
        announced, found = int.from_bytes(content[8:12], "little"), len(content)
    elif suffix == ".off" and content.lstrip().startswith(b"OFF"):
        text = content.decode("ascii", "replace").lstrip().removeprefix("OFF")  # some headers go on in the same line
        lines = [line for raw in text.splitlines() if (line := raw.partition("#")[0].split())]
        announced = 1 + sum(map(int, lines[0][:2])) if lines else 1
        found = len(lines)
        if found >= announced and int(lines[0][1]) and len(lines[announced - 1]) <= int(lines[announced - 1][0]):
            found = announced - 1  # the last face lacks a corner
    elif suffix == ".ply" and b"format ascii" in content.partition(b"end_header")[0]:
        announced, found = _ply_lines(content.decode("ascii", "replace"))
    else:
        return
    if found < announced:
        unit = "lines" if suffix in (".off", ".ply") else "bytes"
        raise MeshError(f"{path} is truncated: {found:,} {unit} instead of {announced:,}")


def _ply_lines(content: str) -> tuple[int, int]:
    """How many lines the header of a text .ply file announces after itself, and how many are there and whole."""
    header, _, body = content.partition("end_header")
    announced, rows = 0, 0
    last: list[str] = []  # kinds of the properties of the last element that has rows
    for words in (line.split() for line in header.splitlines()):
        if words[:1] == ["element"]:
            rows = int(words[2])
            announced, last = announced + rows, [] if rows else last
        elif words[:1] == ["property"] and rows:
            last.append(words[1])
    lines = [line for raw in body.splitlines() if (line := raw.split())]
    found = len(lines)
    if 0 < found == announced:
        found -= len(lines[-1]) < (
            1 + int(lines[-1][0]) if last == ["list"] else len(last)
        )  # it is cut inside the line
    return announced, found


def _ply_normals(cloud: object) -> NDArray[Any] | None:
    """Normals of a .ply cloud, which trimesh keeps among what it read but does not interpret."""
    raw = getattr(cloud, "metadata", {}).get("_ply_raw", {}).get("vertex", {}).get("data")
    names = raw if isinstance(raw, dict) else getattr(getattr(raw, "dtype", None), "names", None) or ()
    if raw is None or not {"nx", "ny", "nz"} <= set(names):
        return None
    return np.stack([raw[name].reshape(-1) for name in ("nx", "ny", "nz")], axis=-1)


def _by_numpy(path: Path, suffix: str) -> Mesh:
    if suffix == ".npz":
        # Opened here, because NumPy leaves a file open that turns out to be damaged.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
            arrays = dict(stored)
        if "vertices" in arrays and "faces" in arrays:
            return _mesh(arrays["vertices"], arrays["faces"])
        if "points" not in arrays and len(arrays) != 1:
            raise MeshError(f"{path} has neither 'points' nor 'vertices' and 'faces': it has {', '.join(arrays)}")
        points = arrays["points"] if "points" in arrays else next(iter(arrays.values()))
        table = np.concatenate([points, arrays["normals"]], axis=1) if "normals" in arrays else points
    elif suffix == ".npy":
        table = np.load(path, allow_pickle=False)
    else:
        lines = path.read_text().splitlines()
        table = np.loadtxt(lines, delimiter="," if "," in lines[0] else None, ndmin=2)
    if table.ndim != 2 or table.shape[1] not in (3, 6):
        raise MeshError(f"{path}: columns must be x y z or x y z nx ny nz, got an array {table.shape}")
    return _mesh(table[:, :3], np.empty((0, 3)), table[:, 3:] if table.shape[1] == 6 else None)


def _mesh(vertices: NDArray[Any], faces: NDArray[Any], normals: NDArray[Any] | None = None) -> Mesh:
    return Mesh(
        torch.from_numpy(np.array(vertices, dtype=np.float64)).reshape(-1, 3),
        torch.from_numpy(np.array(faces, dtype=np.int64)).reshape(-1, 3),
        None if normals is None else torch.from_numpy(np.array(normals, dtype=np.float64)),
    )
