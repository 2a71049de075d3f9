"""Calibrate a classifier on its validation set, for the probabilities and the "none of these" of `vn predict`.

    python benchmarks/calibrate.py results/modelnet40-framenet-z
    python benchmarks/calibrate.py src/vector_neurons/pretrained/classification --test

Writes `calibration.json` beside the weights. A run is calibrated on the validation set of its own data, a model without
a run on that of ModelNet40; the test set is never used for it. `--test` measures afterward, on the test set under
SO(3): accuracy, the expected calibration error (ECE) and how many shapes are called "none of these"; and how many
procedural shapes of kinds that ModelNet40 does not have. `--scans scanned_objects.npz` measures the same on the
validation and test objects of Google Scanned Objects, whose names tell known kinds from unknown ones. The form of the
score was chosen on other shapes, by `benchmarks/novelty.py`.
"""

import argparse
import sys
from pathlib import Path

import torch
from scans import KNOWN_SCANS, REST, UNKNOWN_SCANS, scans_like

import vector_neurons as vn
from vector_neurons.data import Dataset, Shapes
from vector_neurons.geometry import rotations
from vector_neurons.inference.inputs import sample_for
from vector_neurons.inference.predict import CLOUDS, MIN_KNOWN
from vector_neurons.mesh import Mesh
from vector_neurons.models import Calibration, store
from vector_neurons.models.base import prepare
from vector_neurons.training import DataConfig, factory, find_run, read_config

BATCH = 32
BINS = 15  # of the calibration error
UNKNOWN_FAMILIES = ("helicopter", "rocket", "hammer", "axe", "right hand")
NO_FACES = torch.empty(0, 3, dtype=torch.int64)


@torch.no_grad()
def logits_of(network, meshes, known):
    """Logits of meshes and clouds as `vn predict` averages them."""
    clouds = [sample_for(mesh, known, count=CLOUDS).clouds for mesh in meshes]
    logits = [network(some.flatten(0, 1)) for some in torch.stack(clouds).split(BATCH)]
    return torch.cat(logits).unflatten(0, (-1, CLOUDS)).mean(1)


def posed(data: Dataset):
    """All clouds of a data set, each in a random pose."""
    clouds = data.batch(torch.arange(len(data))).points.double()
    turns = rotations.draw("SO3", len(clouds), generator=torch.Generator().manual_seed(0)).double()
    return [Mesh(cloud @ R.mT, NO_FACES) for cloud, R in zip(clouds, turns, strict=True)]


def calibration_error(probabilities, labels):
    """The expected difference between confidence and accuracy, over bins of the confidence (ECE)."""
    confidence, predicted = probabilities.max(-1)
    right = (predicted == labels).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    return sum(abs((confidence - right)[bins == i].sum().item()) for i in range(BINS)) / len(labels)


def report(name, found):
    """Print how many shapes are of none of the classes."""
    print(f'{name}: {100 * (found < MIN_KNOWN).double().mean():.1f} % of {len(found):,} are "none of these"')


def main():
    """Calibrate, save and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a run, or a saved model")
    parser.add_argument("--test", action="store_true", help="also measure the calibration on the test set")
    parser.add_argument("--scans", type=Path, help="scanned_objects.npz: also measure on kinds that are not known")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = vn.load(options.folder)
    known, network = store.metadata_of(model), prepare(model)
    run = find_run(options.folder)
    if (run / "best").is_dir():
        config, folder = read_config(run).data, run / "best"
    else:
        config, folder = DataConfig(data="modelnet40", points=known.points, stored_points=1024), options.folder
    data = factory.open_dataset(config, "val")
    if tuple(known.classes) != tuple(data.classes):
        sys.exit(f"{folder} has other classes than {config.data}")
    calibration = Calibration.fit(logits_of(network, posed(data), known), data.labels)
    vn.save(model, folder, known, calibration)
    print(f"{folder / store.CALIBRATION}: temperature {calibration.temperature:.3f}, from {len(data):,} shapes")
    if options.test:
        test = factory.open_dataset(config, "test")
        logits = logits_of(network, posed(test), known)
        probabilities = calibration.probabilities(logits)
        right = logits.argmax(-1) == test.labels
        found = calibration.known(logits)
        print(f"test set under SO(3): accuracy {100 * right.double().mean():.2f} %", end=", ")
        print(f"{100 * right[found >= MIN_KNOWN].double().mean():.2f} % of those with an answer", end=", ")
        error, before = (100 * calibration_error(p, test.labels) for p in (probabilities, logits.softmax(-1)))
        print(f"calibration error {error:.1f} %, {before:.1f} % without calibration")
        report("test set", found)
        shapes = Shapes("test", size=40 * len(UNKNOWN_FAMILIES), points=10_000, families=UNKNOWN_FAMILIES)
        report(", ".join(UNKNOWN_FAMILIES), calibration.known(logits_of(network, posed(shapes), known)))
    if options.scans:
        meshes, word = zip(*scans_like(options.scans, list(KNOWN_SCANS), REST), strict=True)
        names = [list(KNOWN_SCANS.values())[i] for i in word]
        logits = logits_of(network, meshes, known)
        right = sum(known.classes[i] == name for i, name in zip(logits.argmax(-1).tolist(), names, strict=True))
        print(f"scans of known kinds: {right} of {len(names)} are right")
        report("scans of known kinds", calibration.known(logits))
        meshes, _ = zip(*scans_like(options.scans, UNKNOWN_SCANS, REST), strict=True)
        report("scans of unknown kinds", calibration.known(logits_of(network, meshes, known)))


if __name__ == "__main__":
    main()
