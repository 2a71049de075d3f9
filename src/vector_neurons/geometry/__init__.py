"""Pure functions on tensors: rotations, neighbors, sampling, inside. Any device, any float dtype."""

from . import inside, neighbors, query, rotations, sampling, scale

__all__ = ["inside", "neighbors", "query", "rotations", "sampling", "scale"]
