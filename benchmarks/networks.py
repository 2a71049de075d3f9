"""Time per cloud of the networks, interleaved in one run: how many times as fast as VN-DGCNN each one is.

    python benchmarks/networks.py                    512 points, 32 clouds a batch, one thread
    python benchmarks/networks.py --points 1024 --times 3
    python benchmarks/networks.py --quick            small sizes, a smoke test

VN-DGCNN is that of the recipe `fast`: k = 16 and a linear frame. Times are of the process, best of `--times`: other
programs on the machine disturb the ratios less.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from vector_neurons.models import DGCNN, FrameNet, PointNet

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "VN-DGCNN": lambda: DGCNN(k=16, layers={"frame": "linear"}),
    "FrameNet": FrameNet,
    "VN-PointNet": lambda: PointNet(k=16, layers={"frame": "linear"}),
    "DGCNN": lambda: DGCNN(neurons="scalar", k=16),
    "PointNet": lambda: PointNet(neurons="scalar"),
}


def step(network: nn.Module, points: torch.Tensor, *, training: bool) -> float:
    """Seconds of one step."""
    labels = torch.arange(len(points)) % 40
    network.train(training)
    start = time.process_time()
    if training:
        network.zero_grad()
        nn.functional.cross_entropy(network(points), labels).backward()
    else:
        with torch.inference_mode():
            network(points)
    return time.process_time() - start


def measure(points: int, clouds: int, times: int) -> dict[str, dict[bool, float]]:
    """Best milliseconds per cloud of each network, in training and in evaluation."""
    torch.manual_seed(0)
    batch = torch.randn(clouds, points, 3)
    networks = {name: make() for name, make in NETWORKS.items()}
    best = {name: {True: float("inf"), False: float("inf")} for name in networks}
    for _ in range(times + 1):  # the first round warms up, and can only be slower
        for name, network in networks.items():
            for training in (True, False):
                seconds = step(network, batch, training=training)
                best[name][training] = min(best[name][training], seconds * 1e3 / clouds)
    return best


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--clouds", type=int, default=32)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (64, 2, 1) if arguments.quick else (arguments.points, arguments.clouds, arguments.times)
    found = measure(*sizes)
    print(f"N = {sizes[0]}, {sizes[1]} clouds a batch, one thread")
    print("| network | training, ms a cloud | | evaluation, ms a cloud | |\n|---|---|---|---|---|")
    for name, ms in found.items():
        cells = (f"{ms[mode]:.1f} | {found['VN-DGCNN'][mode] / ms[mode]:.1f}×" for mode in (True, False))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
