"""The folder of a run: its settings in `config.json`, and the rest by name."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from safetensors import SafetensorError

from .._files import FileError, LockedError, first_line, locked, read_json, write_file
from ..models.store import BEST
from .limits import check
from .settings import Settings, SettingsError

CONFIG, LOCK = "config.json", "lock"


class TrainingError(RuntimeError):
    """A training that cannot start or go on; the message is one line."""


def create(folder: Path, settings: Settings) -> None:
    """Start a run in a folder that has none."""
    if (folder / CONFIG).exists():
        raise TrainingError(f"{folder} holds a run already: go on with --resume {folder}, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_settings(folder, settings)


def write_settings(folder: Path, settings: Settings) -> None:
    """Write the settings of a run."""
    write_file(folder / CONFIG, json.dumps(settings.as_dict(), indent=2) + "\n")


def read_settings(folder: Path) -> Settings:
    """The settings of a run."""
    path = folder / CONFIG
    try:
        if not path.exists():
            raise TrainingError(f"{folder} holds no run: there is no {CONFIG}")
        settings = Settings.from_dict(read_json(path))
        check(settings)
        return settings
    except OSError as error:  # permission denied, a name that is too long
        raise TrainingError(f"{path} cannot be read: {first_line(error)}") from error
    except FileError as error:
        raise TrainingError(str(error)) from error
    except SettingsError as error:
        raise TrainingError(f"{path} cannot be used: {error}") from error


def find_run(folder: Path) -> Path:
    """The folder of a run, also by that of its best model."""
    above = folder.resolve().parent if folder.name == BEST else folder
    return above if above != folder and (above / CONFIG).is_file() else folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Work on a run that nobody else works on, in a folder that is made if need be."""
    with ExitStack() as held:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(locked(folder / LOCK, wait=False))
            except LockedError as error:
                raise TrainingError(f"{folder} is in use: {error}") from error
        yield


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say in one line that a folder cannot be written to."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, TrainingError):
            raise
        why = first_line(error)
        raise TrainingError(f"cannot write to {folder}: {why}; checkpoints written before are as they were") from error
