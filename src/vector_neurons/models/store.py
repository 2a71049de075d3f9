"""A model in a folder: `model.safetensors` (weights) and `config.json` (how to build it, and what its outputs mean)."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from . import MODELS
from .base import Model

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class StoreError(ValueError):
    """A folder that holds no usable model; the message is one line."""


@dataclass(frozen=True)
class Meaning:
    """What a model's inputs and outputs stand for."""

    classes: Sequence[str] | None = None  # names of the outputs
    normalisation: str = (
        "unit_ball"  # how clouds were normalised in training: a function of geometry.sampling, or "none"
    )
    up: str = "z"  # the axis that pointed up in training
    points: int | None = None  # points of a cloud in training
    threshold: float | None = None  # the probability above which a place counts as inside


MEANING = tuple(field.name for field in fields(Meaning))


def save(model: Model, folder: str | Path, meaning: Meaning | None = None) -> None:
    """Write the model to a folder, made if need be. A crash leaves the old files or the new ones, never half a file.

    Without a `meaning`, a model that was loaded keeps its own.
    """
    from importlib.metadata import version

    from safetensors.torch import save_file

    if type(model).__name__ not in MODELS:
        raise StoreError(f"cannot save a {type(model).__name__}: models are {', '.join(MODELS)}")
    known: Meaning = meaning or model.meaning or Meaning()
    config = {
        "format": FORMAT,
        "class": type(model).__name__,
        "arguments": {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in model.arguments.items()},
        "version": version("vector-neurons"),
        **asdict(known),
    }
    described = json.dumps(config, indent=2, default=int) + "\n"  # a number of classes may come from NumPy
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / f"{WEIGHTS}.part")
    (folder / f"{CONFIG}.part").write_text(described)
    for name in (WEIGHTS, CONFIG):
        os.replace(folder / f"{name}.part", folder / name)


def load(folder: str | Path) -> nn.Module:
    """Build the model saved in a folder, in evaluation mode; `model.meaning` says what its outputs stand for."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    config = _config(folder)
    try:
        model = MODELS[config["class"]](**config["arguments"])
        meaning = Meaning(**{k: config[k] for k in MEANING if k in config})
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise StoreError(f"{folder / CONFIG} does not describe a {config['class']}: {_line(error)}") from error
    weights = folder / WEIGHTS
    if not weights.is_file():
        raise StoreError(f"{folder} has no {WEIGHTS}")
    try:
        state = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{weights} is damaged: {_line(error)}") from error
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise StoreError(f"{weights} does not fit {CONFIG}: {_line(error)}") from error
    model.meaning = meaning
    return model.eval()


def pretrained(name: str) -> nn.Module:
    """A model that comes with the package, in float32 and evaluation mode.

    `"reconstruction"` is an occupancy network that has seen scanned household objects, whole and from one side.
    """
    folder = Path(__file__).parents[1] / "pretrained"
    known = sorted(config.parent.name for config in folder.glob(f"*/{CONFIG}"))
    if name not in known:
        raise StoreError(f"the package has no model {name!r}, only {', '.join(known)}")
    return load(folder / name).float()


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise StoreError(f"{folder} holds no model: there is no {CONFIG}")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is damaged: {_line(error)}") from error
    if not isinstance(config, dict) or "class" not in config or "arguments" not in config:
        raise StoreError(f"{path} describes no model: it names no class and arguments")
    if config.get("format") != FORMAT:
        raise StoreError(f"{path} has format {config.get('format')!r}, this version reads {FORMAT}: update the package")
    if not isinstance(config["class"], str) or config["class"] not in MODELS:
        raise StoreError(f"{path} names an unknown class {config['class']!r}: models are {', '.join(MODELS)}")
    return config


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return " ".join(lines[:2]) if lines else type(error).__name__
