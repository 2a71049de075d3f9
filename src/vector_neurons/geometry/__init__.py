"""Pure functions on tensors: rotations, neighbors, sampling, inside. Any device, any float dtype."""

from . import inside, neighbors, rotations, sampling, scale

__all__ = ["inside", "neighbors", "rotations", "sampling", "scale"]
