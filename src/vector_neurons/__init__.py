"""Rotation-equivariant neural networks for point clouds, in PyTorch (vector neurons, Deng et al., ICCV 2021).

`import vector_neurons as vn` gives the layers (`vn.Linear`, `vn.Block`, `vn.EdgeConv`, `vn.Invariant`, …), the graph
(`vn.knn`), `vn.KITS` for networks written once for vector and scalar neurons, the networks (`vn.models`), and
`vn.save`, `vn.load`, `vn.pretrained` and `vn.predict` for trained ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import geometry, kernels, models, nn, testing, typing
from .geometry.neighbors import knn
from .models.store import load, pretrained, save
from .nn import KITS
from .nn.vector import *  # noqa: F403 - the layers, as listed in its __all__

if TYPE_CHECKING:
    from .inference import predict

__version__ = "0.1.0"
LAZY = ("compat", "data", "inference", "mesh", "tasks", "training", "viz")  # imported on first use


def __getattr__(name: str) -> Any:
    """`vn.data`, `vn.mesh`, `vn.tasks` and so on, and `vn.predict`, imported when they are first used."""
    if name in LAZY:
        return import_module(f".{name}", __name__)
    if name == "predict":
        return import_module(".inference", __name__).predict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *LAZY, *(name for name in globals() if name.startswith("__"))})


__all__ = ["KITS", "geometry", "kernels", "knn", "load", "models", "nn", "predict", "pretrained", "save", "testing"]
__all__ += ["typing"]
__all__ += nn.vector.__all__
