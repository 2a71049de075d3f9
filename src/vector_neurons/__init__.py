"""Vector neurons: SO(3)-equivariant networks on PyTorch (Deng et al., ICCV 2021).

`import vector_neurons as vn` gives the layers (`vn.Linear`, `vn.Block`, `vn.EdgeConv`, `vn.Invariant`, …), the graph
(`vn.knn`), `vn.KITS`, which lets a network be written once for vector and for scalar neurons, the networks
(`vn.models`), `vn.load`, which reads a saved one, and `vn.pretrained`, which has learned already.
"""

from importlib import import_module
from types import ModuleType

from . import geometry, kernels, models, nn, testing, typing
from .geometry.neighbours import knn
from .models.store import load, pretrained
from .nn import KITS
from .nn.vector import (
    MLP,
    Activation,
    BatchNorm,
    Block,
    Dropout,
    EdgeConv,
    InstanceNorm,
    Invariant,
    LayerNorm,
    LeakyReLU,
    Linear,
    MaxPool,
    MeanPool,
    center,
    lift,
    width,
)

__version__ = "0.1.0"
LAZY = ("compat", "data", "mesh", "tasks", "training", "viz")  # what a network of one's own does without


def __getattr__(name: str) -> ModuleType:
    """`vn.data`, `vn.mesh`, `vn.tasks` and so on, imported when they are first used."""
    if name in LAZY:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *LAZY})


__all__ = [
    "KITS",
    "MLP",
    "Activation",
    "BatchNorm",
    "Block",
    "Dropout",
    "EdgeConv",
    "InstanceNorm",
    "Invariant",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "MaxPool",
    "MeanPool",
    "center",
    "geometry",
    "kernels",
    "knn",
    "lift",
    "load",
    "models",
    "nn",
    "pretrained",
    "testing",
    "typing",
    "width",
]
