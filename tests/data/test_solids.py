"""Solids are held to analytic volumes and areas, their samples to surfaces cut in small pieces and to random lines."""

import math

import numpy as np
import pytest

from vector_neurons.data.solids import BALL, BOX, CONE, Assembly, Solid, ball, beam, box, mirrored, ring, rod

START, END, SIDE = (0.1, -0.2, 0.3), (0.4, 0.3, 0.9), (0.3, 1.0, -0.2)
LENGTH = math.dist(START, END)
ALONG = tuple(b - a for a, b in zip(START, END, strict=True))

SOLIDS = {
    "box": box("p", START, (0.5, 0.3, 0.7)),
    "wedge": beam("p", START, END, (0.6, 0.2), (0.2, 0.5), SIDE),
    "cylinder": rod("p", START, END, 0.3),
    "cone": rod("p", START, END, 0.4, 0.0),
    "tube": rod("p", START, END, 0.3, 1.4, hole=0.6),
    "oval": rod("p", START, END, (0.5, 0.2), 0.5, hole=0.4, side=SIDE),
    "ball": ball("p", START, (0.5, 0.3, 0.15), ALONG, SIDE),
    "needle": ball("p", START, (0.12, 0.12, 0.7), ALONG),
    "ring": ring("p", START, 0.4, 0.12, up=ALONG),
    "arc": ring("p", START, 0.4, 0.12, 1.1, ALONG, SIDE),
}
VOLUMES = {
    "box": 0.5 * 0.3 * 0.7,
    "wedge": LENGTH * (2 * 0.6 * 0.2 + 2 * 0.2 * 0.5 + 0.6 * 0.5 + 0.2 * 0.2) / 6,
    "cylinder": math.pi * 0.3**2 * LENGTH,
    "cone": math.pi * 0.4**2 * LENGTH / 3,
    "tube": math.pi * 0.3**2 * (1 + 1.4 + 1.4**2) * (1 - 0.6**2) * LENGTH / 3,
    "oval": math.pi * 0.5 * 0.2 * (1 + 0.5 + 0.5**2) * (1 - 0.4**2) * LENGTH / 3,
    "ball": 4 / 3 * math.pi * 0.5 * 0.3 * 0.15,
    "needle": 4 / 3 * math.pi * 0.12**2 * 0.7,
    "ring": 2 * math.pi**2 * 0.4 * 0.12**2,
    "arc": 2 * 1.1 * math.pi * 0.4 * 0.12**2,
}
UNIONS = {
    "table": [box("top", (0, 0, 0.5), (1, 0.8, 0.2)), *(box("leg", (x, 0, 0), (0.2, 0.3, 0.5)) for x in (-0.3, 0.3))],
    "cup": [rod("wall", (0, 0, 0), (0, 0, 0.8), 0.4, 1.2, hole=0.7), rod("floor", (0, 0, 0), (0, 0, 0.2), 0.4, 1.05)],
    "heap": [SOLIDS["wedge"], SOLIDS["oval"], SOLIDS["arc"], SOLIDS["ball"]],
}


@pytest.mark.parametrize("name", SOLIDS)
def test_inside_has_the_analytic_volume(name):
    places = np.random.default_rng(0).uniform(-1.2, 1.8, (200_000, 3))
    share = Assembly([SOLIDS[name]]).inside(places).mean()  # in portions: there are many places
    expected = VOLUMES[name] / 3**3
    assert abs(share - expected) < 4.5 * math.sqrt(expected / len(places))


@pytest.mark.parametrize("name", [*SOLIDS, *UNIONS])
def test_a_step_along_the_normal_leads_out(name):
    union = Assembly(UNIONS.get(name) or [SOLIDS[name]])
    points, normals, owner = union.sample(4000, np.random.default_rng(1))
    assert points.shape == normals.shape == (4000, 3)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-12)
    assert set(owner) == set(range(len(union.solids)))
    np.testing.assert_allclose(union.levels(points)[owner, np.arange(4000)], 0, atol=1e-12)
    # Within a step of an edge between solids, a point may be covered after it.
    assert union.inside(points - 1e-4 * normals).mean() > 0.998
    assert union.inside(points + 1e-4 * normals).mean() < 0.002


def quads(solid: Solid, n: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """A solid's surface in small flat pieces: their middles and areas. Written without the sampling."""
    s = solid.sizes
    corner = np.linspace(0, 1, n + 1)
    u, v = np.meshgrid(corner, corner, indexing="ij")
    x, y, turn = 2 * u - 1, 2 * v - 1, 2 * np.pi * u
    c, d, one = np.cos(turn), np.sin(turn), np.ones_like(u)
    if solid.kind == BOX:
        half = s[0] + (s[2] - s[0]) * v, s[1] + (s[3] - s[1]) * v
        faces = [(s[0] * x, s[1] * y, 0 * u), (s[2] * x, s[3] * y, s[4] * one)]
        faces += [(sign * half[0], half[1] * x, s[4] * v) for sign in (-1, 1)]
        faces += [(half[0] * x, sign * half[1], s[4] * v) for sign in (-1, 1)]
    elif solid.kind == CONE:
        wide, between = 1 + (s[2] - 1) * v, s[3] + (1 - s[3]) * v
        faces = [(k * wide * s[0] * c, k * wide * s[1] * d, s[4] * v) for k in (1, s[3])]
        faces += [(k * between * s[0] * c, k * between * s[1] * d, z * one) for k, z in ((1, 0), (s[2], s[4]))]
    elif solid.kind == BALL:
        flat = np.sin(np.pi * v)
        faces = [(s[0] * flat * c, s[1] * flat * d, s[2] * np.cos(np.pi * v))]
    else:
        far, around = s[0] + s[1] * c, s[2] * y
        faces = [(far * np.cos(around), far * np.sin(around), s[1] * d)]
        if s[2] < math.pi:
            far = s[0] + s[1] * v * c
            faces += [(far * np.cos(s[2]), sign * far * np.sin(s[2]), s[1] * v * d) for sign in (-1, 1)]
    corners = np.stack([np.stack(face, axis=-1) for face in faces]) @ np.array(solid.frame) + solid.origin
    low, right, up, high = corners[:, :-1, :-1], corners[:, 1:, :-1], corners[:, :-1, 1:], corners[:, 1:, 1:]
    areas = np.linalg.norm(np.cross(high - low, up - right), axis=-1) / 2
    return ((low + right + up + high) / 4).reshape(-1, 3), areas.ravel()


def cells(points: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Which of 64 cells, cut at the quartiles of `by`; aslant, so that no cut runs along a face."""
    aslant = np.linalg.qr([[1.0, 0.3, -0.4], [0.2, 1.0, 0.7], [0.5, -0.6, 1.0]])[0]
    cell = np.zeros(len(points), dtype=int)
    for axis in aslant.T:
        cell = 4 * cell + np.searchsorted(np.quantile(by @ axis, (0.25, 0.5, 0.75)), points @ axis)
    return cell


@pytest.mark.parametrize("name", SOLIDS)
def test_samples_are_uniform_by_area(name):
    points, _, _ = Assembly([SOLIDS[name]]).sample(40_000, np.random.default_rng(2))
    middles, areas = quads(SOLIDS[name])
    expected = np.bincount(cells(middles, points), areas, minlength=64) / areas.sum() * len(points)
    counts = np.bincount(cells(points, points), minlength=64)
    used = expected > 5
    statistic = ((counts - expected)[used] ** 2 / expected[used]).sum()
    assert statistic < used.sum() + 4 * math.sqrt(2 * used.sum())


def crossings(union: Assembly, rng: np.random.Generator, lines: int = 12_000, steps: int = 400) -> np.ndarray:
    """Where uniformly random lines enter or leave: uniform on the surface (Crofton), and it takes inside tests only."""
    points = union.sample(1000, rng)[0]
    middle = (points.min(0) + points.max(0)) / 2
    radius = 1.02 * np.linalg.norm(points - middle, axis=1).max()
    frames = np.linalg.qr(rng.standard_normal((lines, 3, 3)))[0]
    angle, reach = rng.uniform(0, 2 * np.pi, lines), radius * np.sqrt(rng.random(lines))
    offset = np.stack([reach * np.cos(angle), reach * np.sin(angle), np.zeros(lines)], axis=1)
    start = middle + np.einsum("lij,lj->li", frames, offset)
    along = np.linspace(-radius, radius, steps)
    places = start[:, None] + along[:, None] * frames[:, None, :, 2]
    inside = np.concatenate([union.inside(part.reshape(-1, 3)) for part in np.array_split(places, 60)])
    inside = inside.reshape(lines, steps)
    line, step = np.nonzero(inside[:, 1:] != inside[:, :-1])
    return (places[line, step] + places[line, step + 1]) / 2


@pytest.mark.parametrize("name", UNIONS)
def test_samples_of_a_union_are_uniform_on_what_random_lines_meet(name):
    union, rng = Assembly(UNIONS[name]), np.random.default_rng(2)
    crossed = crossings(union, rng)
    sampled = union.sample(len(crossed), rng)[0]
    first, second = (np.bincount(cells(each, sampled), minlength=64) for each in (crossed, sampled))
    used = first + second > 0
    # Crossings come in pairs, which doubles the variance of their counts at most.
    statistic = ((first - second)[used] ** 2 / (2 * first + second)[used]).sum()
    assert statistic < used.sum() + 4 * math.sqrt(2 * used.sum())


def test_faces_of_a_box_are_hit_by_area():
    a, b, c = 0.5, 0.3, 0.7
    _, normals, _ = Assembly([box("p", (0, 0, 0), (a, b, c))]).sample(30_000, np.random.default_rng(3))
    face = np.abs(normals).argmax(1) * 2 + (normals.sum(1) > 0)
    expected = np.repeat([b * c, a * c, a * b], 2) / (2 * (a * b + b * c + a * c)) * 30_000
    assert ((np.bincount(face, minlength=6) - expected) ** 2 / expected).sum() < 20.5  # 99.9 % of chi-square with 5


@pytest.mark.parametrize("name", ["box", "wedge", "cylinder", "cone", "tube"])
def test_areas_are_exact_where_they_have_a_formula(name):
    slant = math.hypot(LENGTH, 0.12)
    expected = {
        "box": 2 * (0.5 * 0.3 + 0.3 * 0.7 + 0.5 * 0.7),
        "wedge": 0.12 + 0.1 + 0.7 * math.hypot(LENGTH, 0.2) + 0.8 * math.hypot(LENGTH, 0.15),
        "cylinder": 2 * math.pi * 0.3 * (LENGTH + 0.3),
        "cone": math.pi * 0.4 * (math.hypot(LENGTH, 0.4) + 0.4),
        "tube": math.pi * (0.72 * slant + 0.6 * 0.72 * math.hypot(LENGTH, 0.072) + (0.3**2 + 0.42**2) * (1 - 0.6**2)),
    }
    assert sum(SOLIDS[name].areas) == pytest.approx(expected[name])


def test_hidden_surface_is_removed():
    table = Assembly(UNIONS["table"])
    points, normals, owner = table.sample(50_000, np.random.default_rng(4))
    legs = [i for i, solid in enumerate(table.solids) if solid.part == "leg"]
    under = (normals[:, 2] < -0.9) & (points[:, 2] > 0.4)  # the underside of the top
    over_leg = (np.abs(np.abs(points[:, 0]) - 0.3) < 0.0999) & (np.abs(points[:, 1]) < 0.1499)
    assert under.sum() > 1000
    assert not (under & over_leg).any()
    assert not (np.isin(owner, legs) & (normals[:, 2] > 0.9)).any()  # tops of legs
    ratio = (under.sum() / (normals[:, 2] > 0.9).sum()) / ((0.8 - 2 * 0.06) / 0.8)
    assert ratio == pytest.approx(1, abs=0.05)  # four standard deviations


def test_flush_faces_count_once():
    """Two boxes that overlap flush are one long box: as dense where both lie as where one does."""
    union = Assembly([box("a", (-0.2, 0, 0), (1, 0.5, 0.5)), box("b", (0.2, 0, 0), (1, 0.5, 0.5))])
    points, _, owner = union.sample(20_000, np.random.default_rng(5))
    shared = np.abs(points[:, 0]) < 0.3
    expected = 4 * 0.5 * 0.6 / (4 * 0.5 * 1.4 + 2 * 0.25)
    assert shared.mean() == pytest.approx(expected, abs=4 * math.sqrt(expected / 20_000))
    assert set(owner[shared]) == {0}


def test_a_mirror_image_is_one():
    heap, twin = Assembly(UNIONS["heap"]), Assembly(mirrored(UNIONS["heap"]))
    places = np.random.default_rng(6).uniform(-1, 1.5, (20_000, 3))
    assert np.array_equal(heap.inside(places), twin.inside(places * [1, -1, 1]))
    points, normals, owner = heap.sample(500, np.random.default_rng(7))
    for mine, theirs in zip((points, normals), twin.sample(500, np.random.default_rng(7))[:2], strict=True):
        np.testing.assert_allclose(mine * [1, -1, 1], theirs, atol=1e-12)
    assert np.array_equal(owner, twin.sample(500, np.random.default_rng(7))[2])


@pytest.mark.parametrize("start", [(0, 0, 0), (1.0, 2.0, 3.0)])
@pytest.mark.parametrize("direction", [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, 0, 1), (0.3, -0.5, 0.1)])
def test_frames_are_right_handed_whatever_the_direction(start, direction):
    end = tuple(a + b for a, b in zip(start, direction, strict=True))
    frame = np.array(beam("p", start, end, (0.2, 0.1)).frame)
    np.testing.assert_allclose(frame @ frame.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(frame) == pytest.approx(1)
    np.testing.assert_allclose(frame[2], direction / np.linalg.norm(direction), atol=1e-12)
