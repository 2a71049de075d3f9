"""Boxes, cones, balls and rings, and unions of them: exact inside tests, uniform points on the visible surface.

Everything runs in float64 numpy on one thread, and only on the numbers of one object: what comes out depends neither on
the number of threads nor on the objects made beside it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

Real = float | int  # to beartype an int is not a float
Place = tuple[Real, Real, Real]
Pair = tuple[Real, Real]
Array = Float[np.ndarray, "..."]
Rows = Float[np.ndarray, "count 3"]
Surface = tuple[Float[np.ndarray, "some 3"], Float[np.ndarray, "some 3"], Int[np.ndarray, " some"]]
Proposals = tuple[Array, Array, Array]  # local places (3, n), normals (3, n) and the chance to keep each (n,)

BOX, CONE, BALL, RING = range(4)
FACES = 6  # of a box, which has the most; the others are padded with faces of no area
PORTION = 20_000  # places tested at once: a grid of millions needs no more memory than that
STEP = 1e-6  # how far outside its face a surface point is tested: far above rounding, far below any thickness


class Solid(NamedTuple):
    """One piece of an object, in plain numbers: cheap to make by the dozen.

    `sizes` belong to the kind; `areas` are those of its faces, for a curved face an upper bound that sampling thins
    out; the rows of `frame` are the piece's own axes, seen from the world; `origin` is where it stands.
    """

    kind: int
    part: str
    sizes: tuple[Real, Real, Real, Real, Real]
    areas: tuple[Real, Real, Real, Real, Real, Real]
    frame: tuple[Place, Place, Place]
    origin: Place


def beam(part: str, start: Place, end: Place, base: Pair, top: Pair | None = None, side: Place = (1, 0, 0)) -> Solid:
    """A beam of rectangular section from `start` to `end`, tapering from `base` to `top`.

    The first of the two widths lies along `side`, as far as the direction of the beam allows.
    """
    a, b = base[0] / 2, base[1] / 2
    a_end, b_end = (a, b) if top is None else (top[0] / 2, top[1] / 2)
    frame, h = _along(start, end, side)
    across, along = (b + b_end) * math.hypot(h, a_end - a), (a + a_end) * math.hypot(h, b_end - b)
    areas = (4 * a * b, 4 * a_end * b_end, across, across, along, along)
    return Solid(BOX, part, (a, b, a_end, b_end, h), areas, frame, start)


def box(part: str, at: Place, size: Place, top: Pair | None = None) -> Solid:
    """An upright box of this width, depth and height; `at` is the middle of its bottom."""
    return beam(part, at, (at[0], at[1], at[2] + size[2]), size[:2], top)


def rod(
    part: str,
    start: Place,
    end: Place,
    radius: Real | Pair,
    taper: Real = 1,
    hole: Real = 0,
    side: Place = (1, 0, 0),
) -> Solid:
    """A cylinder from `start` to `end`, its section a circle or an ellipse that grows by `taper` towards the end.

    `taper=0` is a cone. `hole` is the inner radius of a tube as a fraction of the outer one.
    """
    a, b = radius if isinstance(radius, tuple) else (radius, radius)
    frame, h = _along(start, end, side)
    ends, wall, turn = math.pi * a * b * (1 - hole**2), h * max(a, b), math.pi * (1 + taper)
    outer, inner = (turn * k * math.hypot(wall, (taper - 1) * k * a * b) for k in (1, hole))
    return Solid(CONE, part, (a, b, taper, hole, h), (ends, ends * taper**2, outer, inner, 0, 0), frame, start)


def ball(part: str, centre: Place, radii: Place, up: Place = (0, 0, 1), side: Place = (1, 0, 0)) -> Solid:
    """An ellipsoid; the third of its radii lies along `up`, the first along `side`."""
    a, b, c = radii
    frame, _ = _along((0, 0, 0), up, side)
    return Solid(BALL, part, (a, b, c, 0, 0), (4 * math.pi * max(a * b, a * c, b * c), 0, 0, 0, 0, 0), frame, centre)


def ring(
    part: str,
    centre: Place,
    radius: Real,
    thickness: Real,
    arc: Real = math.pi,
    up: Place = (0, 0, 1),
    side: Place = (1, 0, 0),
) -> Solid:
    """A torus about `up`, or the piece of it that reaches `arc` to both sides of `side`; `thickness` is a radius."""
    frame, _ = _along((0, 0, 0), up, side)
    end = math.pi * thickness**2 if arc < math.pi else 0.0
    tube = 4 * math.pi * arc * thickness * (radius + thickness)
    return Solid(RING, part, (radius, thickness, arc, 0, 0), (tube, end, end, 0, 0, 0), frame, centre)


def mirrored(solids: Sequence[Solid]) -> list[Solid]:
    """The mirror image, left and right (y) exchanged."""

    def flip(place: Place) -> Place:
        return place[0], -place[1], place[2]

    return [
        s._replace(frame=(flip(s.frame[0]), flip(s.frame[1]), flip(s.frame[2])), origin=flip(s.origin)) for s in solids
    ]


class Assembly:
    """A union of solids: what lies inside it, and its visible surface."""

    def __init__(self, solids: Sequence[Solid]) -> None:
        # In order of kind, so that those of one kind are a slice of every table.
        self.solids = sorted(solids, key=lambda solid: solid.kind)
        kinds = [solid.kind for solid in self.solids]
        self._slices = [(kind, slice(kinds.index(kind), len(kinds) - kinds[::-1].index(kind))) for kind in set(kinds)]
        self._sizes = np.array([solid.sizes for solid in self.solids], dtype=np.float64)
        self._frames = np.array([solid.frame for solid in self.solids], dtype=np.float64)
        self._origins = np.array([solid.origin for solid in self.solids], dtype=np.float64)
        areas = np.array([solid.areas for solid in self.solids], dtype=np.float64).ravel()
        self._faces = np.flatnonzero(areas)
        self._shares = areas[self._faces] / areas.sum()

    def levels(self, places: Rows) -> Float[np.ndarray, "solids count"]:
        """For every solid and place a number below 0 inside, above 0 outside, and of the order of the distance."""
        # One small product per solid: BLAS would cut a large one into pieces by the number of threads.
        local = self._frames @ places.T - (self._frames @ self._origins[:, :, None])
        levels = np.empty((len(self.solids), len(places)))
        for kind, rows in self._slices:
            sizes = self._sizes[rows].T[:, :, None]
            levels[rows] = LEVELS[kind](local[rows, 0], local[rows, 1], local[rows, 2], sizes)
        return levels

    def inside(self, places: Rows) -> Bool[np.ndarray, " count"]:
        """Is a place inside, or on the boundary of, any of the solids? Exact."""
        portions = np.array_split(places, len(places) // PORTION + 1)
        return np.concatenate([(self.levels(portion) <= 0).any(axis=0) for portion in portions])

    def sample(self, count: int, rng: np.random.Generator) -> Surface:
        """Independent, uniform points on the visible surface, their outward normals and the solid each belongs to.

        Faces are proposed by their area, what lies inside another solid is dropped: uniform on what remains.
        """
        found: list[Surface] = []
        missing = count
        while missing > 0:
            found.append(self._visible(*self._propose(missing + missing // 2 + 64, rng)))
            missing -= len(found[-1][0])
        points, normals, owner = (np.concatenate(each)[:count] for each in zip(*found, strict=True))
        return points, normals, owner

    def _propose(self, count: int, rng: np.random.Generator) -> Surface:
        u, v, lot = rng.random((3, count))
        # Face by face, so that the proposals of one kind are a slice; they are mixed below.
        owner, face = np.divmod(np.repeat(self._faces, rng.multinomial(count, self._shares)), FACES)
        sizes, points, normals = self._sizes[owner].T, np.empty((count, 3)), np.empty((count, 3))
        chance = np.ones(count)
        for kind, rows in self._slices:
            of = slice(*np.searchsorted(owner, (rows.start, rows.stop)))
            points.T[:, of], normals.T[:, of], chance[of] = PROPOSALS[kind](face[of], u[of], v[of], sizes[:, of])
        kept = rng.permutation(np.flatnonzero(lot < chance))
        owner = owner[kept]
        frames = self._frames[owner]
        points, normals = (np.einsum("ni,nij->nj", local[kept], frames) for local in (points, normals))
        return points + self._origins[owner], normals, owner

    def _visible(self, points: Rows, normals: Rows, owner: Int[np.ndarray, " count"]) -> Surface:
        """Drop what another solid covers; where faces lie flush, they belong to the first solid."""
        levels = self.levels(points + STEP * normals)
        levels[owner, np.arange(len(owner))] = np.inf
        covers = levels < 0
        covers |= (levels < 2 * STEP) & (np.arange(len(self.solids))[:, None] < owner)
        shown = np.flatnonzero(~covers.any(axis=0))
        return points[shown], normals[shown], owner[shown]


def _along(start: Place, end: Place, side: Place) -> tuple[tuple[Place, Place, Place], float]:
    """The frame whose third axis leads from start to end and whose first is the nearest to `side`; and the length."""
    x, y, z = end[0] - start[0], end[1] - start[1], end[2] - start[2]
    length = math.sqrt(x * x + y * y + z * z)
    x, y, z = x / length, y / length, z / length
    dot = x * side[0] + y * side[1] + z * side[2]
    p, q, r = side[0] - dot * x, side[1] - dot * y, side[2] - dot * z
    size = math.sqrt(p * p + q * q + r * r)
    if size < 1e-6:  # side lies along the axis: any other will do
        return _along(start, end, (side[2], side[0], side[1]))
    p, q, r = p / size, q / size, r / size
    return ((p, q, r), (y * r - z * q, z * p - x * r, x * q - y * p), (x, y, z)), length


def _tapered(v: Array, first: Array, last: Array) -> Array:
    """Places in [0, 1], as dense as a width that runs linearly from `first` to `last` is wide."""
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
    share = np.where(inner, hole, 1)  # how far out in the section
    reach = np.where(cap, np.sqrt(hole**2 + v * (1 - hole**2)), share) * (1 + (taper - 1) * t)
    lean = (1 - taper) * share * a * b
    wall = np.sqrt((h * b * c) ** 2 + (h * a * s) ** 2 + lean**2)
    outward = np.where(inner, -1, 1) / wall
    normals = np.stack([h * b * c, h * a * s, lean]) * outward
    normals = np.where(cap, np.stack([0 * c, 0 * c, 2.0 * face - 1]), normals)
    chance = np.where(cap, 1, wall / np.sqrt((h * np.maximum(a, b)) ** 2 + lean**2))
    return np.stack([reach * a * c, reach * b * s, t * h]), normals, chance


def _propose_ball(_: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    radii = sizes[:3]
    z, turn = 2 * v - 1, 2 * np.pi * u
    flat = np.sqrt(1 - z**2)
    unit = np.stack([flat * np.cos(turn), flat * np.sin(turn), z])
    normals = unit / radii
    length = np.sqrt((normals**2).sum(axis=0))
    return unit * radii, normals / length, length * radii.min(axis=0)


def _propose_ring(face: Int[np.ndarray, " n"], u: Array, v: Array, sizes: Array) -> Proposals:
    """Faces: tube, then the two ends of an arc."""
    radius, thickness, arc = sizes[:3]
    end, sign = face > 0, 2.0 * face - 3
    around = np.where(end, sign, 2 * v - 1) * arc
    turn, reach = 2 * np.pi * u, thickness * np.where(end, np.sqrt(v), 1)
    c, s, out = np.cos(around), np.sin(around), np.cos(turn)
    far = radius + reach * out
    normals = np.stack([np.where(end, -sign * s, c * out), np.where(end, sign * c, s * out), ~end * np.sin(turn)])
    return np.stack([far * c, far * s, reach * np.sin(turn)]), normals, np.where(end, 1, far / (radius + thickness))


LEVELS = (_box_level, _cone_level, _ball_level, _ring_level)
PROPOSALS = (_propose_box, _propose_cone, _propose_ball, _propose_ring)
