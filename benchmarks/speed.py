"""VN-DGCNN as published against this library, interleaved in one run, on one thread: ratios, not times, carry over.

    python benchmarks/speed.py [--points 1024] [--clouds 2] [--times 5]       writes docs/speed.md

The published formulation is the tests' transcription of it: full edge tensors in the order [B, C, 3, N, K].
"""

import argparse
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import published
import torch

from vector_neurons.models import reference

ROOT = Path(__file__).parents[1]


def seconds(run: Callable[[], object]) -> float:
    """Time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1024)
    parser.add_argument("--clouds", type=int, default=2)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    authors = published.load()
    state = authors.random_state("vn_dgcnn_cls", generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    model = reference.load(state)
    points = torch.randn(options.clouds, options.points, 3)
    trained = {name: tensor.clone().requires_grad_(tensor.is_floating_point()) for name, tensor in state.items()}

    def evaluate(run: Callable[[], torch.Tensor]) -> None:
        with torch.inference_mode():
            run()

    def step(run: Callable[[], torch.Tensor]) -> None:
        run().square().sum().backward()

    bodies = {
        "evaluation": (
            lambda: evaluate(lambda: authors.vn_dgcnn_cls(state, points.mT)),
            lambda: evaluate(lambda: model.eval()(points)),
        ),
        "training step": (
            lambda: step(lambda: authors.vn_dgcnn_cls(trained, points.mT, training=True)),
            lambda: step(lambda: model.train()(points)),
        ),
    }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    lines = [
        "# Speed",
        "",
        f"`python benchmarks/speed.py --points {options.points} --clouds {options.clouds} --times {options.times}`,",
        f"one thread, torch {torch.__version__}, commit {commit.strip()}. VN-DGCNN, classification, k = 20; medians.",
        "",
        "| | published formulation | this library | ratio |",
        "|---|---|---|---|",
    ]
    for name, (theirs, ours) in bodies.items():
        theirs(), ours()
        pairs = [(seconds(theirs), seconds(ours)) for _ in range(options.times)]
        a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(x / y for x, y in pairs)
        lines.append(f"| {name} | {1e3 * a:.0f} ms | {1e3 * b:.0f} ms | {ratio:.1f} × |")
    page = "\n".join(lines) + "\n"
    print(page)
    (ROOT / "docs" / "speed.md").write_text(page)


if __name__ == "__main__":
    main()
