"""Learning curves of finished runs: accuracy by the number of training shapes, and by processor time.

    python benchmarks/curves.py shapes runs/few-* -o docs/few-shapes.png
    python benchmarks/curves.py time results/modelnet40-* -o docs/time-to-accuracy.png

`shapes` reads test accuracy under arbitrary rotations (SO3). `time` reads the validation accuracy after each epoch; its
time is the number of clouds so far times the processor time of a training step, which is measured here for each number
of points, so that other programs on the machine during a training do not count. Both print their tables.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import vector_neurons as vn
from vector_neurons.training import RunConfig, factory, read_config, results
from vector_neurons.training.log import METRICS

BARS = (80.0, 85.0, 88.0)  # accuracies whose time is printed
TITLES = {
    ("dgcnn", "scalar"): "DGCNN",
    ("dgcnn", "vector"): "VN-DGCNN",
    ("pointnet", "scalar"): "PointNet",
    ("pointnet", "vector"): "VN-PointNet",
    ("framenet", "vector"): "FrameNet",
}
Curves = Mapping[str, Sequence[tuple[float, float]]]


def main() -> None:
    """Print the table of the curves and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axis", choices=("shapes", "time"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--times", type=int, default=3, help="training steps of which the fastest counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.axis == "shapes":
        curves = by_shapes(options.runs)
        print_shapes(curves)
        labels = ("training shapes", "test accuracy under SO(3), %")
    else:
        curves = {title_of(read_config(run)): by_time(run, options.times) for run in options.runs}
        print_times(curves)
        labels = ("processor time, hours of one core", "validation accuracy, %")
    if options.out:
        draw(curves, *labels, logarithmic=options.axis == "shapes").savefig(options.out, dpi=100)


def title_of(config: RunConfig) -> str:
    """The network; of scalar neurons also the rotations that it is trained under, which matter there."""
    network, kind = config.network, config.protocol.train_rotations
    return TITLES[network.model, network.neurons] + (f", trained under {kind}" if network.neurons == "scalar" else "")


def by_shapes(runs: Sequence[Path]) -> Curves:
    """Number of training shapes and test accuracy of runs that differ in it."""
    found = defaultdict(list)
    for run in runs:
        config = read_config(run)
        shapes = config.data.size or len(factory.open_dataset(config.data, "train"))
        found[title_of(config)].append((float(shapes), results.read(run)["SO3"][0]["accuracy"]))
    return {title: sorted(points) for title, points in found.items()}


def by_time(run: Path, times: int) -> list[tuple[float, float]]:
    """Hours of one core and validation accuracy after each epoch."""
    epochs = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    network, batch = vn.load(run).float(), read_config(run).recipe.batch_size
    seconds = {points: step_seconds(network, batch, points, times) for points in {e["points"] for e in epochs}}
    curve, hours = [], 0.0
    for epoch in epochs:
        steps = epoch["time"]["clouds_per_second"] * epoch["time"]["seconds"] / batch
        hours += steps * seconds[epoch["points"]] / 3600
        curve.append((hours, epoch["val"]["accuracy"]))
    return curve


def step_seconds(network: nn.Module, clouds: int, points: int, times: int) -> float:
    """Processor time of a training step, the best of several."""
    batch = torch.randn(clouds, points, 3)
    network.train()
    best = float("inf")
    for _ in range(times + 1):  # the first one warms up, and can only be slower
        start = time.process_time()
        network.zero_grad()
        network(batch).logsumexp(-1).sum().backward()
        best = min(best, time.process_time() - start)
    return best


def print_shapes(curves: Curves) -> None:
    """A row for each network, a column for each number of shapes."""
    sizes = sorted({size for points in curves.values() for size, _ in points})
    print("| training shapes | " + " | ".join(f"{size:,.0f}" for size in sizes) + " |")
    print("|---" * (len(sizes) + 1) + "|")
    for title, points in curves.items():
        known = dict(points)
        print(f"| {title} | " + " | ".join(f"{known[s]:.1f}" if s in known else "not run" for s in sizes) + " |")


def print_times(curves: Curves) -> None:
    """Hours until each accuracy is reached for the first time."""
    print("| hours of one core until | " + " | ".join(f"{bar:.0f} %" for bar in BARS) + " | best | hours in all |")
    print("|---" * (len(BARS) + 3) + "|")
    for title, points in curves.items():
        reached = (next((f"{hours:.2f}" for hours, value in points if value >= bar), "–") for bar in BARS)
        best = max(value for _, value in points)
        print(f"| {title} | {' | '.join(reached)} | {best:.1f} % | {points[-1][0]:.2f} |")


def draw(curves: Curves, across: str, up: str, *, logarithmic: bool) -> Figure:
    """A line for each network."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for title, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o" if logarithmic else None, label=title)
    if logarithmic:
        axes.set_xscale("log")
        sizes = sorted({size for points in curves.values() for size, _ in points})
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], minor=False)
        axes.minorticks_off()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


if __name__ == "__main__":
    vn.kernels.prefer_built()
    main()
