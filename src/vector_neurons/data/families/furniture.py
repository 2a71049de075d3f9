"""Furniture. Stools, benches and tables differ in little but their proportions."""

import math

from ..solids import Pair, Solid, ball, beam, box, ring, rod
from .draw import Draw, circle, polar

CORNERS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def table(draw: Draw) -> list[Solid]:
    """A thin top on four legs, on a column or on two side panels."""
    w, h, t = draw(0.7, 2.2), draw(0.25, 1.2), draw(0.02, 0.07)
    d = w * draw(0.3, 1)
    if draw.chance(0.35):
        top = rod("top", (0, 0, h - t), (0, 0, h), (w / 2, d / 2))
        return [top, *(_column(draw, h - t, d * 0.3) if draw.chance(0.5) else _legs(draw, (w * 0.6, d * 0.6), h - t))]
    top = box("top", (0, 0, h - t), (w, d, t))
    if draw.chance(0.3):
        return [top, *_panels(draw, (w, d), h - t)]
    legs = _legs(draw, (w * draw(0.8, 0.95), d * draw(0.8, 0.92)), h - t)
    if draw.chance(0.4):  # an apron below the top
        legs.append(box("top", (0, 0, h - t - 0.09), (w * 0.8, d * 0.75, 0.1)))
    return [top, *legs]


def stool(draw: Draw) -> list[Solid]:
    """A thick small seat, high on its legs."""
    w, h, t = draw(0.3, 0.55), draw(0.3, 0.9), draw(0.05, 0.12)
    d = w * draw(0.75, 1)
    seat = (
        rod("seat", (0, 0, h - t), (0, 0, h), (w / 2, d / 2), draw(0.9, 1))
        if draw.chance(0.6)
        else box("seat", (0, 0, h - t), (w, d, t))
    )
    if draw.chance(0.25):
        return [seat, *_column(draw, h - t, d * 0.4)]
    if draw.chance(0.5):
        return [seat, *_legs(draw, (w * 0.7, d * 0.7), h - t)]
    thick, foot, turn = draw(0.012, 0.03), draw(0.4, 0.6) * w, draw(0, 1)
    legs = [rod("leg", polar(foot, a), polar(d * 0.33, a, h - t), thick) for a in circle(draw.count(3, 4), turn)]
    if draw.chance(0.6):  # a ring to rest the feet on, where the legs are at its height
        up = draw(0.25, 0.4)
        legs.append(ring("leg", (0, 0, (h - t) * up), foot + (d * 0.33 - foot) * up, draw(0.01, 0.02)))
    return [seat, *legs]


def bench(draw: Draw) -> list[Solid]:
    """A long low seat of planks, without a back."""
    w, d, h, t = draw(0.8, 2), draw(0.28, 0.8), draw(0.28, 0.75), draw(0.03, 0.07)
    planks = draw.count(2, 4)
    pitch = d / planks
    seat = [box("seat", (0, pitch * (i + 0.5) - d / 2, h - t), (w, pitch * 0.8, t)) for i in range(planks)]
    if draw.chance(0.5):
        return seat + _panels(draw, (w * 0.9, d), h - t)
    x, thick = w * draw(0.3, 0.44), draw(0.04, 0.08)
    frame = [box("leg", (side * x, 0, h - t - thick), (thick, d * 0.95, thick)) for side in (-1, 1)]
    return seat + frame + _legs(draw, (2 * x + thick, d * 0.9), h - t - thick / 2, thick)


def chair(draw: Draw) -> list[Solid]:
    """A seat with a back: a panel, slats or spindles; sometimes arms, sometimes on a column."""
    w, d, h, t = draw(0.38, 0.7), draw(0.38, 0.6), draw(0.35, 0.75), draw(0.03, 0.1)
    back, lean, post = draw(0.3, 0.9), draw(0, 0.15), draw(0.025, 0.05)
    solids = [box("seat", (0, 0, h - t), (d, w, t))]
    foot, head, side = -d / 2 + post / 2, h + back, w / 2 - post / 2

    def at(height: float) -> float:
        """The back leans: where it is at this height."""
        return foot - lean * (height - h) / back

    style = draw.count(0, 2)
    if style == 0:
        solids.append(beam("back", (at(h), 0, h - t / 2), (at(head), 0, head), (post, w), (post, w * draw(0.7, 1))))
    else:
        posts = [(foot, y, h - t / 2) for y in (-side, side)]
        solids += [beam("back", p, (at(head), p[1], head), (post, post)) for p in posts]
        count = draw.count(2, 4)
        low = 0.15 if style == 1 else 0.78
        for i in range(count if style == 1 else 1):  # slats across, or one rail on spindles
            z = h + back * (low + (0.98 - low) * i / count)
            size = 0.5 * back / count if style == 1 else 0.2 * back
            solids.append(beam("back", (at(z), 0, z), (at(z + size), 0, z + size), (post * 0.6, 2 * side)))
        if style == 2:
            spread = [side * (2 * (i + 1) / (count + 2) - 1) for i in range(count + 1)]
            solids += [rod("back", (foot, y, h - t / 2), (at(h + back * 0.9), y, h + back * 0.9), 0.01) for y in spread]
    if draw.chance(0.35):
        z, length = h + draw(0.15, 0.25), d * draw(0.7, 1)
        for y in (-side, side):
            solids.append(beam("arm", (at(z), y, z), (foot + length, y, z), (0.05, 0.03), side=(0, 1, 0)))
            solids.append(beam("arm", (foot + length * 0.85, y, h - t), (foot + length * 0.85, y, z), (0.03, 0.03)))
    if draw.chance(0.25):  # an office chair: a column on a star
        count, reach = draw.count(4, 5), draw(0.25, 0.36)
        solids.append(rod("leg", (0, 0, 0.05), (0, 0, h - t), 0.03))
        spokes = [beam("leg", (0, 0, 0.06), polar(reach, a, 0.03), (0.05, 0.05), (0.04, 0.03)) for a in circle(count)]
        return solids + spokes
    return solids + _legs(draw, (d * 0.95, w * 0.95), h - t)


def bed(draw: Draw) -> list[Solid]:
    """A mattress on a frame with a headboard, perhaps a footboard, pillows and posts."""
    w, length, h, t = draw(0.7, 2.2), draw(1.5, 2.3), draw(0.15, 0.5), draw(0.14, 0.45)
    head, board = h + t + draw(0.15, 0.8), draw(0.04, 0.1)
    x = length / 2
    solids = [
        box("frame", (0, 0, h - 0.12), (length, w, 0.14)),
        box("mattress", (0, 0, h), (length * 0.97, w * 0.95, t)),
        box("frame", (-x, 0, 0), (board, w, head), (board, w * draw(0.8, 1))),
    ]
    if draw.chance(0.5):
        solids.append(box("frame", (x, 0, 0), (board, w, h + t * draw(0.6, 1.6))))
    pillows = 2 if w > 1.3 else 1
    for i in range(pillows):
        y = w * 0.95 * ((i + 0.5) / pillows - 0.5)
        solids.append(ball("mattress", (-x * 0.75, y, h + t), (0.2, w * 0.4 / pillows, 0.09)))
    if draw.chance(0.3):  # four tall posts
        tall, r = head * draw(1, 1.8), draw(0.03, 0.05)
        return solids + [rod("frame", (i * x, j * w / 2, 0), (i * x, j * w / 2, tall), r) for i, j in CORNERS]
    return solids + [box("frame", (i * x * 0.9, j * w * 0.42, 0), (0.08, 0.08, h - 0.1)) for i, j in CORNERS]


def bookshelf(draw: Draw) -> list[Solid]:
    """Boards between two sides, sometimes with a back, a partition or standing on legs."""
    w, d, h, t = draw(0.4, 2.2), draw(0.22, 0.8), draw(0.6, 2.2), draw(0.02, 0.05)
    foot, count = draw(0, 0.2), max(3, round(h / draw(0.28, 0.5)))
    rise = (h - foot - t) / (count - 1)
    solids = [box("frame", (0, side * (w - t) / 2, 0), (d, t, h)) for side in (-1, 1)]
    solids += [box("board", (0, 0, foot + i * rise), (d * 0.98, w - t, t)) for i in range(count)]
    if draw.chance(0.5):
        solids.append(box("frame", (-d / 2, 0, foot), (t / 2, w, h - foot)))
    if draw.chance(0.4):
        solids.append(box("frame", (0, w * draw(-0.2, 0.2), foot), (d * 0.97, t, h - foot - t / 2)))
    return solids


def lamp(draw: Draw) -> list[Solid]:
    """A shade, open above and below, on a straight pole or on a bent arm."""
    h, foot, r = draw(0.5, 1.8), draw(0.12, 0.3), draw(0.01, 0.025)
    style = draw.count(0, 2)
    if style == 0:
        base = rod("base", (0, 0, 0), (0, 0, draw(0.02, 0.06)), foot, draw(0.7, 1))
    elif style == 1:
        base = rod("base", (0, 0, 0), (0, 0, foot * draw(0.5, 1)), foot, draw(0.1, 0.4))
    else:
        base = ball("base", (0, 0, foot * 0.6), (foot, foot, foot * draw(0.7, 1.2)))
    wide, tall, narrow = draw(0.15, 0.45), draw(0.15, 0.45), draw(0.3, 0.95)
    if draw.chance(0.35):  # a reading lamp: two arms and a tilted shade
        knee, reach, tilt = draw(0.05, 0.35), draw(0.25, 0.8), draw(0.2, 0.9)
        elbow, end = (-knee, 0.0, h * draw(0.5, 0.8)), (reach, 0.0, h)
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


def _legs(draw: Draw, spread: Pair, h: float, thick: float | None = None) -> list[Solid]:
    """Four legs, square or round, straight or splayed, even or tapered."""
    thick = draw(0.03, 0.08) if thick is None else thick
    splay = draw(1, 1.25) if draw.chance(0.4) else 1.0
    thin, round_ = draw(0.5, 1), draw.chance(0.5)
    legs = []
    for i, j in CORNERS:
        x, y = i * (spread[0] - thick) / 2, j * (spread[1] - thick) / 2
        foot, top = (x * splay, y * splay, 0.0), (x, y, h)
        if round_:
            legs.append(rod("leg", foot, top, thick * thin / 2, 1 / thin))
        else:
            legs.append(beam("leg", foot, top, (thick * thin, thick * thin), (thick, thick)))
    return legs


def _column(draw: Draw, h: float, foot: float) -> list[Solid]:
    """One leg on a disc, or on a cross."""
    column = rod("leg", (0, 0, 0.02), (0, 0, h), draw(0.02, 0.06))
    if draw.chance(0.5):
        return [column, rod("leg", (0, 0, 0), (0, 0, draw(0.02, 0.05)), foot, draw(0.5, 1))]
    return [column, *(beam("leg", (0, 0, 0.04), polar(foot * 1.2, a, 0.025), (0.05, 0.05)) for a in circle(4))]


def _panels(draw: Draw, spread: Pair, h: float) -> list[Solid]:
    """Two side panels with a rail between them."""
    x, t, d = spread[0] * draw(0.35, 0.48), draw(0.03, 0.07), spread[1] * draw(0.7, 0.95)
    z = h * draw(0.3, 0.7)
    panels = [box("leg", (side * x, 0, 0), (t, d, h), (t, d * draw(0.7, 1))) for side in (-1, 1)]
    return [*panels, beam("leg", (-x, 0, z), (x, 0, z), (t, t * 2))]
