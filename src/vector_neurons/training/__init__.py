"""Training and testing: one loop, runs that survive being stopped, one process or many."""

from . import results, surfaces, tables, world
from .checkpoint import CheckpointError
from .limits import check
from .loop import Progress, StoppedError, evaluate, fit, measure, report
from .run import TrainingError, find_run, read_settings
from .settings import Clouds, Machine, Network, Protocol, Recipe, Settings, SettingsError
from .world import World, joined

__all__ = [
    "CheckpointError",
    "Clouds",
    "Machine",
    "Network",
    "Progress",
    "Protocol",
    "Recipe",
    "Settings",
    "SettingsError",
    "StoppedError",
    "TrainingError",
    "World",
    "check",
    "evaluate",
    "find_run",
    "fit",
    "joined",
    "measure",
    "read_settings",
    "report",
    "results",
    "surfaces",
    "tables",
    "world",
]
