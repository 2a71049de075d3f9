"""Convert runs and models that were saved by versions before 0.1.0 to the names of today.

python benchmarks/rename_settings.py runs/NAME results/NAME models/NAME ...
"""

import argparse
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from vector_neurons._files import write_checksums, write_file
from vector_neurons.models import store
from vector_neurons.training.log import METRICS
from vector_neurons.training.run import CONFIG, read_config

DIRECTIONS = {"built-in": "input", "detached": "output"}
GROUPS = {"clouds": "data", "machine": "runtime"}
# The older names of settings, by the name of their group today.
SETTINGS: dict[str, dict[str, str]] = {
    "data": {"pool": "stored_points", "near": "near_fraction"},
    "network": {"nonlinearity": "direction"},
    "recipe": {
        "batch": "batch_size",
        "optimiser": "optimizer",
        "rate": "lr",
        "final_rate": "final_lr",
        "warm_up": "warmup",
        "every": "step_size",
        "factor": "gamma",
        "decay": "weight_decay",
        "smoothing": "label_smoothing",
        "clip": "clip_grad_norm",
        "stretch": "anisotropic_scale",
        "zoom": "scale",
        "early_share": "early_fraction",
    },
}
METRIC_NAMES = {"rate": "lr"}
# Of models: arguments that are layer options today, names beside them, and prefixes of parameters.
LAYER_OPTIONS = {
    "norm": "norm",
    "nonlinearity": "direction",
    "pool": "pool",
    "frame": "frame",
    "mean": "mean",
    "read_mean": "project_mean",
    "eps": "eps",
}
METADATA = {"normalisation": "normalization"}
PARAMETERS = {"bend": "activation", "bend_in": "activation_in", "bend_out": "activation_out"}


def rename(saved: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The same values under other names; a direction by its name today."""
    renamed = {names.get(name, name): value for name, value in saved.items()}
    if "direction" in renamed:
        renamed["direction"] = DIRECTIONS.get(renamed["direction"], renamed["direction"])
    return renamed


def convert_run(run: Path) -> None:
    """Convert the configuration and the metrics of a run."""
    config = rename(json.loads((run / CONFIG).read_text()), GROUPS)
    config |= {group: rename(config[group], names) for group, names in SETTINGS.items()}
    lines = [json.loads(text) for text in (run / METRICS).read_text().splitlines()]
    write_file(run / CONFIG, json.dumps(config, indent=2) + "\n")
    write_file(run / METRICS, "".join(json.dumps(rename(line, METRIC_NAMES)) + "\n" for line in lines))
    read_config(run)


def convert_model(folder: Path) -> None:
    """Convert a model of format 1, which has no layer options, to format 2."""
    config = json.loads((folder / store.CONFIG).read_text())
    if config["format"] != 1:
        return
    config["format"], arguments = 2, config["arguments"]
    if config["class"] == "VNTransformer":
        arguments["depth"] = arguments.pop("layers")
    elif config["class"] != "OccupancyNetwork":
        options = {name: arguments.pop(name) for name in LAYER_OPTIONS if name in arguments}
        arguments["layers"] = rename(options, LAYER_OPTIONS)
    weights = {
        ".".join(PARAMETERS.get(part, part) for part in name.split(".")): tensor
        for name, tensor in load_file(folder / store.WEIGHTS).items()
    }
    save_file(weights, folder / store.WEIGHTS)
    (folder / store.WEIGHTS).chmod((folder / store.CONFIG).stat().st_mode)
    (folder / store.CONFIG).write_text(json.dumps(rename(config, METADATA), indent=2) + "\n")
    write_checksums(folder, (store.WEIGHTS, store.CONFIG))
    store.load(folder)


def main() -> None:
    """Convert every folder that is named: a run with its best model, or a model."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", type=Path, nargs="+")
    for folder in options.parse_args().folders:
        if (folder / METRICS).exists():
            convert_run(folder)
        for model in (folder, folder / store.BEST):
            if (model / store.WEIGHTS).exists():
                convert_model(model)
        print(folder)


if __name__ == "__main__":
    main()
