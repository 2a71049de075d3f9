"""What one holds or climbs; hands and spiral stairs come in two that are mirror images."""

import math

from ..solids import Point, Solid, ball, beam, box, rod
from .sampler import Sampler, polar


def guitar(rng: Sampler) -> list[Solid]:
    """A flat body of two bouts, a long neck and a head, standing upright."""
    wide, tall, deep = rng.uniform(0.2, 0.5), rng.uniform(0.2, 0.4), rng.uniform(0.06, 0.3)
    upper, long = rng.uniform(0.62, 0.78), rng.uniform(0.35, 1.3)
    center = tall * rng.uniform(1.9, 2.05)

    def disc(z: float, a: float, b: float) -> Solid:
        return rod("body", (-deep / 2, 0, z), (deep / 2, 0, z), (a, b), side=(0, 1, 0))

    top = center + tall * upper * 0.85
    front = deep / 2
    solids = [disc(tall, wide, tall), disc(center, wide * upper, tall * upper)]
    if rng.boolean(0.4):  # horns of an electric guitar
        horn = tall * rng.uniform(0.5, 0.8)
        for y in (-1, 1):
            start = (0.0, y * wide * upper * 0.75, center)
            end = (
                0.0,
                y * wide * upper * rng.uniform(0.7, 0.9),
                center + tall * upper * 0.5 + horn * rng.uniform(0.4, 0.7),
            )
            solids.append(rod("body", start, end, (deep * 0.49, wide * 0.2), 0.4))
    solids.append(beam("neck", (front, 0, center), (front, 0, top + long), (0.05, 0.1), (0.04, 0.08)))
    head = rng.uniform(0.15, 0.25)
    tip = (front - head * rng.uniform(0, 0.4), 0.0, top + long + head)
    solids.append(beam("neck", (front, 0, top + long - 0.02), tip, (0.04, 0.13), (0.04, rng.uniform(0.1, 0.2))))
    for y in (-1, 1):
        for i in range(2):  # pegs
            x, z = front + (tip[0] - front) * (i + 0.5) / 2, top + long + head * (i + 0.5) / 2
            solids.append(rod("neck", (x, y * 0.05, z), (x, y * 0.12, z), 0.014))
    solids.append(box("body", (front, 0, tall * rng.uniform(0.5, 0.8)), (0.05, wide * 0.6, 0.05)))  # bridge
    return solids


def hammer(rng: Sampler) -> list[Solid]:
    """A head across a shaft: a face on one side; a claw, a wedge or a second face on the other."""
    z, reach, size = rng.uniform(0.45, 1.5), rng.uniform(0.15, 0.5), rng.uniform(0.05, 0.13)
    solids = _shaft(rng, z)
    style = rng.integer(0, 2)
    if style == 0:  # a mallet
        if rng.boolean(0.5):
            return [*solids, rod("head", (0, -reach, z), (0, reach, z), size * 1.5)]
        return [*solids, beam("head", (0, -reach, z), (0, reach, z), (size * 2.6, size * 2.6))]
    solids += [
        box("head", (0, 0, z - size), (size * 1.8, size * 2.2, size * 2)),
        rod("head", (0, 0, z), (0, reach * 0.6, z), size * 0.7),
        rod("head", (0, reach * 0.55, z), (0, reach * 0.9, z), size * rng.uniform(0.9, 1.2)),
    ]
    if style == 1:
        wide = size * 1.7
        return [*solids, beam("head", (0, 0, z), (0, -reach * 1.1, z), (wide, wide), (wide, 0.02))]
    for x in (-1, 1):  # a claw, curved downwards in two pieces
        root, knee = (x * size * 0.4, 0.0, z), (x * size * 0.7, -reach * 0.6, z - 0.01)
        tip = (x * size * 0.9, -reach * 1.1, z - reach * 0.45)
        solids.append(beam("head", root, knee, (size * 0.8, size * 1.2), (size * 0.7, size * 0.8)))
        solids.append(beam("head", knee, tip, (size * 0.7, size * 0.8), (size * 0.6, 0.02)))
    return solids


def axe(rng: Sampler) -> list[Solid]:
    """A hammer whose head is a blade: it spreads toward a thin edge; sometimes on both sides."""
    z, reach, size = rng.uniform(0.45, 1.5), rng.uniform(0.2, 0.6), rng.uniform(0.04, 0.11)
    high, edge = size * rng.uniform(2, 3), rng.uniform(0.3, 0.6)
    solids = _shaft(rng, z + size)
    solids.append(box("blade", (0, 0, z - high / 2), (size * 1.8, size * 2.2, high)))
    for side in (-1, 1) if rng.boolean(0.3) else (1,):
        end = (0.0, side * reach, z - rng.uniform(0, 0.08))
        solids.append(beam("blade", (0, 0, z), end, (size * 1.4, high), (0.01, edge)))
    return solids


def _shaft(rng: Sampler, h: float) -> list[Solid]:
    """A handle, sometimes with a thicker grip."""
    r = rng.uniform(0.025, 0.045)
    shaft = rod("handle", (0, 0, 0), (0, 0, h), (r * rng.uniform(1, 1.4), r), rng.uniform(0.8, 1.1))
    return (
        [shaft, rod("handle", (0, 0, 0), (0, 0, h * rng.uniform(0.3, 0.45)), r * 1.6)] if rng.boolean(0.5) else [shaft]
    )


def hand(rng: Sampler) -> list[Solid]:
    """A right hand: palm toward +x, fingers up and bent toward the palm, the thumb on the side of +y."""
    wide, tall, thick = rng.uniform(0.33, 0.6), rng.uniform(0.35, 0.6), rng.uniform(0.09, 0.24)
    size, long, curl, splay = (
        wide * rng.uniform(0.1, 0.13),
        rng.uniform(0.35, 0.75),
        rng.uniform(0.12, 0.85),
        rng.uniform(0.1, 0.9),
    )
    wrist, folded = wide * rng.uniform(0.55, 0.75), 0.5 if rng.boolean(0.4) else 0.0  # some hands point or count
    solids = [
        box("palm", (0, 0, 0), (thick, wide * 0.85, tall), (thick * 0.8, wide)),
        rod("palm", (0, 0, -rng.uniform(0.1, 1)), (0, 0, 0.1), (thick * 0.45, wrist / 2), rng.uniform(0.8, 1)),
    ]
    for i, share in enumerate((0.9, 1.0, 0.93, 0.72)):  # from the index to the little finger
        y, fan, flexion = (
            wide * (0.38 - 0.25 * i),
            splay * (0.5 - i / 3),
            1.9 if rng.boolean(folded) else curl * rng.uniform(0.7, 1.2),
        )
        solids += _finger((0.0, y, tall * 0.97), long * share, fan, flexion, size)
    root, knuckle = (
        (thick * 0.2, wide * 0.36, tall * 0.2),
        (thick * 0.7, wide * rng.uniform(0.7, 1.1), tall * rng.uniform(0.4, 0.65)),
    )
    tip = (thick * 1.4, knuckle[1] + wide * rng.uniform(-0.1, 0.4), knuckle[2] + long * rng.uniform(0.3, 0.42))
    return [*solids, _bone(root, knuckle, size * 1.5), _bone(knuckle, tip, size * 1.2)]


def _finger(root: Point, length: float, fan: float, flexion: float, size: float) -> list[Solid]:
    """Three bones, each bent further toward +x than the one before."""
    bones = []
    for share, turn in ((0.45, 0.35), (0.32, 1.0), (0.28, 1.6)):
        step, angle = length * share, flexion * turn
        flat = step * math.cos(angle)
        end = (root[0] + step * math.sin(angle), root[1] + flat * math.sin(fan), root[2] + flat * math.cos(fan))
        bones.append(_bone(root, end, size))
        root = end
    return bones


def _bone(start: Point, end: Point, size: float) -> Solid:
    """A long ball that reaches a little beyond both of its ends."""
    x, y, z = ((a + b) / 2 for a, b in zip(start, end, strict=True))
    along = (end[0] - start[0], end[1] - start[1], end[2] - start[2])
    return ball("finger", (x, y, z), (size, size, math.hypot(*along) / 2 + size * 0.6), along)


def stair(rng: Sampler) -> list[Solid]:
    """A spiral stair that rises as a right-handed screw does: steps around a pole, sometimes with a rail."""
    count, turns, rise = rng.integer(10, 16), rng.uniform(0.7, 1.3), rng.uniform(0.1, 0.24)
    reach, t, pole = rng.uniform(0.4, 1.4), rng.uniform(0.03, 0.06), rng.uniform(0.04, 0.1)
    pitch = 2 * math.pi * turns / count
    wide, start, rail = (
        reach * min(2 * math.tan(pitch / 2) * rng.uniform(0.9, 1.2), 0.9),
        rng.uniform(0, 2 * math.pi),
        rng.uniform(0.3, 0.5),
    )
    solids = [rod("pole", (0, 0, 0), (0, 0, count * rise + rng.uniform(0.1, 0.6)), pole)]
    railed = rng.boolean(0.4)
    for i in range(count):
        angle, z = start + i * pitch, (i + 0.7) * rise
        across = polar(1, angle + math.pi / 2)
        solids.append(beam("step", (0, 0, z), polar(reach, angle, z), (pole, t), (wide, t), across))
        if railed and i % 2 == 0:
            foot = polar(reach * 0.94, angle, z)
            solids.append(rod("pole", foot, (foot[0], foot[1], z + rail), 0.018))
    return solids
