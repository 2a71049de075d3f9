"""The families of `shapes`: one function samples the dimensions of one object and returns its solids, z up.

Families vary widely, so that they overlap in size and proportion. Some differ in one detail (mug and cup, hammer and
axe, table, bench and stool), some only by a reflection: the left hand and the left stair.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ..solids import Solid, mirrored
from . import furniture, machines, tools, vessels
from .sampler import Sampler


@dataclass(frozen=True)
class Family:
    """A kind of object.

    Attributes:
        make: samples an object.
        parts: names of its parts.
        twin: whether it is the mirror image of another family.
    """

    make: Callable[[Sampler], list[Solid]]
    parts: tuple[str, ...]
    twin: bool = False

    def sample(self, rng: Sampler) -> list[Solid]:
        """Return the solids of one object; a twin is made like its sibling, then mirrored."""
        return mirrored(self.make(rng)) if self.twin else self.make(rng)

    @property
    def part_names(self) -> dict[str, str]:
        """Names of the parts in the data set, as `chair back`. Twins share those of their siblings."""
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

__all__ = ["FAMILIES", "Family", "Sampler"]
