"""Random dimensions of objects, in plain Python numbers."""

import math

import numpy as np

from ..solids import Point, Real


class Sampler:
    """Scalar random numbers from a NumPy generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._random = rng.random

    def uniform(self, low: Real, high: Real) -> float:
        """Return a number, uniform between the two."""
        return low + (high - low) * self._random()

    def integer(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return low + int((high - low + 1) * self._random())

    def boolean(self, probability: Real) -> bool:
        """Return True with this probability."""
        return self._random() < probability


def polar(radius: Real, angle: Real, z: Real = 0) -> Point:
    """Return a point at this distance from the vertical axis."""
    return radius * math.cos(angle), radius * math.sin(angle), z


def circle(count: int, start: Real = 0) -> list[float]:
    """Return evenly spaced angles."""
    return [start + 2 * math.pi * i / count for i in range(count)]
