"""`vn reconstruct scan.ply -o out.ply`: reconstruct a closed mesh from a scan."""

import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import torch
import tyro

from .. import kernels, mesh
from .._files import first_line
from ..mesh import MeshError, io
from ..models import OccupancyNetwork, store
from ..tasks import reconstruct
from ..training.config import MAX_THREADS
from . import UserError, check_out

MESH_SAMPLES = 10_000  # points sampled on the surface of an input mesh
MAX_RESOLUTION = 1024
SUSPICIOUS_SIZE = 1.5  # of a mesh, in sizes of its scan


def run(
    scan: Annotated[Path, tyro.conf.arg(metavar="SCAN")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    model: Path | None = None,
    resolution: int = 128,
    threshold: float | None = None,
    refine: int = 2,
    faces: int | None = None,
    drop_nan: bool = False,
    seed: int = 0,
    threads: int | None = None,
) -> int:
    """Reconstruct the closed surface of a scan. Units and pose are those of the scan.

    Exit code 0: the mesh is written and watertight; 1: the mesh is empty, or it has holes.

    Args:
        scan: file of a point cloud or a mesh: .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz.
        out: file to write the mesh to: .ply .obj .stl .off .glb.
        model: folder of a run of `vn train reconstruction`, or of a saved occupancy network; by default the one in
            the package, trained on scanned household objects, complete and seen from one side.
        resolution: cells of the grid along each axis: 32, 64, 128, 256 and so on.
        threshold: occupancy probability above which a point is inside; by default the best one on validation shapes.
        refine: steps that move the vertices toward the level set of the occupancy.
        faces: simplify the mesh to about this number of faces.
        drop_nan: drop points that are NaN or infinite, as depth cameras write them.
        seed: seed of the subset of points, if the scan has more than the clouds the network was trained on.
        threads: CPU threads.
    """
    kernels.prefer_built()  # one mesh takes less time than compiling the kernels
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise UserError(f"--threads takes 1 to {MAX_THREADS:,}, got {threads}")
    if threads is not None:
        torch.set_num_threads(threads)
    if resolution > MAX_RESOLUTION:
        raise UserError(f"--resolution takes at most {MAX_RESOLUTION}, got {resolution}")
    check_out(out, io.MESH_SUFFIXES, "a mesh")
    started = time.perf_counter()
    try:
        network = _network(model)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message="the mesh is empty")  # reported below
            warnings.showwarning = lambda message, *_, **__: _print_warning(str(message))
            points = _points(mesh.read(scan, drop_nan=drop_nan), seed)
            surface = reconstruct(
                network, points, threshold=threshold, resolution=resolution, seed=seed, refine=refine, faces=faces
            )
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
    _warn_of_defects(written, exact, points, out)
    closed = mesh.watertight(written)
    vertices = torch.unique(written.vertices, dim=0)  # a .stl repeats them for every face
    size = (vertices.amax(0) - vertices.amin(0)).tolist()
    print(f"{out}: {len(vertices):,} vertices, {len(written.faces):,} faces, {'' if closed else 'not '}watertight")
    used = min(len(points), network.metadata.points or len(points))
    print(f"size {' × '.join(f'{x:.4g}' for x in size)}, from {used:,} of {len(points):,} points of {scan}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0 if closed else 1


def _network(model: Path | None) -> OccupancyNetwork:
    network = store.pretrained("reconstruction") if model is None else store.load(model).float()
    if not isinstance(network, OccupancyNetwork):
        raise UserError(f"{model or 'the package'} holds a {type(network).__name__}, not an occupancy network")
    return network


def _warn_of_defects(surface: mesh.Mesh, exact: bool, scan: torch.Tensor, out: Path) -> None:
    """Warn of a mesh that lost precision or is suspiciously large."""
    if not exact:
        digits = "eight decimals" if out.suffix.lower() == ".obj" else "seven digits"
        _print_warning(
            f"{out.suffix} keeps {digits}, too few here, and vertices moved: write .ply, or move or scale the scan"
        )
    size = (surface.vertices.amax(0) - surface.vertices.amin(0)).max().item()
    if size > SUSPICIOUS_SIZE * (scan.amax(0) - scan.amin(0)).max().item():
        _print_warning(f"the mesh is more than {SUSPICIOUS_SIZE} times as large as the scan: is it of another kind?")


def _print_warning(text: str) -> None:
    print(f"vn reconstruct: {text}", file=sys.stderr)


def _points(scan: mesh.Mesh, seed: int) -> torch.Tensor:
    if scan.is_cloud:
        return scan.vertices
    try:
        return mesh.sample(scan, MESH_SAMPLES, generator=torch.Generator().manual_seed(seed))[0]
    except MeshError:
        return scan.vertices  # faces without area leave only their vertices
