"""Compare scores that tell shapes of unknown kinds from known ones, without the test set.

    python benchmarks/novelty.py results/NAME scanned_objects.npz

A threshold that rejects 5 % of one half of ModelNet40's validation shapes is applied to the other half, to scans of
unknown kinds in the training split of Google Scanned Objects, and to procedural shapes of unknown kinds.
"""

import argparse
from pathlib import Path

import torch
from calibrate import UNKNOWN_FAMILIES, logits_of, posed
from scans import TRAIN, UNKNOWN_SCANS, scans_like

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.inference.predict import MIN_KNOWN
from vector_neurons.models import Calibration, store
from vector_neurons.models.base import prepare
from vector_neurons.training import factory, read_config


def standardized(logits, fitted):
    """The largest logit, compared with those of known shapes of the same class: what `Calibration` has."""
    top, predicted = logits.max(-1)
    mean, std = (torch.tensor(x)[predicted] for x in (fitted.mean, fitted.std))
    return (top - mean) / std


SCORES = {
    "largest probability": lambda x, fitted: fitted.probabilities(x).amax(-1),
    "largest logit": lambda x, fitted: x.amax(-1),
    "log-sum-exp of the logits (energy)": lambda x, fitted: x.logsumexp(-1),
    "margin between the two largest logits": lambda x, fitted: -x.topk(2).values.diff().squeeze(-1),
    "largest logit, standardized per class": standardized,
}


def main():
    """Print a row for each score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("scans", type=Path, help="scanned_objects.npz")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = vn.load(options.run)
    known, network = store.metadata_of(model), prepare(model)
    data = factory.open_dataset(read_config(options.run).data, "val")
    logits, labels = logits_of(network, posed(data), known), data.labels
    half = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)) % 2 == 0
    fitted = Calibration.fit(logits[half], labels[half])
    meshes, _ = zip(*scans_like(options.scans, UNKNOWN_SCANS, TRAIN), strict=True)
    shapes = Shapes("train", size=40 * len(UNKNOWN_FAMILIES), points=10_000, families=UNKNOWN_FAMILIES)
    groups = {
        "known": logits[~half],
        "scans": logits_of(network, meshes, known),
        "procedural": logits_of(network, posed(shapes), known),
    }
    print("rejected, %".ljust(40) + "".join(f"{name} {len(x)}".rjust(16) for name, x in groups.items()))
    for name, score in SCORES.items():
        threshold = score(logits[half].double(), fitted).quantile(MIN_KNOWN)
        rejected = [100 * (score(x.double(), fitted) < threshold).double().mean().item() for x in groups.values()]
        print(name.ljust(40) + "".join(f"{x:16.1f}" for x in rejected))


if __name__ == "__main__":
    main()
