"""The embedded set: procedural objects with labels, parts, normals and exact occupancy. No download.

    from vector_neurons.data import shapes
    train = shapes.Shapes("train", size=2100, points=1024, queries=512)

Every cloud is a function of (seed, split, index) and of the options, whatever batch it is asked for in.
The object itself does not depend on how many points and queries are wanted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .cloud import Cloud, Dataset
from .families import FAMILIES, Draw
from .solids import Assembly, Rows

SPLITS = {"train": 4200, "val": 420, "test": 840}  # and their sizes, 200, 20 and 40 of each family without twins
PADDING = 0.1  # of the bounding cube, on all sides together, as occupancy networks are trained
NEAR = 0.03  # how far queries near the surface stray, in sides of that cube


class Made(NamedTuple):
    """One object: in its own measures, with what takes it into the unit ball."""

    assembly: Assembly
    points: Rows
    normals: Rows
    owner: Int[np.ndarray, " count"]
    centre: Float[np.ndarray, "3"]
    radius: float
    rng: np.random.Generator


class Shapes(Dataset):
    """Clouds of man-made and natural objects, z up, in the unit ball, the classes in turn.

    `queries` asks for as many places with their occupancy: a share `near` of them near the surface, the others anywhere
    in the bounding cube.
    `families` picks some of `FAMILIES` by name. By default all but the mirror twins: to a network without cross
    products, O(3)-invariant like VN-DGCNN, a left hand *is* a right hand. `mirrors=True` adds the twins.
    """

    name = "shapes"
    parts_of: Tensor

    def __init__(
        self,
        split: str = "train",
        *,
        size: int | None = None,
        points: int = 1024,
        queries: int = 0,
        near: float = 0.5,
        seed: int = 0,
        families: Sequence[str] | None = None,
        mirrors: bool = False,
    ) -> None:
        if split not in SPLITS:
            raise ValueError(f"shapes has the splits {', '.join(SPLITS)}, got {split!r}")
        size = SPLITS[split] if size is None else size
        least = {"size": (size, 1), "points": (points, 1), "queries": (queries, 0), "seed": (seed, 0)}
        for option, (value, low) in least.items():
            if value < low:
                raise ValueError(f"shapes needs {option} >= {low}, got {value}")
        if not 0 <= near <= 1:
            raise ValueError(f"shapes needs a share near between 0 and 1, got {near}")
        if families is None:
            families = [name for name, family in FAMILIES.items() if mirrors or not family.twin]
        if unknown := [name for name in families if name not in FAMILIES]:
            raise ValueError(f"shapes has no family {unknown[0]!r}; it has {', '.join(FAMILIES)}")
        if not families or len(set(families)) < len(families):
            raise ValueError(f"shapes needs one or more different families, got {', '.join(families) or 'none'}")
        self.split, self.points, self.queries, self.seed = split, points, queries, seed
        self.near = int(near * queries)
        self.classes = tuple(families)
        own = [FAMILIES[name].part_names for name in families]
        self.parts = tuple(dict.fromkeys(part for names in own for part in names.values()))
        self.labels = torch.arange(size) % len(families)
        self.parts_of = torch.tensor([[part in names.values() for part in self.parts] for names in own])
        self._numbers = [{part: self.parts.index(name) for part, name in names.items()} for names in own]

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """The clouds of these indices, stacked; each is the same whatever stands beside it."""
        return Cloud.stack([self._cloud(int(index)) for index in indices])

    def inside(self, index: int, places: Float[Tensor, "places 3"]) -> Bool[Tensor, " places"]:
        """Which places lie inside this cloud's object, in the coordinates of its points? Exact, for any place."""
        made = self._make(index)
        return torch.from_numpy(made.assembly.inside(places.double().cpu().numpy() * made.radius + made.centre))

    def _make(self, index: int) -> Made:
        if not 0 <= index < len(self):
            raise IndexError(f"shapes has {len(self)} clouds, asked for number {index}")
        rng = np.random.default_rng((self.seed, list(SPLITS).index(self.split), index))
        assembly = Assembly(FAMILIES[self.classes[index % len(self.classes)]].build(Draw(rng)))
        points, normals, owner = assembly.sample(self.points, rng)
        centre = points.mean(axis=0)
        radius = float(np.sqrt(((points - centre) ** 2).sum(axis=1).max()))
        return Made(assembly, points, normals, owner, centre, radius or 1.0, rng)

    def _cloud(self, index: int) -> Cloud:
        made = self._make(index)
        label = index % len(self.classes)
        part_of_solid = np.array([self._numbers[label][solid.part] for solid in made.assembly.solids])
        queries = occupied = None
        if self.queries:
            places = _places(made.points, self.queries - self.near, self.near, made.rng)
            occupied = torch.from_numpy(made.assembly.inside(places))
            queries = torch.from_numpy(((places - made.centre) / made.radius).astype(np.float32))
        return Cloud(
            points=torch.from_numpy(((made.points - made.centre) / made.radius).astype(np.float32)),
            normals=torch.from_numpy(made.normals.astype(np.float32)),
            label=torch.tensor(label),
            parts=torch.from_numpy(part_of_solid[made.owner]),
            queries=queries,
            occupied=occupied,
        )


def _places(points: Rows, anywhere: int, near: int, rng: np.random.Generator) -> Float[np.ndarray, "places 3"]:
    """Where to ask for occupancy: anywhere in the padded bounding cube, and near the surface."""
    low, high = points.min(axis=0), points.max(axis=0)
    side = float((high - low).max()) * (1 + PADDING)
    uniform = (low + high) / 2 + side * (rng.random((anywhere, 3)) - 0.5)
    on = points[rng.integers(len(points), size=near)]
    return np.concatenate([uniform, on + NEAR * side * rng.standard_normal(on.shape)])
