"""Clouds a second that one core cuts from a pack, augments and rotates, as a training loop would.

    python benchmarks/data_pipeline.py [--data-root ROOT] [--set modelnet40] [--batch 32] [--points 1024] [--seconds 5]

The pack must be there: `vn data modelnet40 --from PATH`. Rows are taken in random order, so the figure includes reading
them from the memory-mapped file (from the system's cache once it has been read).
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

import torch

from vector_neurons.data import Cloud, DataError, Dataset, ModelNet40, Occupancy, ShapeNetPart
from vector_neurons.data.augment import Augmentation, Chain, Jitter, Occlude, Outliers, Scale, Shift, Subset
from vector_neurons.geometry import rotations


def batches(data: Dataset, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Indices of batches in random order, epoch after epoch."""
    for _ in itertools.count():
        yield from torch.randperm(len(data), generator=generator).split(size)


def rate(data: Dataset, step: Augmentation, size: int, seconds: float) -> float:
    """Clouds a second."""
    generator = torch.Generator().manual_seed(0)

    def deliver(indices: torch.Tensor) -> Cloud:
        return step(data.batch(indices), generator).rotate(rotations.draw("SO3", len(indices), generator=generator))

    source = batches(data, size, generator)
    for _ in range(3):
        deliver(next(source))
    start, clouds = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        clouds += len(deliver(next(source)).points)
    return clouds / (time.perf_counter() - start)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root")
    parser.add_argument("--set", choices=["modelnet40", "shapenet-part", "occupancy"], default="modelnet40")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    open_set: Callable[..., Dataset] = {
        "modelnet40": ModelNet40,
        "shapenet-part": ShapeNetPart,
        "occupancy": Occupancy,
    }[options.set]
    try:
        data = open_set("train", options.data_root, points=options.points)
    except DataError as error:
        parser.error(str(error))
    usual = Chain(Scale(), Shift(), Jitter())
    chains = {
        "rotation": Chain(),
        "rotation, scale, shift, jitter": usual,
        "the same, half of the points, outliers": Chain(usual, Subset(options.points // 2), Outliers()),
        "rotation, scale, shift, jitter, occlusion": Chain(usual, Occlude()),
    }
    print(f"{options.set}, {len(data):,} clouds of {options.points:,} points, batches of {options.batch}, one thread")
    print("| pipeline | clouds/s |\n|---|---|")
    for name, step in chains.items():
        print(f"| {name} | {rate(data, step, options.batch, options.seconds):,.0f} |")


if __name__ == "__main__":
    main()
