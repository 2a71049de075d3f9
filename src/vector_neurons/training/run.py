"""The folder of a run: its settings in `config.json`, and the rest by name."""

import json
from pathlib import Path

from .checkpoint import write_file
from .settings import Settings, SettingsError

CONFIG = "config.json"


class TrainingError(RuntimeError):
    """A training that cannot start or go on; the message is one line."""


def create(folder: Path, settings: Settings) -> None:
    """Start a run in a folder that has none."""
    if (folder / CONFIG).exists():
        raise TrainingError(f"{folder} holds a run already: go on with --resume {folder}, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / CONFIG, json.dumps(settings.as_dict(), indent=2) + "\n")


def read_settings(folder: Path) -> Settings:
    """The settings of a run."""
    path = folder / CONFIG
    if not path.is_file():
        raise TrainingError(f"{folder} holds no run: there is no {CONFIG}")
    try:
        return Settings.from_dict(json.loads(path.read_text()))
    except (json.JSONDecodeError, UnicodeDecodeError, SettingsError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
