"""Measure retrieval on ModelNet40: Recall@1, Recall@5 and mAP, with shapes as published and under random rotations.

    python benchmarks/retrieval.py results/modelnet40-framenet-z            # the test set
    python benchmarks/retrieval.py RUN --split val                          # where descriptors were compared
    python benchmarks/retrieval.py --speed                                  # milliseconds by size of the index

Every shape is a query once, against all others of the split (leave one out); a match is a shape of its class. Under
SO3 every shape has its own random rotation, queries as well as those in the index. `vn embed` makes the same
descriptors of files.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

import vector_neurons as vn
from vector_neurons.data import ModelNet40
from vector_neurons.inference import Index, embed_each
from vector_neurons.inference.retrieval import find_classifier
from vector_neurons.mesh import MeshError
from vector_neurons.models.base import Classifier
from vector_neurons.training.batches import evaluation_rotation
from vector_neurons.typing import Rotations

CHANNELS = 296  # of the descriptors of FrameNet with 40 classes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="runs, saved models or names of vn.pretrained")
    parser.add_argument("--split", default="test", choices=("val", "test"))
    parser.add_argument("--layers", action="store_true", help="also other descriptors: which are worth what")
    parser.add_argument("--speed", action="store_true", help="time searches in indexes of random descriptors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.speed:
        measure_speed()
    for name in options.models:
        data, network = ModelNet40(options.split, points=1024), find_classifier(Path(name) if "/" in name else name)
        print(f"{name}, {len(data):,} {options.split} shapes")
        print("| descriptor | channels | rotations | Recall@1 | Recall@5 | mAP |\n|---|---|---|---|---|---|")
        for kind in ("I", "SO3"):
            report("`vn embed`", kind, descriptors(network, data, kind), data.labels)
            if options.layers:
                for layer, found in layers(network, data, kind).items():
                    report(layer, kind, found, data.labels)


def clouds(data: ModelNet40, kind: Rotations) -> list[Tensor]:
    """All shapes, each in its own pose."""
    return [data[i].points @ evaluation_rotation(kind, i, 0).mT for i in range(len(data))]


def descriptors(network: Classifier, data: ModelNet40, kind: Rotations) -> Tensor:
    """Descriptors as `vn embed` makes them."""
    found = list(embed_each(network, clouds(data, kind)))
    return torch.stack([x for x in found if not isinstance(x, MeshError)])


@torch.no_grad()
def layers(network: Classifier, data: ModelNet40, kind: Rotations) -> dict[str, Tensor]:
    """Other descriptors, of half of the points: those of several layers."""
    half = torch.stack(clouds(data, kind))[:, ::2]
    pooled = torch.cat([network.encode(some).descriptor for some in half.split(32)])
    head = network.head
    hidden, logits = head.hidden(pooled), head(pooled)
    return {"pooled features": pooled, "hidden features": hidden, "logits": logits, "probabilities": logits.softmax(-1)}


def report(name: str, kind: str, found: Tensor, labels: Tensor) -> None:
    """Print a row."""
    found = normalize(found, dim=-1)
    similarity = (found @ found.mT).fill_diagonal_(-torch.inf)
    right = labels[similarity.argsort(dim=1, descending=True)[:, :-1]] == labels.unsqueeze(1)
    ranks = torch.arange(1, right.shape[1] + 1)
    precision = ((right.cumsum(1) / ranks) * right).sum(1) / right.sum(1).clamp_min(1)
    scores = [right[:, 0].double().mean(), right[:, :5].any(1).double().mean(), precision[right.any(1)].mean()]
    cells = [f"{100 * x:.2f}" for x in scores]
    print(f"| {name} | {found.shape[1]} | {kind} | {' | '.join(cells)} |", flush=True)


def measure_speed() -> None:
    """Median time of a search, one thread."""
    print("| shapes in the index | memory | one search |\n|---|---|---|")
    for size in (1_000, 10_000, 100_000, 1_000_000):
        index = Index(normalize(torch.randn(size, CHANNELS), dim=-1), [str(i) for i in range(size)], "", "")
        times = []
        for query in index.descriptors[:21]:
            started = time.perf_counter()
            index.search(query)
            times.append(time.perf_counter() - started)
        milliseconds = 1000 * sorted(times)[10]
        print(f"| {size:,} | {index.descriptors.nbytes / 1e6:.0f} MB | {milliseconds:.1f} ms |", flush=True)


if __name__ == "__main__":
    vn.kernels.prefer_built()
    main()
