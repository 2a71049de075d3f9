"""Surfaces of the scans of `benchmarks/surfaces.py` by Screened Poisson reconstruction (Open3D), to compare.

pip install open3d    # into an environment of its own: neither this package nor torch is needed here
python benchmarks/poisson.py scans -o meshes/poisson --objects 34
python benchmarks/poisson.py scans -o meshes/poisson-true-normals --objects 34 --normals
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import open3d as o3d
from numpy.typing import NDArray

NEIGHBORS = 16  # for normals, and their orientation by a minimum spanning tree of tangent planes


def main() -> None:
    """Write `SETTING/INDEX.ply`, and the seconds that each took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path)
    parser.add_argument("--settings", nargs="+")
    parser.add_argument("--objects", type=int)
    parser.add_argument("--normals", action="store_true", help="use the true normals")
    parser.add_argument("--depth", type=int, default=7, help="of the octree: 128 cells along each axis")
    parser.add_argument("-o", "--out", type=Path, required=True)
    given = parser.parse_args()
    known = len(list((given.scans / "truth").iterdir()))
    number = min(given.objects or known, known)
    settings = given.settings or sorted(folder.name for folder in given.scans.iterdir() if folder.name != "truth")
    for name in settings:
        (given.out / name).mkdir(parents=True, exist_ok=True)
        times = {}
        for index in (i * known // number for i in range(number)):
            scan, started = np.load(given.scans / name / f"{index}.npz"), time.perf_counter()
            surface = poisson(scan["points"], scan["normals"] if given.normals else None, given.depth)
            times[str(index)] = time.perf_counter() - started
            o3d.io.write_triangle_mesh(str(given.out / name / f"{index}.ply"), surface)
        (given.out / name / "times.json").write_text(json.dumps(times))


def poisson(points: NDArray[np.float32], normals: NDArray[np.float32] | None, depth: int) -> o3d.geometry.TriangleMesh:
    """Reconstruct with the given normals, or with estimated ones, oriented consistently and outwards on the whole."""
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points.astype(np.float64)))
    if normals is not None:
        cloud.normals = o3d.utility.Vector3dVector(normals.astype(np.float64))
    else:
        cloud.estimate_normals(o3d.geometry.KDTreeSearchParamKNN(NEIGHBORS))
        cloud.orient_normals_consistent_tangent_plane(NEIGHBORS)
        outwards = (np.asarray(cloud.normals) * (points - points.mean(0))).sum()
        if outwards < 0:
            cloud.normals = o3d.utility.Vector3dVector(-np.asarray(cloud.normals))
    return o3d.geometry.TriangleMesh.create_from_point_cloud_poisson(cloud, depth=depth, n_threads=1)[0]


if __name__ == "__main__":
    main()
