"""Triangles of polygons: fans, and for concave polygons, which a fan would leave, ears."""

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .mesh import MeshError

Array = NDArray[Any]
CHUNK = 1024  # polygons at once, for bounded memory
FLIPPED = -1e-6  # a triangle of a fan that points back by this part of the polygon's area or more leaves it


class Fans(NamedTuple):
    """Polygons as fans of triangles around their first corners, and the number of corners of each polygon."""

    triangles: NDArray[np.int64]
    corners: NDArray[np.int64]

    def place(self, points: Array) -> NDArray[np.int64]:
        """Triangles of the polygons with their vertices at these points: concave ones are cut into ears instead."""
        triangles = self.triangles
        if not len(triangles) or triangles.min() < 0 or triangles.max() >= len(points):  # reported by `check_mesh`
            return triangles
        start = 0
        for some in np.split(self.corners, range(CHUNK, len(self.corners), CHUNK)):
            first = start + np.cumsum(some - 2) - (some - 2)
            start = first[-1] + some[-1] - 2
            for count in np.unique(some[some > 3]):
                rows = first[some == count, None] + np.arange(count - 2)
                polygons = np.concatenate([triangles[rows[:, 0], :2], triangles[rows, 2]], axis=1)
                for i in np.flatnonzero(_concave(points, polygons)):
                    triangles[rows[i]] = polygons[i][clip_ears(_flat(points[polygons[i]].astype(np.float64)))]
        return triangles


def triangulate(corners: NDArray[np.int64]) -> Fans:
    """Split polygons `(polygons, corners)` into fans of triangles, in the order of the polygons."""
    count = corners.shape[1]
    if len(corners) and count < 3:
        raise MeshError(f"is damaged: a face has {count} corners")
    first = np.broadcast_to(corners[:, :1], (len(corners), max(count - 2, 0)))
    fans = np.stack([first, corners[:, 1:-1], corners[:, 2:]], axis=-1).reshape(-1, 3)
    return Fans(fans, np.full(len(corners), count, dtype=np.int64))


def triangulate_mixed(polygons: Iterable[Sequence[int]]) -> Fans:
    """Split polygons with different numbers of corners into fans of triangles."""
    triangles, counts = array("q"), array("q")
    for number, corners in enumerate(polygons, 1):
        if len(corners) < 3:
            raise MeshError(f"is damaged: face {number:,} has {len(corners)} corners")
        counts.append(len(corners))
        for b, c in pairwise(corners[1:]):
            triangles.extend((corners[0], b, c))
    return Fans(np.array(triangles, dtype=np.int64).reshape(-1, 3), np.array(counts, dtype=np.int64))


def clip_ears(polygon: Array) -> list[tuple[int, int, int]]:
    """Triangles of a simple polygon `(corners, 2)` in counter-clockwise order, by cutting off one ear after the other.

    >>> clip_ears(np.array([[0, 0], [2, -1], [1, 0], [2, 1]]))  # an arrowhead: 0-2 is inside, 1-3 is not
    [(0, 1, 2), (0, 2, 3)]
    """
    left, ears = list(range(len(polygon))), []
    while len(left) > 3:
        at = next((i for i in range(len(left)) if _is_ear(polygon, left, i)), None)
        if at is None:  # not simple, or what is left has no area
            break
        ears.append((left[at - 1], left[at], left[(at + 1) % len(left)]))
        del left[at]
    return [*ears, *((left[0], b, c) for b, c in pairwise(left[1:]))]


def _is_ear(polygon: Array, left: Sequence[int], at: int) -> bool:
    """Whether a corner is convex, and no other corner lies in the triangle that it would cut off."""
    around = left[at - 1], left[at], left[(at + 1) % len(left)]
    a, b, c = polygon[list(around)]
    if _cross(b - a, c - b) <= 0:
        return False
    others = polygon[[i for i in left if i not in around]]
    others = others[~(others[:, None] == (a, b, c)).all(-1).any(-1)]  # a bridge to a hole has its corners twice
    inside = [_cross(end - start, others - start) >= 0 for start, end in ((a, b), (b, c), (c, a))]
    return not np.logical_and.reduce(inside).any()


def _cross(a: Array, b: Array) -> Any:  # a number for two vectors, as NumPy has it
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _fan_normals(corners: Array) -> Array:
    """Normals of the triangles of fans, of twice their areas."""
    offsets = corners - corners[..., :1, :]
    return np.cross(offsets[..., 1:-1, :], offsets[..., 2:, :])


def _concave(points: Array, polygons: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark polygons of which a triangle of the fan points back."""
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is reported by `check_mesh`
        normals = _fan_normals(points[polygons].astype(np.float64))
        whole = normals.sum(axis=-2, keepdims=True)
        return ((normals * whole).sum(-1) < FLIPPED * (whole * whole).sum(-1)).any(axis=-1)


def _flat(corners: Array) -> Array:
    """A polygon in space, projected along the axis that it faces most, counter-clockwise."""
    normal = _fan_normals(corners).sum(axis=0)
    axis = np.abs(normal).argmax()
    flat = corners[:, [(axis + 1) % 3, (axis + 2) % 3]]
    return flat if normal[axis] > 0 else flat * [-1, 1]
