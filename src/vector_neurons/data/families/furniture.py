"""Furniture. Stools, benches and tables differ in little but their proportions."""

import math

from ..solids import Pair, Solid, ball, beam, box, ring, rod
from .sampler import Sampler, circle, polar

CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def table(rng: Sampler) -> list[Solid]:
    """A thin top on four legs, on a column or on two side panels."""
    w, h, t = rng.uniform(0.7, 2.2), rng.uniform(0.25, 1.2), rng.uniform(0.02, 0.07)
    d = w * rng.uniform(0.3, 1)
    if rng.boolean(0.35):
        top = rod("top", (0, 0, h - t), (0, 0, h), (w / 2, d / 2))
        return [top, *(_column(rng, h - t, d * 0.3) if rng.boolean(0.5) else _legs(rng, (w * 0.6, d * 0.6), h - t))]
    top = box("top", (0, 0, h - t), (w, d, t))
    if rng.boolean(0.3):
        return [top, *_panels(rng, (w, d), h - t)]
    legs = _legs(rng, (w * rng.uniform(0.8, 0.95), d * rng.uniform(0.8, 0.92)), h - t)
    if rng.boolean(0.4):  # an apron below the top
        legs.append(box("top", (0, 0, h - t - 0.09), (w * 0.8, d * 0.75, 0.1)))
    return [top, *legs]


def stool(rng: Sampler) -> list[Solid]:
    """A thick small seat, high on its legs."""
    w, h, t = rng.uniform(0.3, 0.55), rng.uniform(0.3, 0.9), rng.uniform(0.05, 0.12)
    d = w * rng.uniform(0.75, 1)
    seat = (
        rod("seat", (0, 0, h - t), (0, 0, h), (w / 2, d / 2), rng.uniform(0.9, 1))
        if rng.boolean(0.6)
        else box("seat", (0, 0, h - t), (w, d, t))
    )
    if rng.boolean(0.25):
        return [seat, *_column(rng, h - t, d * 0.4)]
    if rng.boolean(0.5):
        return [seat, *_legs(rng, (w * 0.7, d * 0.7), h - t)]
    thick, foot, turn = rng.uniform(0.012, 0.03), rng.uniform(0.4, 0.6) * w, rng.uniform(0, 1)
    legs = [rod("leg", polar(foot, a), polar(d * 0.33, a, h - t), thick) for a in circle(rng.integer(3, 4), turn)]
    if rng.boolean(0.6):  # a ring to rest the feet on, where the legs are at its height
        up = rng.uniform(0.25, 0.4)
        legs.append(ring("leg", (0, 0, (h - t) * up), foot + (d * 0.33 - foot) * up, rng.uniform(0.01, 0.02)))
    return [seat, *legs]


def bench(rng: Sampler) -> list[Solid]:
    """A long low seat of planks, without a back."""
    w, d, h, t = rng.uniform(0.8, 2), rng.uniform(0.28, 0.8), rng.uniform(0.28, 0.75), rng.uniform(0.03, 0.07)
    planks = rng.integer(2, 4)
    pitch = d / planks
    seat = [box("seat", (0, pitch * (i + 0.5) - d / 2, h - t), (w, pitch * 0.8, t)) for i in range(planks)]
    if rng.boolean(0.5):
        return seat + _panels(rng, (w * 0.9, d), h - t)
    x, thick = w * rng.uniform(0.3, 0.44), rng.uniform(0.04, 0.08)
    frame = [box("leg", (side * x, 0, h - t - thick), (thick, d * 0.95, thick)) for side in (-1, 1)]
    return seat + frame + _legs(rng, (2 * x + thick, d * 0.9), h - t - thick / 2, thick)


def chair(rng: Sampler) -> list[Solid]:
    """A seat with a back: a panel, slats or spindles; sometimes arms, sometimes on a column."""
    w, d, h, t = rng.uniform(0.38, 0.7), rng.uniform(0.38, 0.6), rng.uniform(0.35, 0.75), rng.uniform(0.03, 0.1)
    back, lean, post = rng.uniform(0.3, 0.9), rng.uniform(0, 0.15), rng.uniform(0.025, 0.05)
    solids = [box("seat", (0, 0, h - t), (d, w, t))]
    foot, head, side = -d / 2 + post / 2, h + back, w / 2 - post / 2

    def at(height: float) -> float:
        """The back leans: where it is at this height."""
        return foot - lean * (height - h) / back

    style = rng.integer(0, 2)
    if style == 0:
        solids.append(
            beam("back", (at(h), 0, h - t / 2), (at(head), 0, head), (post, w), (post, w * rng.uniform(0.7, 1)))
        )
    else:
        posts = [(foot, y, h - t / 2) for y in (-side, side)]
        solids += [beam("back", p, (at(head), p[1], head), (post, post)) for p in posts]
        count = rng.integer(2, 4)
        low = 0.15 if style == 1 else 0.78
        for i in range(count if style == 1 else 1):  # slats across, or one rail on spindles
            z = h + back * (low + (0.98 - low) * i / count)
            size = 0.5 * back / count if style == 1 else 0.2 * back
            solids.append(beam("back", (at(z), 0, z), (at(z + size), 0, z + size), (post * 0.6, 2 * side)))
        if style == 2:
            positions = [side * (2 * (i + 1) / (count + 2) - 1) for i in range(count + 1)]
            solids += [
                rod("back", (foot, y, h - t / 2), (at(h + back * 0.9), y, h + back * 0.9), 0.01) for y in positions
            ]
    if rng.boolean(0.35):
        z, length = h + rng.uniform(0.15, 0.25), d * rng.uniform(0.7, 1)
        for y in (-side, side):
            solids.append(beam("arm", (at(z), y, z), (foot + length, y, z), (0.05, 0.03), side=(0, 1, 0)))
            solids.append(beam("arm", (foot + length * 0.85, y, h - t), (foot + length * 0.85, y, z), (0.03, 0.03)))
    if rng.boolean(0.25):  # an office chair: a column on a star
        count, reach = rng.integer(4, 5), rng.uniform(0.25, 0.36)
        solids.append(rod("leg", (0, 0, 0.05), (0, 0, h - t), 0.03))
        spokes = [beam("leg", (0, 0, 0.06), polar(reach, a, 0.03), (0.05, 0.05), (0.04, 0.03)) for a in circle(count)]
        return solids + spokes
    return solids + _legs(rng, (d * 0.95, w * 0.95), h - t)


def bed(rng: Sampler) -> list[Solid]:
    """A mattress on a frame with a headboard, perhaps a footboard, pillows and posts."""
    w, length, h, t = rng.uniform(0.7, 2.2), rng.uniform(1.5, 2.3), rng.uniform(0.15, 0.5), rng.uniform(0.14, 0.45)
    head, board = h + t + rng.uniform(0.15, 0.8), rng.uniform(0.04, 0.1)
    x = length / 2
    solids = [
        box("frame", (0, 0, h - 0.12), (length, w, 0.14)),
        box("mattress", (0, 0, h), (length * 0.97, w * 0.95, t)),
        box("frame", (-x, 0, 0), (board, w, head), (board, w * rng.uniform(0.8, 1))),
    ]
    if rng.boolean(0.5):
        solids.append(box("frame", (x, 0, 0), (board, w, h + t * rng.uniform(0.6, 1.6))))
    pillows = 2 if w > 1.3 else 1
    for i in range(pillows):
        y = w * 0.95 * ((i + 0.5) / pillows - 0.5)
        solids.append(ball("mattress", (-x * 0.75, y, h + t), (0.2, w * 0.4 / pillows, 0.09)))
    if rng.boolean(0.3):  # four tall posts
        tall, r = head * rng.uniform(1, 1.8), rng.uniform(0.03, 0.05)
        return solids + [rod("frame", (i * x, j * w / 2, 0), (i * x, j * w / 2, tall), r) for i, j in CORNERS]
    return solids + [box("frame", (i * x * 0.9, j * w * 0.42, 0), (0.08, 0.08, h - 0.1)) for i, j in CORNERS]


def bookshelf(rng: Sampler) -> list[Solid]:
    """Boards between two sides, sometimes with a back, a partition or standing on legs."""
    w, d, h, t = rng.uniform(0.4, 2.2), rng.uniform(0.22, 0.8), rng.uniform(0.6, 2.2), rng.uniform(0.02, 0.05)
    foot, count = rng.uniform(0, 0.2), max(3, round(h / rng.uniform(0.28, 0.5)))
    rise = (h - foot - t) / (count - 1)
    solids = [box("frame", (0, side * (w - t) / 2, 0), (d, t, h)) for side in (-1, 1)]
    solids += [box("board", (0, 0, foot + i * rise), (d * 0.98, w - t, t)) for i in range(count)]
    if rng.boolean(0.5):
        solids.append(box("frame", (-d / 2, 0, foot), (t / 2, w, h - foot)))
    if rng.boolean(0.4):
        solids.append(box("frame", (0, w * rng.uniform(-0.2, 0.2), foot), (d * 0.97, t, h - foot - t / 2)))
    return solids


def lamp(rng: Sampler) -> list[Solid]:
    """A shade, open above and below, on a straight pole or on a bent arm."""
    h, foot, r = rng.uniform(0.5, 1.8), rng.uniform(0.12, 0.3), rng.uniform(0.01, 0.025)
    style = rng.integer(0, 2)
    if style == 0:
        base = rod("base", (0, 0, 0), (0, 0, rng.uniform(0.02, 0.06)), foot, rng.uniform(0.7, 1))
    elif style == 1:
        base = rod("base", (0, 0, 0), (0, 0, foot * rng.uniform(0.5, 1)), foot, rng.uniform(0.1, 0.4))
    else:
        base = ball("base", (0, 0, foot * 0.6), (foot, foot, foot * rng.uniform(0.7, 1.2)))
    wide, tall, narrow = rng.uniform(0.15, 0.45), rng.uniform(0.15, 0.45), rng.uniform(0.3, 0.95)
    if rng.boolean(0.35):  # a reading lamp: two arms and a tilted shade
        knee, reach, tilt = rng.uniform(0.05, 0.35), rng.uniform(0.25, 0.8), rng.uniform(0.2, 0.9)
        elbow, end = (-knee, 0.0, h * rng.uniform(0.5, 0.8)), (reach, 0.0, h)
        size = min(wide, 0.3) * 0.8
        rim = (reach + size * 1.5 * math.sin(tilt), 0.0, h - size * 1.5 * math.cos(tilt))
        arms = [rod("pole", (0, 0, 0.02), elbow, r), rod("pole", elbow, end, r), ball("pole", elbow, (r * 2,) * 3)]
        cap = ball("shade", end, (size * 0.36,) * 3)
        return [base, *arms, cap, rod("shade", rim, end, size, 0.3, hole=0.93)]
    pole = rod("pole", (0, 0, 0), (0, 0, h), r)
    shade = rod("shade", (0, 0, h - tall * 0.7), (0, 0, h + tall * 0.3), wide, narrow, hole=0.94)
    # What holds the shade: a cross bar at the height of the pole's end.
    inner = wide * (1 + (narrow - 1) * 0.7) * 0.97
    return [base, pole, shade, beam("pole", (-inner, 0, h), (inner, 0, h), (r, r))]


def _legs(rng: Sampler, size: Pair, h: float, thick: float | None = None) -> list[Solid]:
    """Four legs, square or round, straight or splayed, even or tapered."""
    thick = rng.uniform(0.03, 0.08) if thick is None else thick
    splay = rng.uniform(1, 1.25) if rng.boolean(0.4) else 1.0
    thin, round_ = rng.uniform(0.5, 1), rng.boolean(0.5)
    legs = []
    for i, j in CORNERS:
        x, y = i * (size[0] - thick) / 2, j * (size[1] - thick) / 2
        foot, top = (x * splay, y * splay, 0.0), (x, y, h)
        if round_:
            legs.append(rod("leg", foot, top, thick * thin / 2, 1 / thin))
        else:
            legs.append(beam("leg", foot, top, (thick * thin, thick * thin), (thick, thick)))
    return legs


def _column(rng: Sampler, h: float, foot: float) -> list[Solid]:
    """One leg on a disc, or on a cross."""
    column = rod("leg", (0, 0, 0.02), (0, 0, h), rng.uniform(0.02, 0.06))
    if rng.boolean(0.5):
        return [column, rod("leg", (0, 0, 0), (0, 0, rng.uniform(0.02, 0.05)), foot, rng.uniform(0.5, 1))]
    return [column, *(beam("leg", (0, 0, 0.04), polar(foot * 1.2, a, 0.025), (0.05, 0.05)) for a in circle(4))]


def _panels(rng: Sampler, size: Pair, h: float) -> list[Solid]:
    """Two side panels with a rail between them."""
    x, t, d = size[0] * rng.uniform(0.35, 0.48), rng.uniform(0.03, 0.07), size[1] * rng.uniform(0.7, 0.95)
    z = h * rng.uniform(0.3, 0.7)
    panels = [box("leg", (side * x, 0, 0), (t, d, h), (t, d * rng.uniform(0.7, 1))) for side in (-1, 1)]
    return [*panels, beam("leg", (-x, 0, z), (x, 0, z), (t, t * 2))]
