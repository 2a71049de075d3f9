"""Layers: `vector` and `scalar` hold the same names; `functional` one function per equation of the paper."""

from types import ModuleType

from ..typing import Neurons
from . import functional, scalar, vector

KITS: dict[Neurons, ModuleType] = {"vector": vector, "scalar": scalar}

__all__ = ["KITS", "functional", "scalar", "vector"]
