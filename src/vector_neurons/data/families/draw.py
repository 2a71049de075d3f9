"""Random numbers for families, in plain Python."""

import math

import numpy as np

from ..solids import Place, Real


class Draw:
    """`draw(low, high)` is uniform, `draw.count(low, high)` a whole number, `draw.chance(p)` true this often."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._random = rng.random

    def __call__(self, low: Real, high: Real) -> float:
        """A number, uniform between the two."""
        return low + (high - low) * self._random()

    def count(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return low + int((high - low + 1) * self._random())

    def chance(self, probability: Real) -> bool:
        """True with this probability."""
        return self._random() < probability


def polar(radius: Real, angle: Real, z: Real = 0) -> Place:
    """A place at this distance from the vertical axis."""
    return radius * math.cos(angle), radius * math.sin(angle), z


def circle(count: int, start: Real = 0) -> list[float]:
    """Angles, evenly spread."""
    return [start + 2 * math.pi * i / count for i in range(count)]
