"""`vn reconstruct scan.ply -o out.ply`: a closed mesh from a scan."""

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
from ..training.limits import MAX_THREADS
from . import UserError, check_out

ON_A_MESH = 10_000  # points drawn on the surface of a file that has one
MAX_RESOLUTION = 1024
LARGE = 1.5  # of the size of a scan, above which a mesh is suspect


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

    Exit code 0: the mesh is written and watertight; 1: there was nothing to write, or it has holes.

    Args:
        scan: a cloud or a mesh: .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz.
        out: where to write the mesh: .ply .obj .stl .off .glb.
        model: folder of a run of `vn train reconstruction`, or of a saved occupancy network; by default the one that
            comes with the package, which has learned from household objects, whole and seen from one side.
        resolution: cells of the grid along each axis: 32, 64, 128, 256, ...
        threshold: probability above which a place is inside; by default the best on validation shapes.
        refine: steps that bring vertices closer to the true surface of the function.
        faces: simplify to about so many faces.
        drop_nan: leave out points of a cloud that are NaN or infinite, as depth cameras write them.
        seed: of the points that are drawn from a scan with more than the network was trained on.
        threads: processor threads.
    """
    kernels.prefer_built()  # one mesh takes less time than compiling them
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
            warnings.filterwarnings("ignore", message="the mesh is empty")  # which is said below
            warnings.showwarning = lambda message, *_, **__: _say(str(message))
            points = _points(mesh.read(scan, drop_nan=drop_nan), seed)
            made = reconstruct(
                network, points, threshold=threshold, resolution=resolution, seed=seed, refine=refine, faces=faces
            )
        if made.is_cloud:
            raise UserError(f"nothing to write: the network sees no inside in {scan}", code=1)
    except (ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:  # torch's lack of memory, too
        raise UserError(first_line(error)) from error
    try:
        held, exact = mesh.write(made, out)
    except ValueError as error:
        raise UserError(first_line(error)) from error
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or first_line(error)}") from error
    _notes(held, exact, points, out)
    closed, vertices = mesh.watertight(held), torch.unique(held.vertices, dim=0)  # a .stl repeats them for every face
    size = (vertices.amax(0) - vertices.amin(0)).tolist()
    print(f"{out}: {len(vertices):,} vertices, {len(held.faces):,} faces, {'' if closed else 'not '}watertight")
    used = min(len(points), network.meaning.points or len(points))
    print(f"size {' × '.join(f'{x:.4g}' for x in size)}, from {used:,} of {len(points):,} points of {scan}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0 if closed else 1


def _network(model: Path | None) -> OccupancyNetwork:
    network = store.pretrained("reconstruction") if model is None else store.load(model).float()
    if not isinstance(network, OccupancyNetwork):
        raise UserError(f"{model or 'the package'} holds a {type(network).__name__}, not an occupancy network")
    return network


def _notes(made: mesh.Mesh, exact: bool, scan: torch.Tensor, out: Path) -> None:
    """Say what may be wrong with a mesh that was made."""
    if not exact:
        digits = "eight decimals" if out.suffix.lower() == ".obj" else "seven digits"
        _say(f"{out.suffix} keeps {digits}, too few here, and vertices moved: write .ply, or move or scale the scan")
    size = (made.vertices.amax(0) - made.vertices.amin(0)).max().item()
    if size > LARGE * (scan.amax(0) - scan.amin(0)).max().item():
        _say(f"the mesh is {LARGE} times as large as the scan: is it of another kind?")


def _say(text: str) -> None:
    print(f"vn reconstruct: {text}", file=sys.stderr)


def _points(scan: mesh.Mesh, seed: int) -> torch.Tensor:
    if scan.is_cloud:
        return scan.vertices
    try:
        return mesh.sample(scan, ON_A_MESH, generator=torch.Generator().manual_seed(seed))[0]
    except MeshError:
        return scan.vertices  # faces without area: what is left are its corners
