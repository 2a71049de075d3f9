"""The published formulation against this library, interleaved in one run on one thread: ratios, not times, carry over.

    make bench                                  everything: docs/speed.{md,json,png}, about half an hour
    python benchmarks/speed.py --only dgcnn     some rows, printed
    python benchmarks/speed.py --quick          small sizes, a smoke test

Peak memory is measured in fresh processes, above what they held before the step.
"""

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import published
import torch

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.models import DGCNN, reference

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    network: str
    points: int
    k: int = 20
    clouds: int = 2
    times: int = 5

    def __str__(self) -> str:
        kind = "segmentation" if "partseg" in self.network else "classification"
        name = "VN-DGCNN" if "dgcnn" in self.network else "VN-PointNet"
        return f"{name}, {kind}, N = {self.points:,}, k = {self.k}"


CASES = [
    Case("vn_dgcnn_cls", 1024),
    Case("vn_dgcnn_cls", 2048, times=3),
    Case("vn_dgcnn_cls", 4096, times=3),
    Case("vn_dgcnn_cls", 8192, times=1),
    Case("vn_dgcnn_partseg", 2048, k=40, times=5),
    Case("vn_pointnet_cls", 1024, times=15),
]
BACKENDS = ("published", "eager", "native")


def steps(case: Case, backend: str) -> dict[str, Callable[[], object]]:
    """An evaluation and a training step on one backend."""
    networks = published.load()
    state = networks.random_state(case.network, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    points = torch.randn(case.clouds, case.points, 3, generator=torch.Generator().manual_seed(1))
    category = torch.arange(case.clouds) if "partseg" in case.network else None
    if backend == "published":
        trained = {name: t.clone().requires_grad_(t.is_floating_point()) for name, t in state.items()}
        more = [] if category is None else [torch.nn.functional.one_hot(category, 16).float()]

        def run(training: bool) -> torch.Tensor:
            return getattr(networks, case.network)(trained, points.mT, *more, k=case.k, training=training)
    else:
        model = reference.load(state, k=case.k)
        more = [] if category is None else [category]

        def run(training: bool) -> torch.Tensor:
            with kernels.using(backend):
                return model.train(training)(points, *more)

    def evaluate() -> None:
        with torch.inference_mode():
            run(False)

    return {"eval": evaluate, "train": lambda: run(True).square().sum().backward()}


def seconds(run: Callable[[], object]) -> float:
    """Time of one run; as in `timeit`, Python's collector of garbage, which goes through everything, waits."""
    gc.disable()
    start = time.perf_counter()
    run()
    took = time.perf_counter() - start
    gc.enable()
    return took


def interleaved(runs: dict[str, Callable[[], object]], times: int) -> dict[str, list[float]]:
    """Times of each, in turn, so that a busy moment meets them all; a warm-up first where it costs little."""
    if times > 1:
        for run in runs.values():
            run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(times):
        for name, run in runs.items():
            found[name].append(seconds(run))
    return found


def in_fresh_process(call: str, *arguments: str) -> str:
    """What a call of this module's functions gives in a new process, as text; `sys.argv` has the arguments."""
    script = f"import json, speed, sys; print({call})"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.splitlines()[-1]


def peak(case: Case, backend: str) -> int:
    """Bytes that one training step needs, from a fresh process."""
    call = "speed.peak_here(speed.Case(**json.loads(sys.argv[1])), sys.argv[2])"
    return int(in_fresh_process(call, json.dumps(case.__dict__), backend))


def peak_here(case: Case, backend: str) -> int:
    """Run a small step, so that everything is loaded, then one step, and tell by how much the peak grew."""
    torch.set_num_threads(1)
    steps(Case(case.network, 64, case.k), backend)["train"]()
    step = steps(case, backend)["train"]
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest mark so far
    held = status("VmRSS")
    step()
    return status("VmHWM") - held


def status(name: str) -> int:
    """A figure of this process, in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
    return 1024 * int(line.split()[1])


def measure(case: Case, memory: bool) -> dict[str, object]:
    """Ratios and times of one row."""
    torch.set_num_threads(1)
    runs = {backend: steps(case, backend) for backend in BACKENDS}
    row: dict[str, object] = {"case": str(case), **case.__dict__}
    for mode in ("eval", "train"):
        times = interleaved({backend: runs[backend][mode] for backend in BACKENDS}, case.times)
        row |= {f"{mode}_{backend}_ms": round(1e3 * statistics.median(t), 1) for backend, t in times.items()}
        for backend in BACKENDS[1:]:
            ratios = [a / b for a, b in zip(times["published"], times[backend], strict=True)]
            row[f"{mode}_{backend}_ratio"] = round(statistics.median(ratios), 1)
    if memory:
        row |= {f"memory_{backend}_mb": round(peak(case, backend) / 1e6) for backend in BACKENDS}
        row |= {f"memory_{b}_ratio": round(row["memory_published_mb"] / row[f"memory_{b}_mb"], 1) for b in BACKENDS[1:]}
    return row


def threads() -> float:
    """How much faster a training step of four clouds is on two threads than on one."""
    step = steps(Case("vn_dgcnn_cls", 1024, clouds=4), "native")["train"]

    def on(count: int) -> None:
        torch.set_num_threads(count)
        step()

    times = interleaved({"one": lambda: on(1), "two": lambda: on(2)}, 7)
    torch.set_num_threads(1)
    return round(statistics.median(a / b for a, b in zip(times["one"], times["two"], strict=True)), 2)


def graphs(used: bool) -> dict[str, float]:
    """Nearest neighbors: against the full matrix in 63 dimensions, and of very many points.

    The matrix is mostly memory, three times 64 MB: new, or, where a process has `used` much before, at hand.
    """
    torch.set_num_threads(1)
    if used:
        steps(CASES[0], "published")["train"]()
    x = torch.randn(1, 4096, 63)

    def matrix() -> None:
        squares = x.square().sum(-1)
        (squares.unsqueeze(1) - 2 * x @ x.mT + squares.unsqueeze(2)).topk(20, largest=False)

    with kernels.using("native"):
        times = interleaved({"matrix": matrix, "ours": lambda: vn.knn(x, 20)}, 15)
        many = torch.randn(1, 262_144, 3)
        ratio = statistics.median(a / b for a, b in zip(times["matrix"], times["ours"], strict=True))
        return {"ratio_63": round(ratio, 1), "seconds_262144": round(seconds(lambda: vn.knn(many, 20)), 1)}


def scaling(most: int) -> list[tuple[int, float]]:
    """Seconds of one evaluation of VN-DGCNN on a coordinate graph, by number of points."""
    network, found = DGCNN(graph="coordinates").eval(), []
    with torch.inference_mode(), kernels.using("native"):
        points = 1024
        while points <= most:
            x = torch.randn(1, points, 3)
            found.append((points, round(seconds(lambda x=x: network(x)), 2)))
            points *= 4
    return found


def table(rows: list[dict[str, object]]) -> list[str]:
    """The rows as Markdown."""
    lines = [
        "| | eval | train step | peak memory, train | eval, no compiler | train, no compiler |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        times = [
            f"{r[f'{m}_native_ratio']} × ({r[f'{m}_published_ms']:.0f} → {r[f'{m}_native_ms']:.0f} ms)"
            for m in ("eval", "train")
        ]
        memory = "not measured"
        if "memory_native_mb" in r:
            memory = f"{r['memory_native_ratio']} × less ({r['memory_published_mb']} → {r['memory_native_mb']} MB)"
        eager = [f"{r[f'{m}_eager_ratio']} ×" for m in ("eval", "train")]
        lines.append(f"| {' | '.join([str(r['case']), *times, memory, *eager])} |")
    return lines


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Milliseconds by number of points, published and ours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = [r for r in rows if r["network"] == "vn_dgcnn_cls"]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, mode, title in zip(axes, ("eval", "train"), ("evaluation", "training step"), strict=True):
        for backend in BACKENDS:
            axis.plot([r["points"] for r in chosen], [r[f"{mode}_{backend}_ms"] for r in chosen], "o-", label=backend)
        axis.set(xscale="log", yscale="log", xlabel="points", ylabel="ms, two clouds, one thread", title=title)
        axis.set_xticks([r["points"] for r in chosen], [f"{r['points']:,}" for r in chosen], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(title="VN-DGCNN")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose network contains this text; nothing is written")
    parser.add_argument("--quick", action="store_true", help="128 points, once, no memory; nothing is written")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.network]
    if options.quick:
        cases = [Case(case.network, 128, times=1) for case in cases]
    rows = []
    for case in cases:
        # In a process of its own: memory that larger rows leave behind would make smaller ones faster.
        call = "json.dumps(speed.measure(speed.Case(**json.loads(sys.argv[1])), bool(sys.argv[2])))"
        rows.append(json.loads(in_fresh_process(call, json.dumps(case.__dict__), "" if options.quick else "memory")))
        print(json.dumps(rows[-1]), flush=True)
    print("\n".join(table(rows)))
    if options.only or options.quick:
        return
    new, used = (json.loads(in_fresh_process(f"json.dumps(speed.graphs({used}))")) for used in (False, True))
    more = {"two_threads": threads(), "graphs": new, "graphs_used": used, "scaling": scaling(262_144)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in lines if "model name" in line), "")
    about = {"commit": commit.strip(), "cpu": cpu or platform.machine(), "torch": torch.__version__}
    (ROOT / "docs" / "speed.json").write_text(json.dumps(about | {"rows": rows} | more, indent=1) + "\n")
    plot(rows, ROOT / "docs" / "speed.png")
    write(about, rows, more)


def write(about: dict[str, str], rows: list[dict[str, object]], more: dict[str, object]) -> None:
    """Exchange the measured part of the page; what people wrote around it stays."""
    path = ROOT / "docs" / "speed.md"
    start, end = "<!-- measured -->\n", "<!-- end -->"
    before, _, rest = path.read_text().partition(start)
    _, _, after = rest.partition(end)
    sizes = ", ".join(f"{points:,}: {took} s" for points, took in more["scaling"])
    lines = [
        f"`make bench`: {about['cpu']}, torch {about['torch']}, commit {about['commit']}; two clouds, medians.",
        "",
        *table(rows),
        "",
        "![milliseconds by number of points](speed.png)",
        "",
        f"- Two threads against one, training step of four clouds: {more['two_threads']} ×.",
        f"- Nearest neighbors of 4,096 points in 63 dimensions: {more['graphs']['ratio_63']} × faster than the "
        f"full matrix and `topk` in a new process, {more['graphs_used']['ratio_63']} × in one that has used much "
        f"memory before. Of 262,144 points in 3-D, k = 20: "
        f"{more['graphs']['seconds_262144']} s.",
        f"- One evaluation of VN-DGCNN on a coordinate graph, one thread, by points: {sizes}.",
        "",
    ]
    wrapped = [fill(line, 100, subsequent_indent="  ") if line.startswith("- ") else line for line in lines]
    path.write_text(before + start + "\n".join(wrapped) + end + after)


if __name__ == "__main__":
    main()
