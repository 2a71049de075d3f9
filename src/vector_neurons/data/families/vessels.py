"""Vessels: a cup is a mug without a handle, a vase and a bottle share their outlines."""

import math
from itertools import pairwise

from ..solids import Pair, Solid, ball, box, ring, rod
from .sampler import Sampler, polar


def mug(rng: Sampler) -> list[Solid]:
    """A cup with a handle, round or angular."""
    r, h = rng.uniform(0.25, 0.5), rng.uniform(0.6, 1.2)
    deep = r * _oval(rng)
    body, taper, wall = _cup(rng, (r, deep), h)
    t = rng.uniform(0.035, 0.06)

    def at(z: float) -> float:
        """The middle of the wall at this height: the ends of the handle are hidden there."""
        return deep * (1 + (taper - 1) * z / h) * (1 - wall / 2)

    if rng.boolean(0.3):
        out, low, high = at(h) + rng.uniform(0.15, 0.3), h * rng.uniform(0.15, 0.35), h * rng.uniform(0.72, 0.88)
        bars = [rod("handle", (0, at(z), z), (0, out, z), t) for z in (low, high)]
        return [*body, *bars, rod("handle", (0, out, low - t), (0, out, high + t), t)]
    size, z = h * rng.uniform(0.22, 0.36), h * rng.uniform(0.46, 0.56)
    lean = math.atan(deep * (taper - 1) / h)  # of the wall, which the handle follows
    side = (0.0, math.cos(lean), -math.sin(lean))
    return [*body, ring("handle", (0, at(z), z), size, t, math.pi / 2, (1, 0, 0), side)]


def cup(rng: Sampler) -> list[Solid]:
    """A mug without its handle; sometimes on a foot."""
    r, h = rng.uniform(0.25, 0.5), rng.uniform(0.6, 1.2)
    body, _, _ = _cup(rng, (r, r * _oval(rng)), h)
    if rng.boolean(0.4):
        foot = rng.uniform(0.05, 0.2)
        body.append(rod("body", (0, 0, -foot), (0, 0, 0.01), r * rng.uniform(0.8, 1.1), rng.uniform(0.5, 0.9)))
    return body


def _cup(rng: Sampler, r: Pair, h: float) -> tuple[list[Solid], float, float]:
    """A tube with a bottom; how it widens upwards; and its wall, as a fraction of the radius."""
    taper, wall, floor = rng.uniform(0.95, 1.6), rng.uniform(0.08, 0.16), 0.06
    walls = rod("body", (0, 0, 0), (0, 0, h), r, taper, hole=1 - wall)
    return [walls, rod("body", (0, 0, 0), (0, 0, h * floor), r, 1 + (taper - 1) * floor)], taper, wall


def _oval(rng: Sampler) -> float:
    """Depth by width: often round."""
    return rng.uniform(0.65, 1.6) if rng.boolean(0.6) else 1.0


def bottle(rng: Sampler) -> list[Solid]:
    """A closed body with shoulders, a thin neck and a cap."""
    r, h = rng.uniform(0.18, 0.45), rng.uniform(0.4, 1.4)
    neck, rise, shoulder = r * rng.uniform(0.2, 0.4), rng.uniform(0.15, 0.55), rng.uniform(0.1, 0.4)
    across, deep = (r, r * rng.uniform(0.4, 1)) if rng.boolean(0.5) else (r * rng.uniform(0.4, 1), r)
    top = h + shoulder + rise
    if rng.boolean(0.25):  # a square bottle
        body = [
            box("body", (0, 0, 0), (2 * across, 2 * deep, h)),
            box("body", (0, 0, h), (2 * across, 2 * deep, shoulder), (1.6 * neck, 1.6 * neck)),
        ]
    else:
        rounding, narrow = shoulder * rng.uniform(0.3, 0.5), rng.uniform(0.75, 0.92)
        body = [
            rod("body", (0, 0, 0), (0, 0, h), (across, deep)),
            rod("body", (0, 0, h), (0, 0, h + rounding), (across, deep), narrow),
            rod(
                "body",
                (0, 0, h + rounding),
                (0, 0, h + shoulder),
                (across * narrow, deep * narrow),
                neck / (r * narrow),
            ),
        ]
    cap = rng.uniform(0.06, 0.14)
    wide = neck * rng.uniform(1.05, 1.35)
    return [
        *body,
        rod("neck", (0, 0, h), (0, 0, top), neck, rng.uniform(0.85, 1)),
        rod("neck", (0, 0, top - cap), (0, 0, top + 0.02), wide),
    ]


def vase(rng: Sampler) -> list[Solid]:
    """A hollow body of revolution: a belly, a throat and an open lip."""
    h, foot, belly, flat = rng.uniform(0.8, 2), rng.uniform(0.12, 0.4), rng.uniform(0.25, 0.6), _oval(rng)
    throat, where = belly * rng.uniform(0.3, 0.7), rng.uniform(0.25, 0.5)
    lip, neck = throat * rng.uniform(1.1, 1.9), rng.uniform(0.7, 0.88)
    outline = [(0.0, foot), (where, belly), (neck, throat), (1.0, lip)]
    heights = [i / 8 for i in range(9)]
    rings = [(z * h, _smooth(outline, z)) for z in heights]
    wall = rng.uniform(0.08, 0.14)
    solids = [
        rod("body", (0, 0, low), (0, 0, high), (r, r * flat), r_high / r, hole=1 - wall)
        for (low, r), (high, r_high) in pairwise(rings)
    ]
    return [rod("body", (0, 0, -0.05), (0, 0, 0.01), (foot, foot * flat)), *solids]


def _smooth(outline: list[Pair], z: float) -> float:
    """The radius at a height: between two given ones it runs along half a wave of the cosine."""
    for (low, first), (high, last) in pairwise(outline):
        if z <= high:
            return first + (last - first) * (1 - math.cos(math.pi * (z - low) / (high - low))) / 2
    return outline[-1][1]


def plant(rng: Sampler) -> list[Solid]:
    """A pot, stems, and leaves that are flat ellipsoids."""
    r, h = rng.uniform(0.15, 0.4), rng.uniform(0.2, 0.5)
    solids = [rod("pot", (0, 0, 0), (0, 0, h), r * rng.uniform(0.6, 0.9), 1 / rng.uniform(0.7, 0.9))]
    rim = solids[0].sizes[0] * solids[0].sizes[2]
    solids.append(ring("pot", (0, 0, h - 0.02), rim, rng.uniform(0.02, 0.05)))
    tall, count, thick = rng.uniform(0.3, 1.2), rng.integer(6, 11), rng.uniform(0.012, 0.03)
    solids.append(rod("stem", (0, 0, h), (0, 0, h + tall), thick, 0.5))
    turn, droop, length = rng.uniform(0, 6.3), rng.uniform(-0.3, 0.9), rng.uniform(0.25, 0.5)
    wide = length * rng.uniform(0.25, 0.5)
    for i in range(count):
        angle, z = turn + 2.4 * i, h + tall * (0.25 + 0.75 * (i + 1) / count)  # the golden angle, as plants do
        slope = droop + rng.uniform(-0.2, 0.2)
        reach, rise = length * math.cos(slope), length * math.sin(slope)
        root, tip = (0.0, 0.0, z), polar(reach, angle, z + rise)
        out = (tip[0], tip[1], rise)
        middle = polar(reach * 0.62, angle, z + rise * 0.62)
        solids.append(ball("leaf", middle, (wide / 2, 0.015, length / 2), out, polar(1, angle + math.pi / 2)))
        solids.append(rod("stem", root, middle, thick * 0.4))
    return solids
