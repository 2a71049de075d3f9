"""Boxes, cones, ellipsoids and tori, and unions of them: exact inside tests, uniform samples of the visible surface.

Everything runs in float64 NumPy on one thread, one object at a time: results depend neither on the number of threads
nor on other objects.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Real = float | int  # to beartype an int is not a float
Point = tuple[Real, Real, Real]
Pair = tuple[Real, Real]
Array = Float[np.ndarray, "..."]
PointArray = Float[np.ndarray, "count 3"]
# Points, normals, and the index of the solid of each.
SurfaceSamples = tuple[Float[np.ndarray, "some 3"], Float[np.ndarray, "some 3"], Int[np.ndarray, " some"]]
Proposals = tuple[Array, Array, Array]  # local points (3, n), normals (3, n) and acceptance probabilities (n,)

BOX, CONE, BALL, RING = range(4)
MAX_FACES = 6  # of a box; other solids are padded with faces of area 0
QUERIES_PER_BLOCK = 20_000  # tested at once, which bounds the memory
SURFACE_OFFSET = 1e-6  # of the test point outside its face: far above rounding, far below any thickness


class Solid(NamedTuple):
    """One primitive of an object, in plain Python numbers, which are fast to create.

    Attributes:
        kind: BOX, CONE, BALL or RING.
        part: the part of the object it belongs to.
        sizes: depend on the kind.
        areas: of its faces; for a curved face an upper bound, corrected by rejection sampling.
        frame: its axes as rows, in world coordinates.
        origin: its position.
    """

    kind: int
    part: str
    sizes: tuple[Real, Real, Real, Real, Real]
    areas: tuple[Real, Real, Real, Real, Real, Real]
    frame: tuple[Point, Point, Point]
    origin: Point


def beam(part: str, start: Point, end: Point, base: Pair, top: Pair | None = None, side: Point = (1, 0, 0)) -> Solid:
    """Return a beam of rectangular section from `start` to `end`, tapering from `base` to `top`.

    The first of the two widths lies along `side`, as far as the direction of the beam allows.
    """
    a, b = base[0] / 2, base[1] / 2
    a_end, b_end = (a, b) if top is None else (top[0] / 2, top[1] / 2)
    frame, h = _frame_along(start, end, side)
    across, along = (b + b_end) * math.hypot(h, a_end - a), (a + a_end) * math.hypot(h, b_end - b)
    areas = (4 * a * b, 4 * a_end * b_end, across, across, along, along)
    return Solid(BOX, part, (a, b, a_end, b_end, h), areas, frame, start)


def box(part: str, at: Point, size: Point, top: Pair | None = None) -> Solid:
    """Return an upright box of this width, depth and height; `at` is the center of its bottom."""
    return beam(part, at, (at[0], at[1], at[2] + size[2]), size[:2], top)


def rod(
    part: str,
    start: Point,
    end: Point,
    radius: Real | Pair,
    taper: Real = 1,
    hole: Real = 0,
    side: Point = (1, 0, 0),
) -> Solid:
    """Return a cylinder from `start` to `end`, whose circular or elliptic section is scaled by `taper` at the end.

    `taper=0` is a cone. `hole` is the inner radius of a tube as a fraction of the outer one.
    """
    a, b = radius if isinstance(radius, tuple) else (radius, radius)
    frame, h = _frame_along(start, end, side)
    ends, wall, perimeter = math.pi * a * b * (1 - hole**2), h * max(a, b), math.pi * (1 + taper)
    outer, inner = (perimeter * k * math.hypot(wall, (taper - 1) * k * a * b) for k in (1, hole))
    return Solid(CONE, part, (a, b, taper, hole, h), (ends, ends * taper**2, outer, inner, 0, 0), frame, start)


def ball(part: str, center: Point, radii: Point, up: Point = (0, 0, 1), side: Point = (1, 0, 0)) -> Solid:
    """Return an ellipsoid; the third of its radii lies along `up`, the first along `side`."""
    a, b, c = radii
    frame, _ = _frame_along((0, 0, 0), up, side)
    return Solid(BALL, part, (a, b, c, 0, 0), (4 * math.pi * max(a * b, a * c, b * c), 0, 0, 0, 0, 0), frame, center)


def ring(
    part: str,
    center: Point,
    radius: Real,
    thickness: Real,
    arc: Real = math.pi,
    up: Point = (0, 0, 1),
    side: Point = (1, 0, 0),
) -> Solid:
    """Return a torus about `up`, or its piece from -`arc` to `arc` about `side`; `thickness` is the tube's radius."""
    frame, _ = _frame_along((0, 0, 0), up, side)
    end = math.pi * thickness**2 if arc < math.pi else 0.0
    tube = 4 * math.pi * arc * thickness * (radius + thickness)
    return Solid(RING, part, (radius, thickness, arc, 0, 0), (tube, end, end, 0, 0, 0), frame, center)


def mirrored(solids: Sequence[Solid]) -> list[Solid]:
    """Reflect solids, exchanging left and right (y)."""

    def flip(point: Point) -> Point:
        return point[0], -point[1], point[2]

    return [
        s._replace(frame=(flip(s.frame[0]), flip(s.frame[1]), flip(s.frame[2])), origin=flip(s.origin)) for s in solids
    ]


class Assembly:
    """A union of solids, with an exact inside test and samples of its visible surface."""

    def __init__(self, solids: Sequence[Solid]) -> None:
        # Sorted by kind, so that those of one kind are a slice of every table.
        self.solids = sorted(solids, key=lambda solid: solid.kind)
        kinds = [solid.kind for solid in self.solids]
        self._slices = [(kind, slice(kinds.index(kind), len(kinds) - kinds[::-1].index(kind))) for kind in set(kinds)]
        self._sizes = np.array([solid.sizes for solid in self.solids], dtype=np.float64)
        self._frames = np.array([solid.frame for solid in self.solids], dtype=np.float64)
        self._origins = np.array([solid.origin for solid in self.solids], dtype=np.float64)
        areas = np.array([solid.areas for solid in self.solids], dtype=np.float64).ravel()
        self._faces = np.flatnonzero(areas)
        self._probabilities = areas[self._faces] / areas.sum()

    def levels(self, points: PointArray) -> Float[np.ndarray, "solids count"]:
        """Evaluate the implicit function of every solid: negative inside, of the order of the distance outside."""
        # One small product per solid: BLAS divides a large one by the number of threads, which changes the rounding.
        local = self._frames @ points.T - (self._frames @ self._origins[:, :, None])
        levels = np.empty((len(self.solids), len(points)))
        for kind, rows in self._slices:
            sizes = self._sizes[rows].T[:, :, None]
            levels[rows] = LEVELS[kind](local[rows, 0], local[rows, 1], local[rows, 2], sizes)
        return levels

    def inside(self, points: PointArray) -> Bool[np.ndarray, " count"]:
        """Test exactly which points are inside, or on the boundary of, any of the solids."""
        blocks = np.array_split(points, len(points) // QUERIES_PER_BLOCK + 1)
        return np.concatenate([(self.levels(block) <= 0).any(axis=0) for block in blocks])

    def sample(self, count: int, rng: np.random.Generator) -> SurfaceSamples:
        """Sample the visible surface uniformly: points, outward normals, and the index of the solid of each.

        Rejection sampling: faces are proposed by area, and points inside another solid are dropped.
        """
        found: list[SurfaceSamples] = []
        missing = count
        while missing > 0:
            found.append(self._visible(*self._propose(missing + missing // 2 + 64, rng)))
            missing -= len(found[-1][0])
        points, normals, owner = (np.concatenate(each)[:count] for each in zip(*found, strict=True))
        return points, normals, owner

    def _propose(self, count: int, rng: np.random.Generator) -> SurfaceSamples:
        u, v, threshold = rng.random((3, count))
        # Face by face, so that the proposals of one kind are a slice; they are mixed below.
        owner, face = np.divmod(np.repeat(self._faces, rng.multinomial(count, self._probabilities)), MAX_FACES)
        sizes, points, normals = self._sizes[owner].T, np.empty((count, 3)), np.empty((count, 3))
        acceptance = np.ones(count)
        for kind, rows in self._slices:
            of = slice(*np.searchsorted(owner, (rows.start, rows.stop)))
            points.T[:, of], normals.T[:, of], acceptance[of] = PROPOSALS[kind](face[of], u[of], v[of], sizes[:, of])
        kept = rng.permutation(np.flatnonzero(threshold < acceptance))
        owner = owner[kept]
        frames = self._frames[owner]
        points, normals = (np.einsum("ni,nij->nj", local[kept], frames) for local in (points, normals))
        return points + self._origins[owner], normals, owner

    def _visible(self, points: PointArray, normals: PointArray, owner: Int[np.ndarray, " count"]) -> SurfaceSamples:
        """Drop points that another solid covers; where faces coincide, they belong to the first solid."""
        levels = self.levels(points + SURFACE_OFFSET * normals)
        levels[owner, np.arange(len(owner))] = np.inf
        covers = levels < 0
        covers |= (levels < 2 * SURFACE_OFFSET) & (np.arange(len(self.solids))[:, None] < owner)
        visible = np.flatnonzero(~covers.any(axis=0))
        return points[visible], normals[visible], owner[visible]


def _frame_along(start: Point, end: Point, side: Point) -> tuple[tuple[Point, Point, Point], float]:
    """Return the frame whose third axis points from start to end, the first nearest to `side`, and the length."""
    x, y, z = end[0] - start[0], end[1] - start[1], end[2] - start[2]
    length = math.sqrt(x * x + y * y + z * z)
    x, y, z = x / length, y / length, z / length
    dot = x * side[0] + y * side[1] + z * side[2]
    p, q, r = side[0] - dot * x, side[1] - dot * y, side[2] - dot * z
    size = math.sqrt(p * p + q * q + r * r)
    if size < 1e-6:  # side lies along the axis: any other will do
        return _frame_along(start, end, (side[2], side[0], side[1]))
    p, q, r = p / size, q / size, r / size
    return ((p, q, r), (y * r - z * q, z * p - x * r, x * q - y * p), (x, y, z)), length


def _tapered(v: Array, first: Array, last: Array) -> Array:
    """Map uniform v to [0, 1] with a density proportional to a width that is linear from `first` to `last`."""
    grows = np.abs(last - first) > 1e-9
    width = np.sqrt(first**2 + v * (last**2 - first**2))
    return np.where(grows, (width - first) / np.where(grows, last - first, 1), v)


def _box_level(x: Array, y: Array, z: Array, sizes: Array) -> Array:
    a, b, a_end, b_end, h = sizes
    level: Array = np.abs(x) - (z * ((a_end - a) / h) + a)
    np.maximum(level, np.abs(y) - (z * ((b_end - b) / h) + b), out=level)
    np.maximum(level, np.abs(z - h / 2) - h / 2, out=level)
    return level


def _cone_level(x: Array, y: Array, z: Array, sizes: Array) -> Array:
    a, b, taper, hole, h = sizes
    reach, scale = np.sqrt((x * (1 / a)) ** 2 + (y * (1 / b)) ** 2), z * ((taper - 1) / h) + 1
    level: Array = np.maximum(reach - scale, hole * scale - reach) * np.minimum(a, b)
    np.maximum(level, np.abs(z - h / 2) - h / 2, out=level)
    return level


def _ball_level(x: Array, y: Array, z: Array, sizes: Array) -> Array:
    a, b, c = sizes[:3]
    reach = np.sqrt((x * (1 / a)) ** 2 + (y * (1 / b)) ** 2 + (z * (1 / c)) ** 2)
    level: Array = (reach - 1) * np.minimum(np.minimum(a, b), c)
    return level


def _ring_level(x: Array, y: Array, z: Array, sizes: Array) -> Array:
    radius, thickness, arc = sizes[:3]
    tube = np.sqrt((np.sqrt(x**2 + y**2) - radius) ** 2 + z**2) - thickness
    level: Array = np.maximum(tube, (np.abs(np.arctan2(y, x)) - arc) * radius)
    return level


def _propose_box(face: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    """Faces: bottom, top, then those across the first axis (low, high), then across the second."""
    a, b, a_end, b_end, h = sizes
    cap, first = face < 2, (face == 2) | (face == 3)
    sign = 2.0 * (face % 2) - 1
    t = np.where(cap, face, _tapered(v, np.where(first, b, a), np.where(first, b_end, a_end)))
    u, v = 2 * u - 1, 2 * v - 1
    x = np.where(first, sign, u) * (a + (a_end - a) * t)
    y = np.where(first, u, np.where(cap, v, sign)) * (b + (b_end - b) * t)
    lean = np.where(first, a_end - a, b_end - b)
    slant = np.sqrt(h**2 + lean**2)
    flat, steep = np.where(cap, 0, sign * h / slant), np.where(cap, sign, -lean / slant)
    normals = np.stack([np.where(first, flat, 0), np.where(first, 0, flat), steep])
    return np.stack([x, y, t * h]), normals, np.ones(len(face))


def _propose_cone(face: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    """Faces: bottom, top, outer wall, inner wall."""
    a, b, taper, hole, h = sizes
    cap, inner = face < 2, face == 3
    c, s = np.cos(2 * np.pi * u), np.sin(2 * np.pi * u)
    t = np.where(cap, face, _tapered(v, np.ones_like(taper), taper))
    radius = np.where(inner, hole, 1)  # of the wall, relative to the outer one
    reach = np.where(cap, np.sqrt(hole**2 + v * (1 - hole**2)), radius) * (1 + (taper - 1) * t)
    lean = (1 - taper) * radius * a * b
    wall = np.sqrt((h * b * c) ** 2 + (h * a * s) ** 2 + lean**2)
    outward = np.where(inner, -1, 1) / wall
    normals = np.stack([h * b * c, h * a * s, lean]) * outward
    normals = np.where(cap, np.stack([0 * c, 0 * c, 2.0 * face - 1]), normals)
    acceptance = np.where(cap, 1, wall / np.sqrt((h * np.maximum(a, b)) ** 2 + lean**2))
    return np.stack([reach * a * c, reach * b * s, t * h]), normals, acceptance


def _propose_ball(_: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    radii = sizes[:3]
    z, angle = 2 * v - 1, 2 * np.pi * u
    flat = np.sqrt(1 - z**2)
    unit = np.stack([flat * np.cos(angle), flat * np.sin(angle), z])
    normals = unit / radii
    length = np.sqrt((normals**2).sum(axis=0))
    return unit * radii, normals / length, length * radii.min(axis=0)


def _propose_ring(face: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    """Faces: tube, then the two ends of an arc."""
    radius, thickness, arc = sizes[:3]
    end, sign = face > 0, 2.0 * face - 3
    around = np.where(end, sign, 2 * v - 1) * arc
    angle, reach = 2 * np.pi * u, thickness * np.where(end, np.sqrt(v), 1)
    c, s, out = np.cos(around), np.sin(around), np.cos(angle)
    far = radius + reach * out
    normals = np.stack([np.where(end, -sign * s, c * out), np.where(end, sign * c, s * out), ~end * np.sin(angle)])
    return np.stack([far * c, far * s, reach * np.sin(angle)]), normals, np.where(end, 1, far / (radius + thickness))


LEVELS = (_box_level, _cone_level, _ball_level, _ring_level)
PROPOSALS = (_propose_box, _propose_cone, _propose_ball, _propose_ring)
