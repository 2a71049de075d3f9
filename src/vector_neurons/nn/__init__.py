"""Layers: `vector`, `scalar` and `hybrid` hold the same names; `functional` one function per equation of the paper."""

from types import ModuleType

from ..typing import Neurons
from . import functional, hybrid, scalar, vector
from ._range import RangeError
from .pose import PoseHead

KITS: dict[Neurons, ModuleType] = {"vector": vector, "scalar": scalar, "hybrid": hybrid}

__all__ = ["KITS", "PoseHead", "RangeError", "functional", "hybrid", "scalar", "vector"]
