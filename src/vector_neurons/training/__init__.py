"""Training and testing: one loop, resumable runs, one process or many."""

from . import distributed, mesh_metrics, results, tables
from .config import DataConfig, NetworkConfig, ProtocolConfig, RecipeConfig, RunConfig, RuntimeConfig
from .distributed import ProcessGroup, process_group
from .errors import ConfigError, ResumeError, StoppedError, TrainingError
from .evaluation import compute_metrics, evaluate, measure
from .loop import Progress, fit
from .rules import check
from .run import find_run, read_config

__all__ = [
    "ConfigError",
    "DataConfig",
    "NetworkConfig",
    "ProcessGroup",
    "Progress",
    "ProtocolConfig",
    "RecipeConfig",
    "ResumeError",
    "RunConfig",
    "RuntimeConfig",
    "StoppedError",
    "TrainingError",
    "check",
    "compute_metrics",
    "distributed",
    "evaluate",
    "find_run",
    "fit",
    "measure",
    "mesh_metrics",
    "process_group",
    "read_config",
    "results",
    "tables",
]
