"""How far from exact invariance rounding leaves the README's network, over seeds, precisions and kinds of clouds.

python benchmarks/precision.py            writes the tables of docs/precision.md
"""

import platform
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

import vector_neurons as vn
from vector_neurons import kernels

ROOT = Path(__file__).parents[1]
SEEDS = range(12)


def tiny(frame: str) -> torch.nn.Module:
    """The README's network, fresh, with its linear frame or the paper's."""
    block = re.search(r"```python\n(.*?)\n\n\npoints", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    scope: dict = {}
    exec(block.group(1).replace('"linear"', repr(frame)), scope)
    return scope["Tiny"](40)


def clouds(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Two clouds of each kind."""
    axis = torch.linspace(-1, 1, 10, dtype=dtype)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(1, -1, 3).repeat(2, 1, 1)
    generic = torch.randn(2, 1024, 3, dtype=dtype)
    duplicated = generic.clone()
    duplicated[:, :410] = duplicated[:, 500:910]
    return {"generic, 1,024 points": generic, "grid, 1,000 points": grid, "40 % duplicated": duplicated}


def stored(network: torch.nn.Module) -> torch.nn.Module:
    """The network with exact layers: in float64, but what one hands to the next is rounded to float32."""
    network.double().eval().register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    for layer in (network.edge, *network.body, network.read, network.head):
        layer.register_forward_hook(lambda _, inputs, output: output.float().double())
    return network


def of_tiny(
    change: Callable[[torch.nn.Module], torch.nn.Module], dtype: torch.dtype, backend: str, frame: str
) -> dict[str, list[float]]:
    """Errors of the changed network on each kind of clouds, one for each seed."""
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        network = change(tiny(frame).to(dtype))
        for name, points in clouds(dtype).items():
            if change is stored and "grid" in name:  # whose ties in float32 are none in float64
                continue
            with kernels.using(backend):
                error = vn.testing.equivariance_error(network, points, "points", "scalars")
            found.setdefault(name, []).append(error)
    return found


def settled(network: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The network after its norms have seen data, as after training; weights as initialized."""
    network.to(dtype).train()
    with torch.no_grad():
        for _ in range(20):
            network(torch.randn(4, 128, 3, dtype=dtype))
    return network.eval()


def networks(dtype: torch.dtype) -> dict[str, list[float]]:
    """Errors of the paper's classifiers, at 1,024 points, one for each seed."""
    errors: dict[str, list[float]] = {}
    for seed in SEEDS:
        torch.manual_seed(seed)
        for build in (vn.models.DGCNN, vn.models.PointNet, vn.models.VNTransformer):
            points = torch.randn(1, 1024, 3, dtype=dtype)
            error = vn.testing.equivariance_error(settled(build(), dtype), points, "points", "scalars", trials=1)
            errors.setdefault(f"`{build.__name__}`", []).append(error)
    return errors


def main() -> None:
    """Measure, and replace the tables of the page; the text around them stays."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    lines = [
        f"torch {torch.__version__}, {platform.machine()}, commit {commit.strip()}.",
        "",
        "| cloud | mode | precision | median | worst |",
        "|---|---|---|---|---|",
    ]
    for mode, dtype, change, backend, frame in (
        ("evaluation", torch.float64, torch.nn.Module.eval, "auto", "linear"),
        ("training", torch.float64, torch.nn.Module.train, "auto", "linear"),
        ("evaluation", torch.float32, torch.nn.Module.eval, "auto", "linear"),
        ("training", torch.float32, torch.nn.Module.train, "auto", "linear"),
        ("evaluation, eager backend", torch.float32, torch.nn.Module.eval, "eager", "linear"),
        ("evaluation, exact layers", torch.float32, stored, "auto", "linear"),
        ("evaluation, frame by an MLP", torch.float32, torch.nn.Module.eval, "auto", "mlp"),
        ("training, frame by an MLP", torch.float32, torch.nn.Module.train, "auto", "mlp"),
    ):
        for name, values in of_tiny(change, dtype, backend, frame).items():
            row = f"| {name} | {mode} | {str(dtype).removeprefix('torch.')} "
            lines.append(row + f"| {statistics.median(values):.1e} | {max(values):.1e} |")
    lines += ["", "| network | precision | median | worst |", "|---|---|---|---|"]
    for dtype in (torch.float64, torch.float32):
        for name, values in networks(dtype).items():
            row = f"| {name} | {str(dtype).removeprefix('torch.')} "
            lines.append(row + f"| {statistics.median(values):.1e} | {max(values):.1e} |")
    print("\n".join(lines))
    path, start, end = ROOT / "docs" / "precision.md", "<!-- measured -->\n", "<!-- end -->"
    before, _, rest = path.read_text().partition(start)
    path.write_text(before + start + "\n".join([*lines, end]) + rest.partition(end)[2])


if __name__ == "__main__":
    main()
