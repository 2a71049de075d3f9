"""A model in a folder: `model.safetensors` (weights), `config.json` (how to build it, and what its outputs mean), and
`checksums.json` (which `load` verifies)."""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .._files import (
    CHECKSUMS,
    FileError,
    check_regular,
    first_line,
    flush,
    read_json,
    verify_checksums,
    write_checksums,
)
from . import MODELS
from .base import Model

FORMAT = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"
BEST = "best"  # the folder of the best model in that of a run
CONFIG_MAX_BYTES = 2**20


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
    categories: Sequence[str] | None = None  # of a segmenter, names of the categories that it is told
    drawn_from: str | None = None  # a digest of the shapes from which the training set was drawn, if it was

    def check(self) -> None:
        """Refuse what is not of its type, or was changed by hand."""

        def words(x: Any) -> bool:
            return x is None or (isinstance(x, list | tuple) and all(isinstance(word, str) for word in x))

        points, threshold = self.points, self.threshold
        right = {
            "classes": words(self.classes),
            "categories": words(self.categories),
            "normalisation": isinstance(self.normalisation, str),
            "up": self.up in ("x", "y", "z"),
            "drawn_from": self.drawn_from is None or isinstance(self.drawn_from, str),
            "points": points is None or (type(points) is int and points > 0),
            "threshold": threshold is None or (type(threshold) is float and 0 < threshold < 1),
        }
        for name, fits in right.items():
            if not fits:
                raise ValueError(f"{name} is {str(getattr(self, name))[:60]!r}")


MEANING = tuple(field.name for field in fields(Meaning))


def save(model: Model, folder: str | Path, meaning: Meaning | None = None) -> None:
    """Write the model to a folder, made if need be. What was there is replaced when all is written, and not before.

    Without a `meaning`, a model that was loaded keeps its own.
    """
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as part:
            write(model, Path(part), meaning)
            write_checksums(Path(part), (WEIGHTS, CONFIG))
            for name in (WEIGHTS, CONFIG, CHECKSUMS):
                os.replace(Path(part) / name, folder / name)
        flush(folder)
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def write(model: Model, folder: Path, meaning: Meaning | None = None) -> None:
    """Write the model to a new folder, for somebody who sees to the checksums."""
    from importlib.metadata import version

    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if type(model).__name__ not in MODELS:
        raise StoreError(f"cannot save a {type(model).__name__}: models are {', '.join(MODELS)}")
    known: Meaning = meaning or model.meaning or Meaning()
    try:
        known.check()
    except ValueError as error:
        raise StoreError(f"cannot save the model: its {error}") from error
    config = {
        "format": FORMAT,
        "class": type(model).__name__,
        "arguments": {k: v._asdict() if hasattr(v, "_asdict") else v for k, v in model.arguments.items()},
        "version": version("vector-neurons"),
        **asdict(known),
    }
    described = json.dumps(config, indent=2, default=int) + "\n"  # a number of classes may come from NumPy
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(weights, folder / WEIGHTS)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"{folder / WEIGHTS} cannot be written: {first_line(error)}") from error
    (folder / CONFIG).write_text(described)
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors writes for the user alone


def load(folder: str | Path) -> nn.Module:
    """Build the model saved in a folder, in evaluation mode; `model.meaning` says what its outputs stand for.

    The folder of a run stands for its best model. A file that changed since it was saved is refused.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _model_folder(Path(folder))
    weights = folder / WEIGHTS
    try:
        config = _config(folder)
        if not weights.is_file():
            raise StoreError(f"{folder} has no {WEIGHTS}")
        verify_checksums(folder, (WEIGHTS, CONFIG))
        shapes = _shapes(weights)
    except FileError as error:
        raise StoreError(str(error)) from error
    build = MODELS[config["class"]]
    # A description may be damaged in any way, and then fail in any way.
    try:
        _check_sizes(config["arguments"], len(shapes))
        meaning = Meaning(**{k: config[k] for k in MEANING if k in config})
        meaning.check()
        with torch.device("meta"):  # sizes without memory: what the description asks for may be any size
            planned = {name: tuple(tensor.shape) for name, tensor in build(**config["arguments"]).state_dict().items()}
    except Exception as error:
        raise StoreError(f"{folder / CONFIG} does not describe a {config['class']}: {first_line(error)}") from error
    if different := _difference(planned, shapes):
        raise StoreError(f"{weights} does not fit {CONFIG}: {different}")
    try:
        model, state = build(**config["arguments"]), load_file(weights)
        dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        if len(dtypes) == 1:
            model.to(dtypes.pop())
        model.load_state_dict(state)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise StoreError(f"{weights} is damaged: {first_line(error)}") from error
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


def _model_folder(folder: Path) -> Path:
    """The folder itself, or of a run that of its best model."""
    if not os.path.isdir(folder):
        raise StoreError(f"there is no folder {folder}")
    return folder if (folder / WEIGHTS).exists() or not (folder / BEST).is_dir() else folder / BEST


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise StoreError(f"{folder} holds no model: there is no {CONFIG}")
    config = read_json(path, CONFIG_MAX_BYTES)
    if isinstance(config, dict) and {"task", "recipe"} <= config.keys():
        raise StoreError(f"{folder} is a run that has no best model yet: it is written after the first epoch")
    if not isinstance(config, dict) or "class" not in config or not isinstance(config.get("arguments"), dict):
        raise StoreError(f"{path} describes no model: it names no class and arguments")
    if config.get("format") != FORMAT:
        raise StoreError(f"{path} has format {config.get('format')!r}, this version reads {FORMAT}: update the package")
    if not isinstance(config["class"], str) or config["class"] not in MODELS:
        raise StoreError(f"{path} names an unknown class {config['class']!r}: models are {', '.join(MODELS)}")
    return config


def _shapes(weights: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a file, from its header alone."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(weights)
        with safe_open(weights, "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise StoreError(f"{weights} is damaged: {first_line(error)}") from error


def _check_sizes(arguments: Any, tensors: int) -> None:
    """Refuse more layers than there are tensors: building them could take for ever."""
    if isinstance(arguments, dict):
        for name in ("layers", "blocks"):
            if isinstance(arguments.get(name), int) and arguments[name] > tensors:
                raise ValueError(f"{arguments[name]:,} {name}, but the file has {tensors} tensors")
        arguments = list(arguments.values())
    if isinstance(arguments, list):
        if len(arguments) > max(tensors, 64):
            raise ValueError(f"a list of {len(arguments):,} layers, but the file has {tensors} tensors")
        for value in arguments:
            _check_sizes(value, tensors)


def difference(planned: nn.Module, found: nn.Module) -> str:
    """The first way in which the parameters of two models differ in name or shape, or nothing."""
    return _difference(*({name: tuple(x.shape) for name, x in m.state_dict().items()} for m in (planned, found)))


def _difference(planned: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> str:
    """The first way in which the tensors of a file differ from those of a model, or nothing."""
    for name in sorted(planned.keys() | found.keys()):
        if name not in found:
            return f"it has no {name}"
        if name not in planned:
            return f"the model has no {name}"
        if planned[name] != found[name]:
            return f"{name} is {found[name]}, the model has {planned[name]}"
    return ""
