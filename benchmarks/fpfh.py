"""Align the pairs of clouds of `benchmarks/align.py --pairs` by FPFH features, RANSAC and ICP of Open3D, to compare.

pip install open3d    # into an environment of its own: neither this package nor torch is needed here
python benchmarks/fpfh.py pairs.npz --asymmetric asymmetric.json
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import open3d as o3d
from numpy.typing import NDArray

VOXEL = 0.05  # of radii of a shape: about the spacing of 512 points
registration = o3d.pipelines.registration


def main() -> None:
    """Align and print median errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--asymmetric", type=Path, required=True)
    options = parser.parse_args()
    data, asymmetric = np.load(options.pairs), json.loads(options.asymmetric.read_text())
    o3d.utility.random.seed(0)
    started, errors = time.process_time(), []
    for source, target, truth in zip(data["source"], data["target"], data["rotation"], strict=True):
        cosine = (np.trace(truth.T @ fpfh(source, target)) - 1) / 2
        errors.append(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    found, names = np.array(errors), data["classes"][data["labels"]]
    seconds = (time.process_time() - started) / len(found)
    for name, chosen in (("asymmetric", np.isin(names, asymmetric)), ("all", np.full(len(found), True))):
        right = 100 * (found[chosen] <= 5).mean()
        print(f"{name}: median {np.median(found[chosen]):.1f}°, {right:.0f} % within 5°, {chosen.sum()} pairs")
    print(f"{seconds:.2f} s of CPU each")


def fpfh(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation by Open3D's tutorial of global registration, with ICP to planes."""
    clouds, features = [], []
    for points in (source, target):
        cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points))
        cloud.estimate_normals(o3d.geometry.KDTreeSearchParamHybrid(radius=4 * VOXEL, max_nn=30))
        near = o3d.geometry.KDTreeSearchParamHybrid(radius=8 * VOXEL, max_nn=100)
        clouds.append(cloud)
        features.append(registration.compute_fpfh_feature(cloud, near))
    distance = 1.5 * VOXEL
    found = registration.registration_ransac_based_on_feature_matching(
        *clouds,
        *features,
        True,
        distance,
        registration.TransformationEstimationPointToPoint(False),
        3,
        [
            registration.CorrespondenceCheckerBasedOnEdgeLength(0.9),
            registration.CorrespondenceCheckerBasedOnDistance(distance),
        ],
        registration.RANSACConvergenceCriteria(100_000, 0.999),
    )
    planes = registration.TransformationEstimationPointToPlane()
    refined = registration.registration_icp(*clouds, distance, found.transformation, planes)
    return np.asarray(refined.transformation)[:3, :3]


if __name__ == "__main__":
    main()
