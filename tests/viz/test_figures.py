import sys

import pytest
import torch

from vector_neurons.viz import figures


def offsets(figure) -> list[int]:
    """How many dots each tile has."""
    return [len(axes.collections[0].get_offsets()) for axes in figure.axes]


def test_a_tile_for_every_cloud():
    points = torch.randn(5, 50, 3)
    figure = figures.gallery(points, torch.arange(50).expand(5, 50), list("abcde"), columns=3)
    assert [axes.get_title() for axes in figure.axes] == list("abcde")
    assert offsets(figure) == [50] * 5
    assert offsets(figures.gallery(points)) == [50] * 5


def test_near_dots_are_drawn_last_and_parts_have_colors():
    points = torch.tensor([[[1.0, 0, 0], [-1.0, 0, 0], [0, 0, 0]]])  # the eye is on the side of +x
    figure = figures.gallery(points, torch.tensor([[0, 1, 2]]), azimuth=0.0, elevation=0.0)
    colors = figure.axes[0].collections[0].get_facecolors()  # type: ignore[attr-defined]
    assert colors[0].argmax() == 0 or colors[0][0] > colors[0][2]  # orange, far away
    assert colors[2][2] > colors[2][0]  # blue, near
    assert len({tuple(color) for color in colors}) == 3


def test_what_faces_away_is_not_drawn():
    points = torch.nn.functional.normalize(torch.randn(1, 400, 3), dim=-1)
    (drawn,) = offsets(figures.gallery(points, normals=points, azimuth=10.0, elevation=20.0))
    assert 150 < drawn < 250


def test_a_single_place_can_be_drawn():
    assert offsets(figures.gallery(torch.zeros(1, 3, 3))) == [3]


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "vector-neurons\[viz\]"'):
        figures.gallery(torch.zeros(1, 3, 3))


def test_titles_must_match():
    with pytest.raises(ValueError, match="2 clouds need 2 titles, got 1"):
        figures.gallery(torch.zeros(2, 3, 3), titles=["one"])


def test_clouds_of_different_sizes_come_in_lists():
    points = [torch.nn.functional.normalize(torch.randn(n, 3), dim=-1) for n in (50, 7)]
    figure = figures.gallery(points, normals=[points[0], None], radius=2.0)
    first, second = offsets(figure)
    assert 0 < first < 50
    assert second == 7
    assert all(axes.get_xlim() == (-2.0, 2.0) for axes in figure.axes)
    with pytest.raises(ValueError, match="2 clouds need normals for 2, got 1"):
        figures.gallery(points, normals=[None])
