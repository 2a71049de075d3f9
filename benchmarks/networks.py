"""Time per cloud of the networks, interleaved in one run: how many times as fast as VN-DGCNN each one is.

    python benchmarks/networks.py                    512 points, 32 clouds a batch, one thread
    python benchmarks/networks.py --points 1024 --k 20 --times 3
    python benchmarks/networks.py --quick            small sizes, a smoke test

VN-DGCNN is that of the recipe `fast`: k = 16 and a linear frame. The scalar networks run on the eager backend as well:
what their kernels save. Times are of the process, best of `--times`: other programs on the machine disturb the ratios
less.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from vector_neurons import kernels
from vector_neurons.models import DGCNN, FrameNet, PointNet

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "VN-DGCNN": lambda k: DGCNN(k=k, layers={"frame": "linear"}),
    "FrameNet": lambda k: FrameNet(),
    "VN-PointNet": lambda k: PointNet(k=k, layers={"frame": "linear"}),
    "DGCNN": lambda k: DGCNN(neurons="scalar", k=k),
    "DGCNN, eager": lambda k: DGCNN(neurons="scalar", k=k),
    "PointNet": lambda k: PointNet(neurons="scalar"),
    "PointNet, eager": lambda k: PointNet(neurons="scalar"),
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


def measure(points: int, clouds: int, times: int, k: int) -> dict[str, dict[bool, float]]:
    """Best milliseconds per cloud of each network, in training and in evaluation."""
    torch.manual_seed(0)
    batch = torch.randn(clouds, points, 3)
    networks = {name: make(k) for name, make in NETWORKS.items()}
    best = {name: {True: float("inf"), False: float("inf")} for name in networks}
    for _ in range(times + 1):  # the first round warms up, and can only be slower
        for name, network in networks.items():
            for training in (True, False):
                with kernels.using("eager" if name.endswith("eager") else "auto"):
                    seconds = step(network, batch, training=training)
                best[name][training] = min(best[name][training], seconds * 1e3 / clouds)
    return best


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--clouds", type=int, default=32)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--k", type=int, default=16)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = (64, 2, 1) if arguments.quick else (arguments.points, arguments.clouds, arguments.times)
    found = measure(*sizes, arguments.k)
    print(f"N = {sizes[0]}, k = {arguments.k}, {sizes[1]} clouds a batch, one thread")
    print("| network | training, ms a cloud | | evaluation, ms a cloud | |\n|---|---|---|---|---|")
    for name, ms in found.items():
        cells = (f"{ms[mode]:.1f} | {found['VN-DGCNN'][mode] / ms[mode]:.1f}×" for mode in (True, False))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
