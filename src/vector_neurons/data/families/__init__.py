"""The families of `shapes`: one function draws the measures of one object and returns its solids, z up.

Wide variation makes families overlap in size and proportion. Some differ in one detail (mug and cup, hammer and axe,
table, bench and stool), some only by a mirror: the left hand and the left stair.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..solids import Solid, mirrored
from . import furniture, machines, tools, vessels
from .draw import Draw


@dataclass(frozen=True)
class Family:
    """How an object of a family is made, and what its parts are called."""

    make: Callable[[Draw], list[Solid]]
    parts: tuple[str, ...]
    twin: bool = False

    def build(self, draw: Draw) -> list[Solid]:
        """The solids of one object; a twin is made like its sibling, then mirrored."""
        return mirrored(self.make(draw)) if self.twin else self.make(draw)

    @property
    def part_names(self) -> dict[str, str]:
        """What the data set calls each part: `chair back`. Twins share those of their siblings."""
        return {part: f"{self.make.__name__} {part}" for part in self.parts}


FAMILIES = {
    "table": Family(furniture.table, ("top", "leg")),
    "stool": Family(furniture.stool, ("seat", "leg")),
    "bench": Family(furniture.bench, ("seat", "leg")),
    "chair": Family(furniture.chair, ("seat", "back", "leg", "arm")),
    "bed": Family(furniture.bed, ("mattress", "frame")),
    "bookshelf": Family(furniture.bookshelf, ("frame", "board")),
    "lamp": Family(furniture.lamp, ("shade", "pole", "base")),
    "mug": Family(vessels.mug, ("body", "handle")),
    "cup": Family(vessels.cup, ("body",)),
    "bottle": Family(vessels.bottle, ("body", "neck")),
    "vase": Family(vessels.vase, ("body",)),
    "plant": Family(vessels.plant, ("pot", "stem", "leaf")),
    "airplane": Family(machines.airplane, ("fuselage", "wing", "tail", "engine")),
    "helicopter": Family(machines.helicopter, ("body", "rotor", "tail", "skid")),
    "rocket": Family(machines.rocket, ("body", "nose", "fin")),
    "car": Family(machines.car, ("body", "cabin", "wheel")),
    "guitar": Family(tools.guitar, ("body", "neck")),
    "hammer": Family(tools.hammer, ("handle", "head")),
    "axe": Family(tools.axe, ("handle", "blade")),
    "right hand": Family(tools.hand, ("palm", "finger")),
    "right stair": Family(tools.stair, ("pole", "step")),
    "left hand": Family(tools.hand, ("palm", "finger"), twin=True),
    "left stair": Family(tools.stair, ("pole", "step"), twin=True),
}

__all__ = ["FAMILIES", "Draw", "Family"]
