"""What flies and drives."""

import math

from ..solids import Point, Solid, ball, beam, box, rod
from .sampler import Sampler, circle, polar


def airplane(rng: Sampler) -> list[Solid]:
    """A fuselage, two wings, a tail and up to four engines."""
    half, r = rng.uniform(0.5, 1.4), rng.uniform(0.08, 0.24)
    span, sweep, chord = rng.uniform(0.4, 1.5), rng.uniform(-0.05, 0.6), rng.uniform(0.22, 0.5)
    solids = [
        rod("fuselage", (-half * 0.5, 0, 0), (half * 0.7, 0, 0), r),
        ball("fuselage", (half * 0.7, 0, 0), (r, r, half * 0.3), (1, 0, 0), (0, 1, 0)),
        rod("fuselage", (-half * 0.5, 0, 0), (-half, 0, r * 0.4), r, rng.uniform(0.15, 0.4)),
    ]
    x, z, lift = rng.uniform(-0.05, 0.25) * half, rng.uniform(-0.6, 0.7) * r, rng.uniform(-0.02, 0.15)
    t, narrow = rng.uniform(0.03, 0.05), rng.uniform(0.3, 0.9)
    for levels in (0, 1) if rng.boolean(0.2) else (0,):  # a biplane has two pairs
        high = z + levels * r * 2.6
        for side in (-1, 1):
            tip = (x - sweep * span, side * span, high + lift * span)
            solids.append(beam("wing", (x, 0, high), tip, (chord, t), (chord * narrow, t * 0.7)))
        if levels:
            strut, rise = x - sweep * span / 2, lift * span / 2
            solids += [rod("wing", (strut, y, z + rise), (strut, y, high + rise), 0.02) for y in (-span / 2, span / 2)]
    back, small, size = -half * 0.93, rng.uniform(0.3, 0.5) * span, rng.uniform(0.5, 0.75) * chord
    fin, raised = rng.uniform(0.22, 0.6), rng.boolean(0.3)
    top = (back - 0.4 * fin, 0.0, fin + r * 0.5)
    solids.append(beam("tail", (back, 0, 0), top, (size, t), (size * 0.6, t)))
    root = top if raised else (back, 0.0, r * 0.4)  # a T-tail carries its wings on top
    for side in (-1, 1):
        tip = (root[0] - sweep * small, side * small, root[2])
        solids.append(beam("tail", root, tip, (size * 0.8, t), (size * 0.5, t * 0.7)))
    return solids + _engines(rng, half, r, (x, span, z), sweep, lift)


def _engines(rng: Sampler, half: float, r: float, wing: Point, sweep: float, lift: float) -> list[Solid]:
    """None, two or four below the wings, two at the back, or a propeller."""
    style, size, long = rng.integer(0, 4), rng.uniform(0.04, 0.075), rng.uniform(0.2, 0.35)
    if style == 0:
        return []
    if style == 1:
        blades = [beam("engine", (half, 0, 0), (half, y, z), (0.06, 0.02), side=(0, z, -y)) for y, z in _cross(0.25)]
        return [rod("engine", (half * 0.95, 0, 0), (half * 1.07, 0, 0), 0.04, 0.5), *blades]
    if style == 2:
        x, z, out = -half * 0.45, r * 0.3, r + size * 0.6
        return [rod("engine", (x, y, z), (x + long, y, z), size) for y in (-out, out)]
    x, span, z = wing
    shares = (0.35,) if style == 3 else (0.3, 0.6)
    origins = [(x - sweep * span * s, side * span * s, z + lift * span * s - size) for s in shares for side in (-1, 1)]
    return [rod("engine", (x, y, z), (x + long, y, z), size, 1.15) for x, y, z in origins]


def _cross(reach: float) -> list[tuple[float, float]]:
    return [(reach * math.cos(a), reach * math.sin(a)) for a in circle(2, 0.5)]


def helicopter(rng: Sampler) -> list[Solid]:
    """A cabin, a tail with its own small rotor, blades above and skids below."""
    a, b, c = rng.uniform(0.3, 0.8), rng.uniform(0.16, 0.36), rng.uniform(0.18, 0.36)
    boom, rise, thin = rng.uniform(0.4, 1.2), rng.uniform(0, 0.25), rng.uniform(0.25, 0.5)
    end = (-a * 0.6 - boom, 0.0, rise)
    solids = [
        ball("body", (0, 0, 0), (b, c, a), (1, 0, 0), (0, 1, 0)),
        rod("tail", (-a * 0.5, 0, c * 0.2), end, c * 0.4, thin),
        beam("tail", (end[0] + 0.05, 0, rise - 0.05), (end[0] - 0.1, 0, rise + rng.uniform(0.15, 0.35)), (0.14, 0.03)),
    ]
    hub, reach, width, count = (
        c + rng.uniform(0.06, 0.2),
        rng.uniform(0.5, 1.4),
        rng.uniform(0.05, 0.14),
        rng.integer(2, 5),
    )
    solids.append(rod("rotor", (0, 0, c * 0.8), (0, 0, hub + 0.03), 0.03))
    turn = rng.uniform(0, math.pi)
    for angle in circle(count, turn):
        across = polar(1, angle + math.pi / 2)
        solids.append(beam("rotor", (0, 0, hub), polar(reach, angle, hub), (width, 0.02), side=across))
    small, beside = rng.uniform(0.12, 0.22), c * 0.4 * thin  # the tail rotor turns on the side of the boom
    for x, z in _cross(small):
        tip = (end[0] + x, beside, rise + z)
        solids.append(beam("tail", (end[0], beside, rise), tip, (0.04, 0.015), side=(-z, 0, x)))
    low, side, long = -c - rng.uniform(0.08, 0.2), b * rng.uniform(0.8, 1.2), a * rng.uniform(0.8, 1.1)
    for y in (-side, side):
        solids.append(rod("skid", (-long, y, low), (long, y, low), 0.018))
        solids += [rod("skid", (x, y * 0.5, -c * 0.6), (x, y, low), 0.014) for x in (-long * 0.4, long * 0.4)]
    return solids


def rocket(rng: Sampler) -> list[Solid]:
    """A body, a pointed nose, fins; sometimes boosters or a nozzle."""
    r, h, tip = rng.uniform(0.12, 0.32), rng.uniform(0.8, 1.9), rng.uniform(0.3, 0.7)
    count, fin, root = rng.integer(3, 5), r * rng.uniform(0.8, 2), rng.uniform(0.2, 0.45)
    solids = [rod("body", (0, 0, 0), (0, 0, h), r, rng.uniform(0.8, 1))]
    top = r * solids[0].sizes[2]
    if rng.boolean(0.4):
        solids.append(rod("nose", (0, 0, h), (0, 0, h + tip), top, 0))
    else:  # a rounded nose: two cones
        solids.append(rod("nose", (0, 0, h), (0, 0, h + tip * 0.5), top, 0.7))
        solids.append(rod("nose", (0, 0, h + tip * 0.5), (0, 0, h + tip), top * 0.7, 0.05))
    drop, narrow, t = rng.uniform(-0.25, 0.35), rng.uniform(0.2, 0.8), rng.uniform(0.02, 0.04)
    for angle in circle(count, rng.uniform(0, 1)):
        fin_tip = polar(r + fin, angle, root * 0.5 - drop)
        solids.append(beam("fin", polar(r * 0.6, angle, root * 0.6), fin_tip, (root, t), (root * narrow, t), (0, 0, 1)))
    if rng.boolean(0.6):
        solids.append(rod("body", (0, 0, -r * 0.7), (0, 0, 0.02), r * 0.85, 0.5, hole=0.85))
    if rng.boolean(0.25):
        size, tall = r * rng.uniform(0.4, 0.6), h * rng.uniform(0.4, 0.7)
        for angle in (math.pi / 2, -math.pi / 2):
            foot, end = polar(r + size * 0.8, angle, 0.02), polar(r + size * 0.8, angle, tall)
            solids.append(rod("body", foot, end, size))
            solids.append(rod("nose", end, (end[0], end[1], tall + 2 * size), size, 0))
    return solids


def car(rng: Sampler) -> list[Solid]:
    """A body on four wheels with a cabin that narrows upwards: a saloon, a van, a pick-up."""
    length, w, low, h = rng.uniform(1.1, 2.6), rng.uniform(0.55, 1.1), rng.uniform(0.08, 0.3), rng.uniform(0.2, 0.5)
    wheel, broad = rng.uniform(0.16, 0.26), rng.uniform(0.08, 0.15)
    style = rng.integer(0, 2)
    share, shift = ((0.45, -0.05), (0.75, -0.1), (0.35, 0.1))[style]
    share, tall = share * rng.uniform(0.85, 1.15), rng.uniform(0.2, 0.5) * (1.6 if style == 1 else 1)
    base = low + h
    solids = [
        box("body", (0, 0, low), (length, w, h * 0.65), (length, w)),
        box("body", (0, 0, low + h * 0.65), (length, w, h * 0.35), (length * 0.96, w * 0.9)),
        box(
            "cabin",
            (shift * length, 0, base),
            (length * share, w * 0.88, tall),
            (length * share * rng.uniform(0.6, 0.85), w * 0.72),
        ),
    ]
    if style == 2:  # the sides of the bed of a pick-up
        solids += [box("body", (-length * 0.28, y, base), (length * 0.38, 0.04, 0.1)) for y in (-w * 0.42, w * 0.42)]
    if rng.boolean(0.3):
        solids.append(box("body", (-length * 0.46, 0, base), (0.06, w * 0.8, 0.1), (0.12, w * 0.8)))
    axle = length * rng.uniform(0.28, 0.36)
    for x in (-axle, axle):
        for y in (-1, 1):
            out = y * w / 2
            solids.append(rod("wheel", (x, out - y * broad, wheel), (x, out + y * 0.03, wheel), wheel))
    return solids
