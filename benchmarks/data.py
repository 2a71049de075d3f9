"""How fast the embedded shapes are made, on one thread.

python benchmarks/data.py [--clouds 1000] [--points 1024]
"""

import argparse
import time

import torch

from vector_neurons.data import Shapes


def main() -> None:
    """Measure with and without occupancy, then family by family."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clouds", type=int, default=1000)
    parser.add_argument("--points", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for queries in (0, 512, 2048):
        report(Shapes(size=options.clouds, points=options.points, queries=queries), f"{queries} queries")
    for name in Shapes().classes:
        report(Shapes(size=options.clouds // 20, points=options.points, families=[name]), name)


def report(data: Shapes, title: str) -> None:
    """Processor time of the whole set as one batch: other work on the machine disturbs it less than the clock."""
    data.batch(torch.arange(min(8, len(data))))  # warm up
    start = time.process_time()
    data.batch(torch.arange(len(data)))
    each = (time.process_time() - start) / len(data)
    print(f"{title:14} {1 / each:6.0f} clouds/s   {1000 * each:.2f} ms a cloud")


if __name__ == "__main__":
    main()
