"""The paper's main result in a few minutes: train on upright shapes, test under arbitrary rotations.

    python examples/demo.py

Trains a small DGCNN and a small VN-DGCNN on embedded shapes rotated about the vertical axis (z) and tests both under
z and SO(3). Prints the table, with the relative change of their outputs under rotations, and writes demo/report.html.
Runs that are there already are not trained again.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from vector_neurons import kernels, testing
from vector_neurons.data import Cloud
from vector_neurons.models import store
from vector_neurons.training import batches, compute_metrics, evaluate, factory, read_config
from vector_neurons.training.log import curves, read_metrics
from vector_neurons.viz import Page, confusion, gallery

NETWORKS = {"scalar": "DGCNN", "vector": "VN-DGCNN"}
SHOWN, POSES = torch.tensor([0, 6, 11]), 4
FLAGS = """--data shapes --size 1260 --points 256 --stored-points 512 --early-points 128
--train-rotations z --test-rotations z SO3 --model dgcnn --k 10 --widths 24 48 --embedding 192 --hidden 64
--dropout 0.2 --epochs 12 --batch-size 30 --lr 5e-3 --anisotropic-scale 1.1 --shift 0 --ema 0.99 --threads 1"""


def train(out: Path, flags: list[str]) -> None:
    """Train both networks, each in a process of its own, unless that has been done."""
    jobs = {}
    for neurons in NETWORKS:
        folder = out / neurons
        if (folder / "test.json").exists():
            continue
        settings = ["--resume", str(folder)]
        if not (folder / "config.json").exists():
            settings = ["classification", *FLAGS.split(), "--neurons", neurons, "--out", str(folder), *flags]
        jobs[neurons] = subprocess.Popen([sys.executable, "-m", "vector_neurons", "train", *settings])
        print(f"training {NETWORKS[neurons]}: vn train {' '.join(settings)}", flush=True)
    codes = [job.wait() for job in jobs.values()]
    if any(codes):
        sys.exit(f"a training ended with exit code {next(code for code in codes if code)}")


def change(folder: Path) -> float:
    """The largest change of the outputs for some test clouds under rotations, relative to their size."""
    config = read_config(folder)
    data = factory.open_dataset(config.data, "test")
    clouds = batches.evaluation_batch(data, SHOWN % len(data), config.data, "I", config.runtime.seed, 0)
    return testing.equivariance_error(store.load(folder / "best"), clouds.points, takes="points", gives="scalars")


def examples(out: Path) -> tuple[Cloud, list[str]]:
    """Some test clouds, each in several poses, and the answers of the networks."""
    config = read_config(out / "vector")
    data = factory.open_dataset(config.data, "test")
    all_points = replace(config.data, points=config.data.stored_points)
    models = {neurons: store.load(out / neurons / "best") for neurons in NETWORKS}
    clouds, titles = [], []
    for index in SHOWN % len(data):
        for trial in range(POSES):
            cloud = batches.evaluation_batch(data, index.view(1), config.data, "SO3", config.runtime.seed, trial)
            said = {neurons: data.classes[model(cloud.points).argmax().item()] for neurons, model in models.items()}
            clouds.append(batches.evaluation_batch(data, index.view(1), all_points, "SO3", config.runtime.seed, trial))
            titles.append(f"{data.classes[data.labels[index]]}\nDGCNN: {said['scalar']}\nVN-DGCNN: {said['vector']}")
    return Cloud.stack([cloud.map(lambda x: x[0]) for cloud in clouds]), titles


def main() -> None:
    """Train, test, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    options, flags = parser.parse_known_args()
    started = time.monotonic()
    kernels.available()  # built once, before two processes would both do it
    train(options.out, flags)
    built = Page("Train upright, test in any pose")
    tested = {neurons: evaluate(options.out / neurons, ["z", "SO3"]) for neurons in NETWORKS}
    numbers = {
        neurons: [compute_metrics(task, counts[kind][0])["accuracy"] for kind in ("z", "SO3")]
        for neurons, (task, counts) in tested.items()
    }
    rows = [
        [NETWORKS[neurons], *(f"{x:.1f}" for x in row), f"{change(options.out / neurons):.1e}"]
        for neurons, row in numbers.items()
    ]
    head = ["accuracy, %", "z/z", "z/SO(3)", "change of outputs"]
    clouds = int(tested["vector"][1]["z"][0]["clouds"])
    print("\n" + "\n".join("  ".join(word.ljust(12) for word in row) for row in [head, *rows]))
    built.text(
        "Two small networks with the same layers, one of scalar and one of vector neurons, were trained on procedural "
        f"shapes rotated about the vertical axis (z), and tested on {clouds} others, under z and under SO(3). "
        "The last column is the relative change of a network's outputs when clouds are rotated."
    )
    built.table(head, rows)
    for neurons, name in NETWORKS.items():
        built.heading(f"{name}: training")
        built.figure(curves(read_metrics(options.out / neurons), "accuracy"), f"{name}: loss and accuracy by epoch")
    built.heading("What is taken for what, under SO(3)")
    matrices = [tested[neurons][1]["SO3"][0]["confusion"] for neurons in NETWORKS]
    classes = tested["vector"][0].outputs
    built.figure(confusion(matrices, list(NETWORKS.values()), classes), "confusion matrices of both networks")
    built.heading("One object, several poses")
    shown, titles = examples(options.out)
    built.figure(gallery(shown.points, None, titles, normals=None, columns=POSES), "clouds, and their names")
    file = options.out / "report.html"
    file.write_text(str(built))
    print(f"\n{file}, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
