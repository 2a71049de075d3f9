"""`vn reconstruct` of test objects that a camera has seen from one side, in any pose and with noise.

python benchmarks/one_sided.py --data-root DATA --objects 20
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

import torch

from vector_neurons.data import Occupancy
from vector_neurons.data.augment import visible
from vector_neurons.geometry import rotations
from vector_neurons.geometry.inside import inside
from vector_neurons.geometry.sampling import noise
from vector_neurons.mesh import Mesh, iou, read, watertight, write
from vector_neurons.training import mesh_metrics

COMMAND = [sys.executable, "-m", "vector_neurons", "reconstruct"]
DISTANCE = 3.0  # of the camera, for objects of radius 1
NOISE = 0.01
NO_FACES = torch.zeros(0, 3, dtype=torch.long)


def main() -> None:
    """Write a scan, rebuild it by the command line, and compare the mesh with what is known of the inside."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-root")
    options.add_argument("--objects", type=int, default=20)
    options.add_argument("--model", type=Path, help="a run; by default the model of the package")
    options.add_argument("--whole", action="store_true", help="all of the surface instead of one side")
    given = options.parse_args()
    data = Occupancy("test", given.data_root, points=None, queries=None)
    given_model = [] if given.model is None else ["--model", str(given.model)]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        scan, out = Path(folder) / "scan.ply", Path(folder) / "out.ply"
        for index in mesh_metrics.evenly_spaced(data, given.objects):
            generator = torch.Generator().manual_seed(index)
            cloud = data[index].rotate(rotations.draw("SO3", 1, generator=generator)[0])
            points = cloud.points
            if not given.whole:
                points = points[visible(points, torch.tensor([[DISTANCE, 0.0, 0.0]]))]
            write(Mesh(noise(points, NOISE, generator=generator), NO_FACES), scan)
            started = time.perf_counter()
            code = subprocess.run([*COMMAND, str(scan), "-o", str(out), *given_model], check=False).returncode
            seconds = time.perf_counter() - started
            if code not in (0, 1):
                sys.exit(code)
            closed, same = False, 0.0  # a mesh with holes counts like none
            if code == 0:
                made = read(out)
                closed = watertight(made)
                assert cloud.queries is not None
                assert cloud.occupied is not None
                same = iou(inside(cloud.queries.double(), made.vertices, made.faces), cloud.occupied).item()
            print(f"object {index}: {len(points):,} points, IoU {100 * same:.1f} %, {seconds:.1f} s", flush=True)
            found.append((100 * same, seconds, closed))
    shared, times, closed_ones = zip(*found, strict=True)
    print(
        f"{sum(closed_ones)} of {len(found)} watertight, IoU {mean(shared):.1f} % (least {min(shared):.1f} %), "
        f"{mean(times):.1f} s each, {max(times):.1f} s at most"
    )


if __name__ == "__main__":
    main()
