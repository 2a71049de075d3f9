"""The paper's main result in a few minutes: train on upright shapes, test under arbitrary rotations.

    python examples/demo.py

Trains three small networks, DGCNN, VN-DGCNN and FrameNet, on embedded shapes rotated about the vertical axis (z) and
tests them under z and SO(3). Prints the table, with the relative change of their outputs under rotations, and writes
demo/report.html, which ends in a page where test shapes are turned by hand (demo/view.html). Runs that are there
already are not trained again.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vector_neurons import kernels, testing
from vector_neurons.data import Dataset
from vector_neurons.inference import answer, pose_grid
from vector_neurons.models import store
from vector_neurons.training import RunConfig, batches, factory, read_config
from vector_neurons.training.log import curves, read_metrics
from vector_neurons.typing import Rotations
from vector_neurons.viz import Exhibit, Page, Picture, confusion, gallery, view_page

COMMON = """--data shapes --size 1260 --points 256 --stored-points 512 --train-rotations z --test-rotations z SO3
--epochs 12 --hidden 64 --dropout 0.2 --anisotropic-scale 1.1 --shift 0 --ema 0.99 --threads 1"""
DGCNN = "--model dgcnn --k 10 --widths 24 48 --embedding 192 --early-points 128 --batch-size 30 --lr 5e-3"
FRAMENET = "--model framenet --embedding 48 --batch-size 20 --lr 2e-3 --warmup 0.1"
POSES: dict[Rotations, str] = {"z": "upright", "SO3": "in a random pose"}
# Shown is the first test shape of each of three classes that every reader knows: networks have no part in the choice.
SHOWN = ("chair", "airplane", "mug")
TRIALS = 4  # poses of each shown shape in the gallery
BATCH = 42
TURNED = 200  # poses of the page where shapes are turned by hand


@dataclass(frozen=True)
class Contender:
    """A network of the demo: its name, how to train it, what it is."""

    name: str
    flags: str
    about: str


NETWORKS = {
    "scalar": Contender(
        "DGCNN",
        f"{DGCNN} --neurons scalar",
        "The classical network for point clouds, of ordinary (scalar) neurons. It gets the coordinates as they are.",
    ),
    "vector": Contender(
        "VN-DGCNN",
        f"{DGCNN} --neurons vector",
        "The same layers of vector neurons, as in the paper: its outputs do not depend on the pose, by construction.",
    ),
    "framenet": Contender(
        "FrameNet",
        f"{FRAMENET} --neurons vector",
        "This library's own network, also independent of the pose by construction: a hierarchy with scalars beside "
        "vectors, in which every center expresses its neighbors in a learned local frame.",
    ),
}


@dataclass(frozen=True)
class Tested:
    """Probabilities that one network gives to the classes, for all test shapes and for both kinds of poses."""

    name: str
    probabilities: dict[Rotations, Tensor]
    labels: Tensor

    def answers(self, kind: Rotations) -> Tensor:
        """The class with the largest probability, for each shape."""
        return self.probabilities[kind].argmax(-1)

    def right(self, kind: Rotations) -> Tensor:
        """Which shapes are named correctly."""
        return self.answers(kind) == self.labels

    def accuracy(self, kind: Rotations) -> float:
        """Percentage of shapes that are named correctly."""
        return 100 * self.right(kind).double().mean().item()

    def matrix(self, kind: Rotations) -> Tensor:
        """The confusion matrix: true classes by predicted classes."""
        classes = self.probabilities[kind].shape[-1]
        return (self.labels * classes + self.answers(kind)).bincount(minlength=classes**2).view(classes, classes)


def train(out: Path, flags: list[str]) -> None:
    """Train the networks, each in a process of its own, unless that has been done."""
    jobs = {}
    for key, network in NETWORKS.items():
        folder = out / key
        if (folder / "test.json").exists():
            continue
        settings = ["--resume", str(folder)]
        if not (folder / "config.json").exists():
            settings = ["classification", *COMMON.split(), *network.flags.split(), "--out", str(folder), *flags]
        jobs[key] = subprocess.Popen([sys.executable, "-m", "vector_neurons", "train", *settings])
        print(f"training {network.name}: vn train {' '.join(settings)}", flush=True)
    codes = [job.wait() for job in jobs.values()]
    if any(codes):
        sys.exit(f"a training ended with exit code {next(code for code in codes if code)}")


def shown(data: Dataset) -> Tensor:
    """Indices of the shown test shapes: classes are in rotation, so the first of each class has its label as index."""
    return torch.tensor([data.classes.index(name) for name in SHOWN]) % len(data)  # `--size` may be small


@torch.no_grad()
def test(folder: Path, name: str, data: Dataset) -> Tested:
    """Classify all test shapes, upright and in random poses; these are the poses of `vn evaluate`."""
    config, model = read_config(folder), store.load(folder / "best")
    probabilities = {}
    for kind in POSES:
        logits = []
        for start in range(0, len(data), BATCH):
            indices = torch.arange(start, min(start + BATCH, len(data)))
            clouds = batches.evaluation_batch(data, indices, config.data, kind, config.runtime.seed)
            logits.append(model(clouds.points))
        probabilities[kind] = torch.cat(logits).double().softmax(-1)
    return Tested(name, probabilities, data.labels)


def change(folder: Path, data: Dataset) -> float:
    """The largest change of the outputs for some test clouds under rotations, relative to their size."""
    config = read_config(folder)
    clouds = batches.evaluation_batch(data, shown(data), config.data, "I", config.runtime.seed)
    return testing.equivariance_error(store.load(folder / "best"), clouds.points, takes="points", gives="scalars")


def dense(data: Dataset, config: RunConfig, index: int, kind: Rotations, trial: int = 0) -> Tensor:
    """All stored points of a test shape, in the pose of the test: pictures show more points than networks get."""
    settings = replace(config.data, points=config.data.stored_points)
    return batches.evaluation_batch(data, torch.tensor([index]), settings, kind, config.runtime.seed, trial).points[0]


@torch.no_grad()
def add_poses(page: Page, out: Path, data: Dataset, config: RunConfig) -> None:
    """Show some test shapes, each in several poses, with the answers of the networks."""
    models = {network.name: store.load(out / key / "best") for key, network in NETWORKS.items()}
    clouds, titles = [], []
    for index in shown(data).tolist():
        truth = data.classes[data.labels[index]]
        for trial in range(TRIALS):
            chosen = torch.tensor([index])
            cloud = batches.evaluation_batch(data, chosen, config.data, "SO3", config.runtime.seed, trial)
            said = {name: data.classes[model(cloud.points).argmax()] for name, model in models.items()}
            lines = (f"{name}: {word} {'✓' if word == truth else '✗'}" for name, word in said.items())
            clouds.append(dense(data, config, index, "SO3", trial))
            titles.append("\n".join([f"true class: {truth}", *lines]))
    page.heading("The same shape in several poses")
    page.figure(
        gallery(clouds, None, titles, columns=TRIALS),
        f"{len(SHOWN)} test shapes, each in {TRIALS} random poses: " + "; ".join(t.replace("\n", ", ") for t in titles),
        f"Each row is one test shape in {TRIALS} random poses, seen by the same camera; distant points fade into the "
        "background. Above each picture: the true class, and the answer of each network to this very pose, ✓ if it is "
        "right and ✗ if it is wrong.",
    )


def hardest(tested: list[Tested]) -> tuple[Tested, int] | None:
    """The network that is best in random poses, and the error there to which it gives the highest probability."""
    best = max(tested, key=lambda network: network.accuracy("SO3"))
    wrong = ~best.right("SO3")
    confidence = best.probabilities["SO3"].amax(-1).where(wrong, -1.0)
    return (best, int(confidence.argmax())) if wrong.any() else None


def turned(tested: list[Tested]) -> tuple[Tested, int] | None:
    """The network that loses most in random poses, and a shape that only it, and only then, names wrongly."""
    worst = max(tested, key=lambda network: network.accuracy("z") - network.accuracy("SO3"))
    suited = ~worst.right("SO3")
    for network in tested:
        suited &= network.right("z") & (network.right("SO3") | torch.tensor(network is worst))
    confidence = worst.probabilities["SO3"].amax(-1).where(suited, -1.0)
    return (worst, int(confidence.argmax())) if suited.any() else None


def article(name: str) -> str:
    """A class with its indefinite article."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def add_example(
    page: Page, tested: list[Tested], network: Tested, index: int, data: Dataset, config: RunConfig
) -> None:
    """Discuss one shape that `network` names wrongly in its random pose; every sentence states measured numbers."""
    truth, given = int(data.labels[index]), int(network.answers("SO3")[index])
    names, chances = data.classes, network.probabilities["SO3"][index]
    page.text(
        f"The shape is {article(names[truth])} (number {index} of the test set). In its random pose {network.name} "
        f"takes it for {article(names[given])}, with probability {chances[given]:.1%}; the true class gets "
        f"{chances[truth]:.1%}. Upright, {sum(bool(each.right('z')[index]) for each in tested)} of the {len(tested)} "
        "networks name it correctly."
    )
    clouds = [dense(data, config, index, kind) for kind in POSES]
    titles = [f"{names[truth]},\n{words}" for words in POSES.values()]
    typical = (network.probabilities["z"][:, given] * (data.labels == given)).argmax()
    clouds.append(dense(data, config, int(typical), "z"))
    titles.append(f"{names[given]},\nfor comparison")
    page.figure(
        gallery(clouds, None, titles, columns=3),
        f"three clouds: {'; '.join(titles)}".replace("\n", " "),
        f"Left and middle: the shape itself. Right: of the test shapes of class {names[given]}, the one to which "
        f"{network.name} gives this class with the highest probability upright.",
    )
    rows = []
    for each in tested:
        cells = [each.name]
        for kind in POSES:
            p, answer = each.probabilities[kind][index], int(each.answers(kind)[index])
            cells += [f"{names[answer]} {'✓' if answer == truth else '✗'} {p[answer]:.1%}", f"{p[truth]:.1%}"]
        rows.append(cells)
    head = [f"{pose}: {word}" for pose in POSES.values() for word in ("answer", "true class")]
    page.table(
        ["network", *head],
        rows,
        f"The answer of each network (✓ right, ✗ wrong) with its probability, and the probability of the true class, "
        f"{names[truth]}",
    )
    sentences = []
    for each in tested:
        upright, rotated = (names[int(each.answers(kind)[index])] for kind in POSES)
        shift = 100 * (each.probabilities["z"][index] - each.probabilities["SO3"][index]).abs().max().item()
        same = f"answers {upright} in both poses" if upright == rotated else f"changes from {upright} to {rotated}"
        sentences.append(f"{each.name} {same}; its probabilities differ by at most {shift:.2g} percentage points.")
    matrix = network.matrix("SO3")
    many, hits, swapped = matrix[truth].sum(), matrix[truth, truth], matrix[truth, given]
    back, other = matrix[given, truth], matrix[given].sum()
    sentences.append(
        f"In random poses {network.name} names {hits} of the {many} test shapes of class {names[truth]} correctly and "
        f"takes {swapped} for class {names[given]}; of the {other} of class {names[given]} it takes {back} for class "
        f"{names[truth]}."
    )
    page.text(" ".join(sentences))


def turn_by_hand(out: Path, data: Dataset, config: RunConfig) -> str:
    """The page where some test shapes are turned by hand, beside the answers of the networks."""
    models = {network.name: store.load(out / key / "best") for key, network in NETWORKS.items()}
    rotations, exhibits = pose_grid(TURNED), []
    for index in shown(data).tolist():
        clouds = batches.evaluation_batch(data, torch.tensor([index]), config.data, "I", config.runtime.seed)
        answers = [answer(model, clouds.points[0], rotations, name=name) for name, model in models.items()]
        truth = data.classes[data.labels[index]]
        picture = Picture(dense(data, config, index, "I"))
        exhibits.append(Exhibit(truth, picture, answers=answers, classes=data.classes, truth=truth))
    return view_page("Turn a test shape by hand", exhibits, rotations)


def report(out: Path, tested: list[Tested], rows: list[list[str]], data: Dataset) -> Page:
    """Write the page, from the question and the results to the details."""
    config = read_config(out / "vector")
    page = Page("Three networks, trained on upright shapes, tested upright and in random poses")
    train_size, classes = len(factory.open_dataset(config.data, "train")), len(data.classes)
    page.text(
        f"Three small networks learned to name shapes of {classes} classes from {config.data.points} points on the "
        f"surface. The {train_size} shapes of the training set were upright: rotated about the vertical axis (z) only. "
        f"Each network was then tested twice on the same {len(data)} new shapes: upright (z/z), and each in a random "
        "pose, rotated arbitrarily (z/SO(3)). All shapes are generated by the package."
    )
    page.definitions([(network.name, network.about) for network in NETWORKS.values()])
    page.heading("Results")
    head = ["network", "upright (z/z), %", "random poses (z/SO(3)), %", "relative change of outputs"]
    page.table(
        head,
        rows,
        f"Accuracy is the percentage of the {len(data)} test shapes that are named correctly; one shape is "
        f"{100 / len(data):.1f} points, guessing gives {100 / classes:.1f} %. The last column is the largest change of "
        "the outputs when three test shapes are rotated, relative to their size: about 1e-06 is rounding.",
    )
    page.text(
        " ".join(
            f"{each.name} names {each.right('z').sum()} of {len(data)} shapes correctly upright and "
            f"{each.right('SO3').sum()} in random poses."
            for each in tested
        )
    )
    add_poses(page, out, data, config)
    page.heading("Which classes are taken for which")
    titles = [f"{each.name}, {words}" for each in tested for words in ("upright", "random poses")]
    page.figure(
        confusion([each.matrix(kind) for each in tested for kind in POSES], titles, data.classes, columns=2),
        "confusion matrices: "
        + "; ".join(f"{each.name}, {words}: {each.accuracy(k):.1f} %" for each in tested for k, words in POSES.items()),
        "Confusion matrices, two for each network: upright on the left, in random poses on the right. Rows are true "
        "classes, columns predicted classes. The color scale gives the share of the test shapes of the true class. A "
        "network without errors has 100 % on the diagonal and 0 % elsewhere.",
    )
    for title, found in (
        ("An error that comes from the pose", turned(tested)),
        ("The most confident error of the best network", hardest(tested)),
    ):
        page.heading(title)
        if found is None:
            page.text("No test shape of this kind was found in this run.")
        else:
            add_example(page, tested, *found, data, config)
    page.heading("Training")
    for key, network in NETWORKS.items():
        lines = read_metrics(out / key)
        page.figure(
            curves(lines, "accuracy"),
            f"{network.name}: loss and accuracy by epoch; the last validation accuracy is "
            f"{lines[-1]['val']['accuracy']:.1f} %",
            f"{network.name}: loss (left) and accuracy (right) after each epoch, on the training set (train) and on "
            "upright shapes that are in neither the training nor the test set (val); these select the epoch that is "
            "tested.",
        )
    page.heading("Turn a shape by hand")
    by_hand = turn_by_hand(out, data, config)
    (out / "view.html").write_text(by_hand, encoding="utf-8")
    page.embed(
        by_hand,
        f"test shapes to turn by hand, with the probabilities that {', '.join(each.name for each in tested)} give",
        "Turn a test shape: the bars of DGCNN move, those of VN-DGCNN and FrameNet stand still. About the vertical "
        "axis (left and right) the shape stays upright, as in training. In a window of its own: view.html.",
    )
    return page


def main() -> None:
    """Train, test, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    options, flags = parser.parse_known_args()
    started = time.monotonic()
    torch.set_num_threads(1)  # as in the trainings, so that the numbers are those of their test.json
    kernels.available()  # built once, before several processes would all do it
    train(options.out, flags)
    data = factory.open_dataset(read_config(options.out / "vector").data, "test")
    tested = [test(options.out / key, network.name, data) for key, network in NETWORKS.items()]
    rows = [
        [each.name, *(f"{each.accuracy(kind):.1f}" for kind in POSES), f"{change(options.out / key, data):.1e}"]
        for key, each in zip(NETWORKS, tested, strict=True)
    ]
    head = ["accuracy, %", "z/z", "z/SO(3)", "change of outputs"]
    print("\n" + "\n".join("  ".join(word.ljust(12) for word in row) for row in [head, *rows]))
    file = options.out / "report.html"
    file.write_text(str(report(options.out, tested, rows, data)), encoding="utf-8")
    print(f"\n{file}, after {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
