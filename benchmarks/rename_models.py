"""Convert saved models of format 1 (before 0.1.0) to format 2: `python benchmarks/rename_models.py FOLDER...`

Format 2 groups the layer options of a network, names them as the layers do, and calls non-linearities activations.
"""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from vector_neurons._files import write_checksums
from vector_neurons.models.store import CONFIG, WEIGHTS

LAYER_OPTIONS = {"norm": "norm", "nonlinearity": "direction", "pool": "pool", "frame": "frame", "mean": "mean"} | {
    "read_mean": "project_mean",
    "eps": "eps",
}
DIRECTIONS = {"built-in": "input", "detached": "output"}
OTHERS = {"normalisation": "normalization"}
PARAMETERS = {"bend.": "activation.", "bend_in.": "activation_in.", "bend_out.": "activation_out."}


def convert(folder: Path) -> bool:
    """Convert the model in a folder; False if it has the new format already."""
    config = json.loads((folder / CONFIG).read_text())
    if config["format"] != 1:
        return False
    config["format"], arguments = 2, config["arguments"]
    if config["class"] == "VNTransformer":
        arguments["depth"] = arguments.pop("layers")
    elif config["class"] != "OccupancyNetwork":
        layers = {new: arguments.pop(old) for old, new in LAYER_OPTIONS.items() if old in arguments}
        arguments["layers"] = layers | {"direction": DIRECTIONS[layers["direction"]]}
    config = {OTHERS.get(name, name): value for name, value in config.items()}
    weights = {renamed(name): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(weights, folder / WEIGHTS)
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    write_checksums(folder, (WEIGHTS, CONFIG))
    return True


def renamed(name: str) -> str:
    """The name of a parameter in format 2."""
    for old, new in PARAMETERS.items():
        if name.startswith(old) or f".{old}" in name:
            return name.replace(old, new)
    return name


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        print(f"{folder}: {'converted' if convert(folder) else 'has the new format already'}")
