"""Measure `vn align` on ModelNet40: two disjoint halves of the points of a shape, one of them in a random pose.

    python benchmarks/align.py RUN --split train --shapes 3 --classes-to asymmetric.json    # the rule, first
    python benchmarks/align.py RUN --shapes 4 --asymmetric asymmetric.json --pairs pairs.npz
    python benchmarks/fpfh.py pairs.npz --asymmetric asymmetric.json                        # beside FPFH and RANSAC
    python benchmarks/align.py RUN --shapes 2 --asymmetric asymmetric.json --scale          # the second half scaled
    python benchmarks/align.py RUN --shapes 2 --asymmetric asymmetric.json --overlap 0.8    # parts of the halves

A class is asymmetric if no second pose fits most of these training shapes (`Alignment.symmetric` is None). Errors are
geodesic, in degrees. "up to symmetry" is the error of the closest of the poses that `vn align` reports. With --overlap
both halves are cut by parallel planes, so that this fraction of each lies between them; --scale and --overlap are also
given to `vn align` and to ICP.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import vector_neurons as vn
from vector_neurons.data import ModelNet40
from vector_neurons.geometry import rotations
from vector_neurons.inference import align
from vector_neurons.inference.align import FINE_STEPS, FLIPS, mean_vectors, principal_axes
from vector_neurons.inference.icp import Poses, Registration
from vector_neurons.inference.retrieval import find_classifier
from vector_neurons.models.base import Classifier

MAX_SCALE = 2.0
COLUMNS = ("features only", "principal axes + ICP", "vn align", "up to symmetry")


def main() -> None:
    """Measure and print, by class and overall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run, a saved model or a name of vn.pretrained")
    parser.add_argument("--split", default="test", choices=("train", "val", "test"))
    parser.add_argument("--shapes", type=int, default=4, help="of each class")
    parser.add_argument("--asymmetric", type=Path, help="file of the asymmetric classes")
    parser.add_argument("--classes-to", type=Path, help="write the asymmetric classes to this file")
    parser.add_argument("--pairs", type=Path, help="write the pairs of clouds to this file")
    parser.add_argument("--scale", action="store_true", help=f"scale the second half by up to {MAX_SCALE:g}, or down")
    parser.add_argument("--overlap", type=float, default=1.0, help="cut the halves to this overlap")
    options = parser.parse_args()
    search = {"scale": options.scale, "overlap": options.overlap}
    torch.set_num_threads(1)
    network, data = find_classifier(options.model), ModelNet40(options.split, points=1024)
    errors: dict[str, list[list[float]]] = {}
    unique: dict[str, float] = {}
    pairs, scales, seconds = [], [], 0.0
    print(f"| median error | {' | '.join(COLUMNS)} | within 5° | one pose fits |\n|---|{'---|' * len(COLUMNS)}---|---|")
    for label, name in enumerate(data.classes):
        chosen = (data.labels == label).nonzero()[: options.shapes, 0].tolist()
        errors[name], flags = [], []
        for index in chosen:
            source, target, R, factor = pair(data[index].points, index, **search)
            pairs.append((source, target, R, label))
            started = time.process_time()
            found = align(source, target, network, **search)
            degrees = angles(found.poses, R)
            flags.append(found.symmetric is None)
            seconds += time.process_time() - started
            scales.append(abs(found.scale / factor - 1))
            others = (features_only(network, source, target), axes_and_icp(source, target, **search))
            errors[name].append([angles(x[None], R)[0] for x in others] + [degrees[0], min(degrees)])
        unique[name] = sum(flags) / len(flags)
        print_row(name, errors[name], f"{100 * unique[name]:.0f} %")
    if options.asymmetric:
        classes = json.loads(options.asymmetric.read_text())
        print_row(f"**{len(classes)} asymmetric classes**", [row for name in classes for row in errors[name]], "")
    print_row("**all classes**", [row for rows in errors.values() for row in rows], "")
    print(f"{len(pairs)} pairs, `vn align` takes {seconds / len(pairs):.2f} s of one core")
    if options.scale:
        right = 100 * (torch.tensor(scales) <= 0.05).double().mean().item()
        print(f"scale: median error {100 * np.median(scales):.1f} %, {right:.0f} % within 5 %")
    if options.classes_to:
        classes = [name for name, share in unique.items() if share > 0.5]
        options.classes_to.write_text(json.dumps(classes) + "\n")
        print("asymmetric:", ", ".join(classes))
    if options.pairs:
        a, b, R, labels = zip(*pairs, strict=True)
        arrays = {"source": torch.stack(a), "target": torch.stack(b), "rotation": torch.stack(R)}
        np.savez(options.pairs, labels=labels, classes=data.classes, **{k: x.numpy() for k, x in arrays.items()})


def pair(points: Tensor, seed: int, scale: bool, overlap: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """Two halves of the points, or parts of them, the second rotated and perhaps scaled; its rotation and scale."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (points[half].double() for half in torch.randperm(len(points), generator=generator).chunk(2))
    R = rotations.draw("SO3", 1, generator=generator, dtype=torch.float64)[0]
    factor = MAX_SCALE ** (2 * torch.rand((), generator=generator).item() - 1) if scale else 1.0
    if overlap < 1:
        direction = torch.randn(3, generator=generator, dtype=torch.float64)
        kept = round(len(a) / (2 - overlap))  # so that 2 kept - len(a) is this fraction of kept
        a, b = a[(a @ direction).argsort()[:kept]], b[(b @ direction).argsort()[-kept:]]
    return a, factor * b @ R.mT, R, factor


def features_only(network: Classifier, source: Tensor, target: Tensor) -> Tensor:
    """Kabsch on the mean vectors, without ICP."""
    with torch.no_grad():
        a, b = (mean_vectors(network, vn.center(x).float()[None]) for x in (source, target))
    return rotations.nearest(b @ a.mT)


def axes_and_icp(source: Tensor, target: Tensor, scale: bool, overlap: float) -> Tensor:
    """The four rotations between principal axes, refined by ICP: no network."""
    a, b = vn.center(source), vn.center(target)
    if scale:
        a, b = (x / x.norm(dim=-1).amax() for x in (a, b))
    matched = (principal_axes(b) * b.new_tensor(FLIPS).unsqueeze(1)) @ principal_axes(a).mT
    registration = Registration(a, b, scale=scale, overlap=overlap)
    poses = registration.refine(Poses.of(matched), FINE_STEPS)
    return poses.R[registration.residual(poses).argmin()]


def angles(found: Tensor, R: Tensor) -> list[float]:
    """Geodesic errors in degrees."""
    return rotations.geodesic_distance(found, R.expand_as(found)).rad2deg().tolist()


def print_row(name: str, errors: list[list[float]], unique: str) -> None:
    """Print medians, and how many are right."""
    table = torch.tensor(errors)
    medians = [f"{x:.1f}°" for x in table.quantile(0.5, dim=0).tolist()]
    right = 100 * (table[:, 2] <= 5).double().mean().item()
    print(f"| {name} | {' | '.join(medians)} | {right:.0f} % | {unique} |", flush=True)


if __name__ == "__main__":
    vn.kernels.prefer_built()
    main()
