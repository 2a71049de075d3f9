"""Pure functions on tensors: rotations, neighbors, sampling, inside, segments. Any device, any float dtype."""

from . import inside, neighbors, query, rotations, sampling, scale, segments

__all__ = ["inside", "neighbors", "query", "rotations", "sampling", "scale", "segments"]
