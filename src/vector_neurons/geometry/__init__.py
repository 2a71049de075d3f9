"""Pure functions on tensors: rotations, neighbours, sampling, inside. Any device, any float dtype."""

from . import inside, neighbours, rotations, sampling

__all__ = ["inside", "neighbours", "rotations", "sampling"]
