"""The folder of a run: its configuration in `config.json`, its lock, and errors of writing to it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError

from .._files import FileError, LockedError, first_line, locked, read_json, write_file
from ..models.store import BEST, WEIGHTS
from .config import RunConfig
from .errors import ConfigError, TrainingError
from .rules import check
from .user_network import in_run, keep_source, relative_to_run

CONFIG, LOCK = "config.json", "lock"


def create(folder: Path, config: RunConfig) -> None:
    """Start a run in a folder that has none; a network of the user's own is copied into it."""
    if (folder / CONFIG).exists():
        raise TrainingError(f"{folder} already holds a run: resume it with --resume {folder}, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    keep_source(config.network.model, folder)
    write_config(folder, config)


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the configuration of a run."""
    recorded = replace(config, network=replace(config.network, model=relative_to_run(config.network.model)))
    write_file(folder / CONFIG, json.dumps(recorded.as_dict(), indent=2) + "\n")


def read_config(folder: Path) -> RunConfig:
    """Read the configuration of a run and check its values; no code is executed.

    The file of a user's network is imported when the network is built.
    """
    path = folder / CONFIG
    try:
        if not path.exists():
            raise TrainingError(f"{folder} holds no run: {CONFIG} is missing")
        if (folder / WEIGHTS).exists():
            raise TrainingError(f"{folder} is a saved model: give the folder of a training run")
        config = use_copy(RunConfig.from_dict(read_json(path)), folder)
        check(config, execute=False)
        return config
    except OSError as error:  # permission denied, a name that is too long
        raise TrainingError(f"{path} cannot be read: {first_line(error)}") from error
    except FileError as error:
        raise TrainingError(str(error)) from error
    except ConfigError as error:
        raise TrainingError(f"{path} cannot be used: {error}") from error


def use_copy(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration with the user's network, if it has one, read from the copy in the folder of the run."""
    return replace(config, network=replace(config.network, model=in_run(config.network.model, folder)))


def find_run(folder: Path) -> Path:
    """The folder of a run, also by that of its best model."""
    above = folder.resolve().parent if folder.name == BEST else folder
    return above if above != folder and (above / CONFIG).is_file() else folder


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a run, in a folder that is created if necessary."""
    with ExitStack() as held:
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(locked(folder / LOCK, wait=False))
            except LockedError as error:
                raise TrainingError(f"{folder} is in use: {error}") from error
        yield


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Turn errors of writing to a folder into one line."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, TrainingError):
            raise
        why = first_line(error)
        raise TrainingError(f"cannot write to {folder}: {why}; checkpoints written before are as they were") from error
