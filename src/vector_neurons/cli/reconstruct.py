"""`vn reconstruct scan.ply -o out.ply`: reconstruct a closed mesh from a scan."""

import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from .. import kernels, mesh
from .._files import first_line
from ..geometry.sampling import ball
from ..inference.predict import find_model
from ..mesh import MeshError, io
from ..mesh.inspection import NEAR
from ..models import OccupancyModel
from ..tasks import reconstruct
from ..tasks.meshing import REACH
from ..training.config import MAX_THREADS
from . import UserError, check_out

MESH_SAMPLES = 10_000  # points sampled on the surface of an input mesh
RESOLUTIONS = (32, 64, 128, 256, 512, 1024)
SUSPICIOUS_SIZE = 1.5  # of a mesh, in sizes of its scan
MAX_INVENTED, MAX_MISSED = 0.1, 0.02  # fractions of the surface and of the points that may be far from the other
MIN_CELLS = 2.0  # of the grid, through the thinnest part


def run(
    scan: Annotated[Path, tyro.conf.arg(metavar="SCAN")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    model: str = "reconstruction",
    resolution: int = 128,
    threshold: float | None = None,
    refine: int = 2,
    faces: int | None = None,
    keep: Literal["all", "largest"] = "all",
    strict: bool = False,
    drop_nan: bool = False,
    seed: int = 0,
    threads: int | None = None,
) -> int:
    """Reconstruct the closed surface of a scan. Units and pose are those of the scan.

    Exit code 0: the mesh is written and watertight; 1: the mesh is empty, or it has holes, or with --strict there was
    a warning. A .ply file has the confidence of every vertex as `quality`: the probability, by the network, that
    the surface is no farther from there than 2 % of the size of the scan.

    Args:
        scan: file of a point cloud or a mesh: .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz.
        out: file to write the mesh to: .ply .obj .stl .off .glb.
        model: reconstruction, which comes with the package and was trained on scanned household objects; or the
            folder of a run of `vn train reconstruction`, or of a saved occupancy network.
        resolution: cells of the grid along each axis: 32, 64, 128, 256 and so on.
        threshold: occupancy probability above which a point is inside; by default the best one on validation shapes.
        refine: steps that move the vertices toward the level set of the occupancy.
        faces: simplify the mesh to about this number of faces.
        keep: all bodies of the mesh, or the largest.
        strict: exit with code 1 if the mesh may be wrong, instead of warning only.
        drop_nan: drop points that are NaN or infinite, as depth cameras write them.
        seed: seed of the subset of points, if the scan has more than the clouds the network was trained on.
        threads: CPU threads.
    """
    kernels.prefer_built()  # one mesh takes less time than compiling the kernels
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"--threads takes 1 to {MAX_THREADS:,}, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
    if resolution not in RESOLUTIONS:
        raise UserError(f"--resolution takes {', '.join(map(str, RESOLUTIONS))}, got {resolution}")
    if threshold is not None and not 0 < threshold < 1:
        raise UserError(f"--threshold takes a probability between 0 and 1, got {threshold}")
    check_out(out, io.MESH_SUFFIXES, "a mesh")
    started = time.perf_counter()
    try:
        network = _network(model)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message="the mesh is empty")  # reported below
            warnings.showwarning = lambda message, *_, **__: _print_warning(str(message))
            points, normals = _points(mesh.read(scan, drop_nan=drop_nan), seed)
            options: dict[str, Any] = {"threshold": threshold, "resolution": resolution, "refine": refine}
            surface = reconstruct(network, points, normals=normals, seed=seed, faces=faces, **options)
        if keep == "largest" and not surface.is_cloud:
            surface = mesh.largest_body(surface)
        if surface.is_cloud:
            raise UserError(f"the mesh is empty: the network finds nothing inside {scan}", code=1)
    except (ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:  # also out of memory in torch
        raise UserError(first_line(error)) from error
    try:
        written, exact = mesh.write(surface, out)
    except ValueError as error:
        raise UserError(first_line(error)) from error
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or first_line(error)}") from error
    found = mesh.quality(written, points, seed=seed)
    cell = 2 * REACH * ball(points)[1].item() / resolution
    doubts = [*_doubts_of_file(exact, out), *_doubts(found, written, points, cell)]
    for doubt in doubts:
        _print_warning(doubt)
    closed = mesh.watertight(written)
    vertices = torch.unique(written.vertices, dim=0)  # a .stl repeats them for every face
    size = (vertices.amax(0) - vertices.amin(0)).tolist()
    print(f"{out}: {len(vertices):,} vertices, {len(written.faces):,} faces, {'' if closed else 'not '}watertight")
    used = min(len(points), network.metadata.points or len(points))
    how = f"means around {used:,}" if network.takes_normals and used < len(points) else f"{used:,}"
    print(f"size {' × '.join(f'{x:.4g}' for x in size)}, from {how} of {len(points):,} points of {scan}")
    bodies = f"{found.bodies:,} {'body' if found.bodies == 1 else 'bodies'}, genus {found.genus:,}"
    far = f"{found.invented:.1%} of the surface and {found.missed:.1%} of the points"
    print(f"{bodies}; {far} are farther from the other than {NEAR:.0%} of the size")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0 if closed and not (strict and doubts) else 1


def _network(model: str) -> OccupancyModel:
    network = find_model(model).float()
    if not isinstance(network, OccupancyModel):
        raise UserError(f"{model} holds a {type(network).__name__}, not an occupancy network")
    return network


def _doubts_of_file(exact: bool, out: Path) -> list[str]:
    if exact:
        return []
    digits = "eight decimals" if out.suffix.lower() == ".obj" else "seven digits"
    return [f"{out.suffix} keeps {digits}, too few here, and vertices moved: write .ply, or move or scale the scan"]


def _doubts(found: mesh.Quality, surface: mesh.Mesh, scan: Tensor, cell: float) -> list[str]:
    """What may be wrong with a mesh, one line each."""
    size, near = (surface.vertices.amax(0) - surface.vertices.amin(0)).max().item(), f"{NEAR:.0%} of the size"
    cells = found.thinnest / cell
    possible = [
        (
            size > SUSPICIOUS_SIZE * (scan.amax(0) - scan.amin(0)).max().item(),
            f"the mesh is more than {SUSPICIOUS_SIZE} times as large as the scan: is it of another kind?",
        ),
        (
            found.invented > MAX_INVENTED,
            f"{found.invented:.0%} of the surface is a guess, farther than {near} from every point: scan that side too",
        ),
        (
            found.missed > MAX_MISSED,
            f"{found.missed:.0%} of the points are farther than {near} from the surface: it misses a part of the scan, "
            "or they are outliers",
        ),
        (found.bodies > 1, f"the mesh has {found.bodies:,} bodies: --keep largest keeps one"),
        (cells < MIN_CELLS, f"the thinnest part is {cells:.1f} cells of the grid thick: raise --resolution"),
    ]
    return [text for doubtful, text in possible if doubtful]


def _print_warning(text: str) -> None:
    print(f"vn reconstruct: {text}", file=sys.stderr)


def _points(scan: mesh.Mesh, seed: int) -> tuple[Tensor, Tensor | None]:
    """The points of a cloud and its normals, or samples of a mesh, whose faces may be oriented either way."""
    if scan.is_cloud:
        return scan.vertices, scan.normals
    try:
        return mesh.sample(scan, MESH_SAMPLES, generator=torch.Generator().manual_seed(seed))[0], None
    except MeshError:
        return scan.vertices, None  # faces without area leave only their vertices
