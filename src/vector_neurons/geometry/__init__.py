"""Pure functions on tensors: rotations, neighbours, sampling. Any device, any float dtype."""

from . import neighbours, rotations, sampling

__all__ = ["neighbours", "rotations", "sampling"]
