"""`vn align A B -o out.ply`: move a shape to the pose of another one."""

import time
from pathlib import Path
from typing import Annotated

import tyro

from .. import kernels, mesh
from .._files import first_line
from ..inference import Alignment, align
from ..inference.align import axis_and_angle
from ..mesh import io
from . import UserError, check_out

BAD_FIT = 0.2  # of the radius of the target


def run(
    source: Annotated[Path, tyro.conf.arg(metavar="A")],
    target: Annotated[Path, tyro.conf.arg(metavar="B")],
    /,
    *,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    scale: bool = False,
    overlap: float = 1.0,
    model: str = "classification",
    drop_nan: bool = False,
    seed: int = 0,
) -> int:
    """Find the rotation and translation that take A to the pose of B: two scans of an object, or two of a kind.

    Args:
        source: mesh or cloud A: .ply .obj .stl .off .glb .xyz .pts .csv .pcd .npy .npz.
        target: mesh or cloud B.
        out: file to write A in the pose of B to: .ply .obj .stl .off .glb, a cloud .ply or .glb.
        scale: find the scale, too.
        overlap: fraction of each shape that the other has, too, if they are partial scans.
        model: name of a model in the package, or folder of a run or of a saved model, that classifies.
        drop_nan: drop points of clouds that are NaN or infinite, as depth cameras write them.
        seed: seed of the sampled points.
    """
    kernels.prefer_built()  # two files take less time than compiling the kernels
    started = time.perf_counter()
    try:
        moved, fixed = (mesh.read(file, drop_nan=drop_nan) for file in (source, target))
        if out is not None:
            suffixes = (".ply", ".glb") if moved.is_cloud else io.MESH_SUFFIXES
            check_out(out, suffixes, "a cloud" if moved.is_cloud else "a mesh")
        found = align(moved, fixed, model, scale=scale, overlap=overlap, seed=seed)
        if out is not None:
            mesh.write(found.apply(moved), out)
    except (ValueError, OSError) as error:
        raise UserError(first_line(error)) from error
    _print(found, scale)
    if out is not None:
        print(f"{out}: {source} in the pose of {target}")
    print(f"{time.perf_counter() - started:.1f} s")
    return 0


def _print(found: Alignment, scale: bool) -> None:
    axis, angle = axis_and_angle(found.rotation)
    print(f"rotation by {angle:.2f}° about ({', '.join(f'{x:.4f}' for x in axis.tolist())})")
    for row in found.rotation.tolist():
        print("  " + "  ".join(f"{x:9.6f}" for x in row))
    print(f"translation ({', '.join(f'{x:.6g}' for x in found.translation.tolist())})")
    if scale:
        print(f"scale {found.scale:.6g}")
    print(f"residual {100 * found.residual:.2f} % of the radius of the target")
    if found.residual > BAD_FIT:
        print("the shapes fit badly: try --scale if their units differ, --overlap if they are partial")
    elif found.symmetric is not None:
        print(f"the pose is ambiguous, {len(found.poses)} fit: the target is symmetric, {found.symmetric}")
