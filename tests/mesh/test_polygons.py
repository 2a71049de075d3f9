"""Triangles cover their polygon once, whether it is convex or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vector_neurons.mesh import read
from vector_neurons.mesh.polygons import clip_ears, triangulate, triangulate_mixed

# A square with a notch, an arrowhead, and a ring: its outline, a bridge to the hole, the hole, and the bridge back.
NOTCH = [(0, 0), (4, 0), (4, 4), (2, 1), (0, 4)]
ARROW = [(0, 0), (2, -1), (1, 0), (2, 1)]
RING = [(0, 0), (4, 0), (4, 4), (0, 4), (0, 0), (1, 1), (1, 3), (3, 3), (3, 1), (1, 1)]


def outline_area(polygon):
    """By the shoelace formula, corner by corner."""
    total = 0.0
    for i, (x, y) in enumerate(polygon):
        nx, ny = polygon[(i + 1) % len(polygon)]
        total += x * ny - nx * y
    return total / 2


def triangle_areas(points, triangles):
    a, b, c = (points[triangles[:, i]] for i in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=-1) / 2


def in_space(polygon, seed=0):
    """The polygon in a random plane."""
    axes = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return np.array(polygon, dtype=float) @ axes[:2] + [5, -7, 11]


@pytest.mark.parametrize("polygon", [NOTCH, ARROW, RING])
@pytest.mark.parametrize("backward", [False, True])
def test_a_concave_polygon_is_covered_once_from_every_first_corner(polygon, backward):
    for start in range(len(polygon)):
        turned = polygon[start:] + polygon[:start]
        points = in_space(turned[::-1] if backward else turned, start)
        triangles = triangulate(np.arange(len(points))[None]).place(points)
        assert len(triangles) == len(points) - 2
        assert triangle_areas(points, triangles).sum() == pytest.approx(abs(outline_area(polygon)))


@given(st.lists(st.floats(0.1, 1), min_size=4, max_size=12))
def test_a_star_is_covered_once(radii):
    angles = 2 * np.pi * np.arange(len(radii)) / len(radii)
    star = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * np.array(radii)[:, None]
    triangles = np.array(clip_ears(star))
    flat = np.pad(star, ((0, 0), (0, 1)))
    assert triangle_areas(flat, triangles).sum() == pytest.approx(outline_area(star.tolist()))
    assert len(triangles) == len(radii) - 2


def test_convex_polygons_stay_fans_and_keep_their_order():
    points = in_space([(0, 0), (1, 0), (1, 1), (0, 1), *((x + 9, y) for x, y in NOTCH)])
    corners = [[0, 1, 2], [0, 1, 2, 3], [5, 6, 7, 8, 4], [1, 2, 3]]
    triangles = triangulate_mixed(corners).place(points)
    assert triangles[:3].tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 3]]
    assert triangles[-1].tolist() == [1, 2, 3]
    assert triangle_areas(points, triangles[3:6]).sum() == pytest.approx(outline_area(NOTCH))


def test_what_is_no_polygon_is_still_cut_into_triangles():
    bow = np.array([[0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0]], dtype=float)  # crosses itself
    line = np.array([[0, 0, 0], [3, 0, 0], [1, 0, 0], [2, 0, 0]], dtype=float)
    for points in (bow, line, np.full((4, 3), np.nan), np.zeros((4, 3))):
        assert triangulate(np.arange(4)[None]).place(points).shape == (2, 3)
    outside = triangulate(np.array([[0, 1, 2, 9]]))
    assert outside.place(bow).tolist() == [[0, 1, 2], [0, 2, 9]]  # whoever reads the file refuses it


@pytest.mark.parametrize("suffix", ["obj", "off", "ply"])
def test_files_with_concave_polygons(tmp_path, suffix):
    points = in_space(NOTCH)[[4, 0, 1, 2, 3]]  # a fan around the first corner would cover the notch
    rows = "\n".join(" ".join(map(repr, map(float, row))) for row in points)
    texts = {
        "obj": "\n".join(f"v {row}" for row in rows.split("\n")) + "\nf 1 2 3 4 5\n",
        "off": f"OFF\n5 1 0\n{rows}\n5 0 1 2 3 4\n",
        "ply": "ply\nformat ascii 1.0\nelement vertex 5\nproperty float x\nproperty float y\nproperty float z\n"
        f"element face 1\nproperty list uchar int vertex_indices\nend_header\n{rows}\n5 0 1 2 3 4\n",
    }
    (tmp_path / f"a.{suffix}").write_text(texts[suffix])
    mesh = read(tmp_path / f"a.{suffix}")
    areas = triangle_areas(mesh.vertices.numpy(), mesh.faces.numpy())
    assert areas.sum() == pytest.approx(outline_area(NOTCH))
