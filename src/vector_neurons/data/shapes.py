"""The embedded data set of procedural objects, with labels, parts, normals and exact occupancy; nothing to download.

Every cloud is seeded by (seed, split, index), so batch composition does not change it. The object itself does not
depend on the number of points and queries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .cloud import Cloud, Dataset
from .families import FAMILIES, Sampler
from .queries import QUERY_CUBE_SCALE
from .solids import Assembly, PointArray

SPLIT_SIZES = {"train": 4200, "val": 420, "test": 840}  # 200, 20 and 40 of each family without twins
NEAR_SIGMA = 0.03  # standard deviation of queries near the surface, relative to the cube of uniform queries


class SampledObject(NamedTuple):
    """One object with surface samples, and the center and radius that normalize it to the unit ball."""

    assembly: Assembly
    points: PointArray
    normals: PointArray
    owner: Int[np.ndarray, " count"]
    center: Float[np.ndarray, "3"]
    radius: float
    rng: np.random.Generator


class Shapes(Dataset):
    """Clouds of procedural objects (tables, mugs, airplanes, hands, ...), z up, in the unit ball, classes in rotation.

    Args:
        split: "train", "val" or "test".
        size: number of clouds; by default 4200, 420 and 840.
        points: points of each cloud.
        queries: query points of each cloud, with their exact occupancy.
        near: fraction of the queries near the surface; the others are uniform in the bounding cube.
        seed: of the whole set.
        families: names of the classes; by default all but the mirror twins.
        mirrors: add the mirror twins (left hand, left stair). An O(3)-invariant network, like VN-DGCNN, which has no
            cross products, cannot tell them from their siblings.

    >>> data = Shapes("train", size=42, points=256, queries=64)
    >>> cloud = data[0]
    >>> data.classes[cloud.label], cloud.points.shape, cloud.occupied.shape
    ('table', torch.Size([256, 3]), torch.Size([64]))
    >>> data.batch(torch.arange(8)).points.shape
    torch.Size([8, 256, 3])
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
        if split not in SPLIT_SIZES:
            raise ValueError(f"shapes has the splits {', '.join(SPLIT_SIZES)}, got {split!r}")
        size = SPLIT_SIZES[split] if size is None else size
        minimums = {"size": (size, 1), "points": (points, 1), "queries": (queries, 0), "seed": (seed, 0)}
        for option, (value, low) in minimums.items():
            if value < low:
                raise ValueError(f"shapes needs {option} >= {low}, got {value}")
        if not 0 <= near <= 1:
            raise ValueError(f"shapes needs a fraction near between 0 and 1, got {near}")
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
        self._part_numbers = [{part: self.parts.index(name) for part, name in names.items()} for names in own]

    def batch(self, indices: Int[Tensor, " batch"]) -> Cloud:
        """Return the clouds of these indices, stacked; each is the same in every batch."""
        return Cloud.stack([self._cloud(int(index)) for index in indices])

    def inside(self, index: int, queries: Float[Tensor, "queries 3"]) -> Bool[Tensor, " queries"]:
        """Test exactly which query points, in the coordinates of a cloud, are inside its object.

        Args:
            index: of the cloud.
            queries: query points.

        Shape:
            - queries: `(Q, 3)`
            - out: `(Q,)`

        >>> Shapes(size=1, points=64).inside(0, torch.tensor([[9.0, 9.0, 9.0]])).tolist()
        [False]
        """
        found = self._sample(index)
        return torch.from_numpy(found.assembly.inside(queries.double().cpu().numpy() * found.radius + found.center))

    def _sample(self, index: int) -> SampledObject:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range: shapes has {len(self)} clouds")
        rng = np.random.default_rng((self.seed, list(SPLIT_SIZES).index(self.split), index))
        assembly = Assembly(FAMILIES[self.classes[index % len(self.classes)]].sample(Sampler(rng)))
        points, normals, owner = assembly.sample(self.points, rng)
        center = points.mean(axis=0)
        radius = float(np.sqrt(((points - center) ** 2).sum(axis=1).max()))
        return SampledObject(assembly, points, normals, owner, center, radius or 1.0, rng)

    def _cloud(self, index: int) -> Cloud:
        found = self._sample(index)
        label = index % len(self.classes)
        part_of_solid = np.array([self._part_numbers[label][solid.part] for solid in found.assembly.solids])
        queries = occupied = None
        if self.queries:
            positions = _sample_queries(found.points, self.queries - self.near, self.near, found.rng)
            occupied = torch.from_numpy(found.assembly.inside(positions))
            queries = torch.from_numpy(((positions - found.center) / found.radius).astype(np.float32))
        return Cloud(
            points=torch.from_numpy(((found.points - found.center) / found.radius).astype(np.float32)),
            normals=torch.from_numpy(found.normals.astype(np.float32)),
            label=torch.tensor(label),
            parts=torch.from_numpy(part_of_solid[found.owner]),
            queries=queries,
            occupied=occupied,
        )


def _sample_queries(
    points: PointArray, uniform: int, near: int, rng: np.random.Generator
) -> Float[np.ndarray, "queries 3"]:
    """Sample query points uniformly in the scaled bounding cube, and near the surface."""
    low, high = points.min(axis=0), points.max(axis=0)
    side = float((high - low).max()) * QUERY_CUBE_SCALE
    anywhere = (low + high) / 2 + side * (rng.random((uniform, 3)) - 0.5)
    surface = points[rng.integers(len(points), size=near)]
    return np.concatenate([anywhere, surface + NEAR_SIGMA * side * rng.standard_normal(surface.shape)])
