"""Draw docs/poses.png: test shapes in several poses, and what DGCNN and VN-DGCNN answer.

    make demo && python benchmarks/poses.py demo

The networks are the two of the demo, both trained on shapes rotated about the vertical axis only. Every answer in the
picture is an output of theirs. The shapes are two that both networks name correctly when upright, so that only the pose
makes a difference; the poses are the first four that the generator gives.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import torch

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.geometry import rotations
from vector_neurons.viz import gallery

ROOT = Path(__file__).parents[1]
RIGHT, WRONG = "#007a5e", "#c0392b"
POSES, POINTS, SHOWN_POINTS = 5, 256, 4000


def main() -> None:
    """Classify and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder that `make demo` wrote")
    parser.add_argument("--shapes", type=int, nargs="+", default=[3, 7], help="numbers of test shapes, one row each")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "docs" / "poses.png")
    options = parser.parse_args()
    mpl.use("agg")
    networks = {name: vn.load(options.demo / kind) for kind, name in (("scalar", "DGCNN"), ("vector", "VN-DGCNN"))}
    test = Shapes("test", size=252, points=POINTS)
    dense = Shapes("test", size=252, points=SHOWN_POINTS)
    upright = torch.eye(3).unsqueeze(0)
    poses = torch.cat([upright, rotations.draw("SO3", POSES - 1, generator=torch.Generator().manual_seed(0))])
    points, normals, answers = [], [], []
    for index in options.shapes:
        truth = test.classes[int(test[index].label)]
        for R in poses:
            points.append(dense[index].points @ R.mT)
            normals.append(dense[index].normals @ R.mT)
            cloud = (test[index].points @ R.mT).unsqueeze(0)
            answers.append({name: test.classes[network(cloud).argmax()] for name, network in networks.items()})
            answers[-1]["truth"] = truth
    figure = gallery(points, None, normals=normals, columns=POSES, radius=1.02)
    for axes, answer in zip(figure.axes, answers, strict=True):
        for line, name in enumerate(networks):
            right = answer[name] == answer["truth"]
            words = f"{name}: {answer[name]} {'✓' if right else '✗'}"
            place = {"transform": axes.transAxes, "ha": "center", "va": "top", "fontsize": 10.5}
            axes.text(0.5, -0.02 - 0.09 * line, words, color=RIGHT if right else WRONG, **place)
    for column, axes in enumerate(figure.axes[:POSES]):
        axes.set_title("upright, as in training" if column == 0 else "rotated", fontsize=11)
    figure.set_size_inches(2.2 * POSES, 2.85 * len(options.shapes))
    figure.savefig(options.out, dpi=110, bbox_inches="tight", pad_inches=0.15)
    print(*(f"{a['truth']}: " + ", ".join(f"{n} {a[n]}" for n in networks) for a in answers), sep="\n")


if __name__ == "__main__":
    main()
