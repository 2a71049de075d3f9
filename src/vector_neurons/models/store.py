"""A model in a folder: `model.safetensors` (weights), `config.json` (how to build it, and what its outputs mean), and
`checksums.json` (which `load` verifies); of a calibrated classifier also `calibration.json`. Nothing in the folder is
executed."""

import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

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
from .calibration import Calibration
from .metadata import Metadata, Origin, metadata_of, origin_of, record
from .occupancy import OccupancyModel

FORMAT = 2
WEIGHTS, CONFIG, CALIBRATION = "model.safetensors", "config.json", "calibration.json"
PRETRAINED = Path(__file__).parents[1] / "pretrained"
BEST = "best"  # the folder of the best model in that of a run
CONFIG_MAX_BYTES = 2**20
CONVERT = "convert it with benchmarks/rename_settings.py of the repository"
UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)

M = TypeVar("M", bound=nn.Module)


class StoreError(ValueError):
    """A folder without a usable model, or a model that cannot be saved; the message is one line."""


def save(
    model: nn.Module, folder: str | Path, metadata: Metadata | None = None, calibration: Calibration | None = None
) -> None:
    """Save a network to a folder, from which `vn.load` rebuilds it.

    Files already there are replaced when all new ones are written, and not before.

    Args:
        model: a network of this library, or of your own if it derives from `vn.models.Model`.
        folder: is created if missing.
        metadata: what its outputs stand for; by default what it was loaded with.
        calibration: of these very weights, for `vn.predict`; that of a loaded model is not saved again by itself, since
            the weights may have been trained further.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     vn.save(vn.models.PointNet(10, embedding=24), folder)
    ...     print(vn.load(folder).arguments["classes"])
    10
    """
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as part:
            write(model, Path(part), metadata)
            if calibration is not None:
                (Path(part) / CALIBRATION).write_text(json.dumps(asdict(calibration)) + "\n")
            names = sorted(file.name for file in Path(part).iterdir())
            write_checksums(Path(part), names)
            for name in (*names, CHECKSUMS):
                os.replace(Path(part) / name, folder / name)
            if calibration is None:
                (folder / CALIBRATION).unlink(missing_ok=True)  # of the model that was there
        flush(folder)
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def write(model: nn.Module, folder: Path, metadata: Metadata | None = None) -> None:
    """Write the files of a model to a new folder, without checksums."""
    from importlib.metadata import version

    from safetensors import SafetensorError
    from safetensors.torch import save_file

    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        model = model.module
    name, origin = type(model).__name__, origin_of(model)
    if origin is None:
        raise StoreError(f"cannot save a {name}: derive it from vector_neurons.models.Model, not torch.nn.Module")
    if unnamed := [p.name for p in inspect.signature(type(model).__init__).parameters.values() if p.kind in UNNAMED]:
        raise StoreError(f"cannot save a {name}: name the parameters of its constructor, without * or / ({unnamed[0]})")
    state = model.state_dict()
    if extra := [key for key, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise StoreError(f"cannot save a {name}: its state has more than tensors ({extra[0]}); use buffers")
    metadata = metadata or origin.metadata or Metadata()
    if not isinstance(metadata, Metadata):
        raise StoreError(f"metadata must be a vector_neurons.models.Metadata, got a {type(metadata).__name__}")
    try:
        metadata.check()
    except ValueError as error:
        raise StoreError(f"cannot save the model: its {error}") from error
    config = {
        "format": FORMAT,
        "class": origin.reference,
        "arguments": _plain(origin.arguments),
        "version": version("vector-neurons"),
        **asdict(metadata),
    }
    try:
        text = json.dumps(config, indent=2, default=_integer) + "\n"
    except TypeError as error:
        raise StoreError(
            f"cannot save a {name}: an argument of its constructor is not a number, string, list, dict "
            f"or None ({first_line(error)})"
        ) from error
    # Copies: safetensors refuses tied weights.
    weights = {name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in state.items()}
    try:
        save_file(weights, folder / WEIGHTS)
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(f"{folder / WEIGHTS} cannot be written: {first_line(error)}") from error
    (folder / CONFIG).write_text(text)
    shutil.copymode(folder / CONFIG, folder / WEIGHTS)  # safetensors writes for the user alone


def _plain(value: Any) -> Any:
    """Named tuples and dataclasses as dicts, for JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "_asdict"):
        return value._asdict()
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _integer(value: Any) -> int:
    """NumPy's integers, such as a number of classes."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{type(value).__name__} is not JSON serializable")
    return int(value)


@overload
def load(folder: str | Path, model: None = None) -> Model: ...
@overload
def load(folder: str | Path, model: type[M]) -> M: ...
@overload
def load(folder: str | Path, model: type[nn.Module] | None) -> nn.Module: ...
def load(folder: str | Path, model: type[nn.Module] | None = None) -> nn.Module:
    """Load a network saved by `vn.save` or `vn train`, in evaluation mode; no code of the folder is executed.

    Args:
        folder: of a model, or of a training run, for its best model. A file that changed since it was saved is refused.
        model: the class of the network, for a network of your own; it may be left out if the class has been imported.

    `model.metadata` of the result says what its outputs stand for.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     vn.save(vn.models.PointNet(10, embedding=24), folder)
    ...     type(vn.load(folder)).__name__
    'PointNet'
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = _model_folder(Path(folder))
    weights = folder / WEIGHTS
    try:
        config = _config(folder)
        if not weights.is_file():
            raise StoreError(f"{folder} has no {WEIGHTS}")
        calibrated = (folder / CALIBRATION).exists()
        verify_checksums(folder, (WEIGHTS, CONFIG, *([CALIBRATION] if calibrated else [])))
        shapes = _shapes(weights)
    except FileError as error:
        raise StoreError(str(error)) from error
    build = _class_of(config["class"], model, folder)
    # A damaged config may fail in any way.
    try:
        _check_sizes(config["arguments"], len(shapes))
        metadata = Metadata(**{field.name: config[field.name] for field in fields(Metadata) if field.name in config})
        metadata.check()
        # A damaged config may ask for any size, so sizes come without memory. A user's network need not build there.
        with torch.device("meta" if build in MODELS.values() else "cpu"):
            loaded = build(**config["arguments"])
        planned = {name: tuple(tensor.shape) for name, tensor in loaded.state_dict().items()}
    except Exception as error:
        raise StoreError(f"{folder / CONFIG} does not describe a {config['class']}: {first_line(error)}") from error
    if different := _difference(planned, shapes):
        raise StoreError(f"{weights} does not fit {CONFIG}: {different}")
    try:
        loaded = build(**config["arguments"]) if build in MODELS.values() else loaded
        state = load_file(weights)
        dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        if len(dtypes) == 1:
            loaded.to(dtypes.pop())
        loaded.load_state_dict(state)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise StoreError(f"{weights} is damaged: {first_line(error)}") from error
    if isinstance(loaded, Model):
        loaded.metadata = metadata
        loaded.calibration = _calibration(folder, metadata) if calibrated else None
    else:
        record(loaded, Origin(config["class"], config["arguments"], metadata))
    return loaded.eval()


def _calibration(folder: Path, metadata: Metadata) -> Calibration:
    path = folder / CALIBRATION
    try:
        calibration = Calibration(**read_json(path, CONFIG_MAX_BYTES))
        calibration.check(len(metadata.classes or ()))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} is not a calibration: {first_line(error)}") from error
    return calibration


def _class_of(reference: str, given: type[nn.Module] | None, folder: Path) -> type[nn.Module]:
    """The class of a saved model: of this library, given by the user, or of this name among the imported ones."""
    module, _, name = reference.rpartition(":")  # my_module:MyNet, and my_file.py:MyNet of vn train
    if given is not None:
        if given.__name__ != name:
            raise StoreError(f"{folder} holds a {name}, not a {given.__name__}")
        return given
    if not module and name in MODELS:
        return MODELS[name]
    found = [cls for cls in _subclasses(Model) if cls.__name__ == name and cls not in MODELS.values()]
    # A notebook cell that ran twice leaves a class behind that its module does not hold anymore.
    current = [cls for cls in found if getattr(sys.modules.get(cls.__module__), name, None) is cls] or found
    own = [cls for cls in current if cls.__module__ == module] or current
    if len(own) != 1:
        problem = "several imported classes have this name" if own else "it is not a network of this library"
        raise StoreError(f"{folder} holds a {name}: {problem}; pass its class: vn.load(folder, {name})")
    return own[0]


def _subclasses(cls: type[Model]) -> Iterator[type[Model]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _subclasses(derived)


@overload
def pretrained(name: Literal["reconstruction"]) -> OccupancyModel: ...
@overload
def pretrained(name: str) -> Model: ...
def pretrained(name: str) -> Model:
    """Load a trained network that comes with the package, in float32 and evaluation mode.

    Args:
        name: `"classification"` names ModelNet40's 40 classes, `"segmentation"` the parts of ShapeNet-Part's 16
            categories, `"reconstruction"` is an occupancy network trained on scanned household objects.

    >>> vn.pretrained("reconstruction").metadata.points
    3000
    """
    if name not in pretrained_names():
        raise StoreError(f"unknown pretrained model {name!r}: choose {' or '.join(pretrained_names())}")
    return load(PRETRAINED / name).float()


def pretrained_names() -> list[str]:
    """Names of the trained networks that come with the package."""
    return sorted(config.parent.name for config in PRETRAINED.glob(f"*/{CONFIG}"))


def _model_folder(folder: Path) -> Path:
    """The folder itself, or of a run that of its best model."""
    if not os.path.isdir(folder):
        raise StoreError(f"there is no folder {folder}")
    return folder if (folder / WEIGHTS).exists() or not (folder / BEST).is_dir() else folder / BEST


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.exists():
        raise StoreError(f"{folder} is not a saved model: it has no {CONFIG}")
    config = read_json(path, CONFIG_MAX_BYTES)
    if isinstance(config, dict) and {"task", "recipe"} <= config.keys():
        raise StoreError(f"{folder} is a run without a best model yet: it is written after the first epoch")
    if not isinstance(config, dict) or "class" not in config or not isinstance(config.get("arguments"), dict):
        raise StoreError(f"{path} is not the config of a model: it has no class and arguments")
    if config.get("format") != FORMAT:
        advice = CONVERT if config.get("format") == 1 else "update the package"
        raise StoreError(f"{path} has format {config.get('format')!r}, this version reads {FORMAT}: {advice}")
    if not isinstance(config["class"], str):
        raise StoreError(f"{path} names an unknown class {config['class']!r}")
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
    """Refuse more layers than there are tensors: building them could take forever."""
    if isinstance(arguments, dict):
        for name in ("depth", "blocks"):
            if isinstance(arguments.get(name), int) and arguments[name] > tensors:
                raise ValueError(f"{name} is {arguments[name]:,}, but the file has {tensors} tensors")
        arguments = list(arguments.values())
    if isinstance(arguments, list):
        if len(arguments) > max(tensors, 64):
            raise ValueError(f"a list of {len(arguments):,} layers, but the file has {tensors} tensors")
        for value in arguments:
            _check_sizes(value, tensors)


def difference(planned: nn.Module, found: nn.Module) -> str:
    """The first difference between the parameters of two models, in name or shape; empty if there is none."""
    return _difference(*({name: tuple(x.shape) for name, x in m.state_dict().items()} for m in (planned, found)))


def _difference(planned: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> str:
    for name in sorted(planned.keys() | found.keys()):
        if name not in found:
            return f"it has no {name}"
        if name not in planned:
            return f"the model has no {name}"
        if planned[name] != found[name]:
            return f"{name} is {found[name]}, the model has {planned[name]}"
    return ""


__all__ = [
    "Metadata",
    "Origin",
    "StoreError",
    "difference",
    "load",
    "metadata_of",
    "origin_of",
    "pretrained",
    "pretrained_names",
    "record",
    "save",
    "write",
]
