"""Balls around centers: against loops, at the radius itself, where they are empty, and as neighbors of a FrameConv."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vector_neurons.geometry import rotations
from vector_neurons.geometry.neighbors import knn
from vector_neurons.geometry.query import ball_query
from vector_neurons.geometry.sampling import farthest_points
from vector_neurons.nn.hybrid import Features, FrameConv
from vector_neurons.testing import relative_error


def cloud(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def grid(side=5, dtype=torch.float32):
    axis = torch.linspace(-1, 1, side, dtype=dtype)
    return torch.cartesian_prod(axis, axis, axis)[None]


def turn(x, seed):
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x.double() @ R.mT).to(x.dtype)


def by_hand(points, radius, k, centers):
    rows = []
    for n in centers:
        distances = [math.dist(points[m].tolist(), points[n].tolist()) for m in range(len(points))]
        near = sorted((m for m in range(len(points)) if m != n and distances[m] <= radius), key=distances.__getitem__)
        rows.append(([n, *near] + [n] * k)[:k])
    return rows


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), k=st.integers(1, 12), radius=st.floats(0.05, 4.0))
def test_balls_by_hand(seed, k, radius):
    x = cloud(2, 9, 3, seed=seed, dtype=torch.float64)
    centers = torch.tensor([[3, 0, 8, 3], [1, 2, 5, 4]])
    expected = [by_hand(points, radius, k, rows) for points, rows in zip(x, centers.tolist(), strict=True)]
    assert ball_query(x, radius, k, centers).tolist() == expected
    assert ball_query(x, radius, k).tolist() == [by_hand(points, radius, k, range(9)) for points in x]


def test_a_ball_that_holds_everything_is_knn():
    x = cloud(2, 40, 3)
    for radius in (100.0, torch.inf):
        assert torch.equal(ball_query(x, radius, 8), knn(x, 8))


def test_empty_balls_hold_their_center_and_duplicates_come_after_it():
    x = cloud(1, 6, 3)
    assert torch.equal(ball_query(x, 1e-6, 3), torch.arange(6).view(1, 6, 1).expand(1, 6, 3))
    x[:, 4] = x[:, 1]
    assert ball_query(x, 1e-6, 3)[0, [1, 4]].tolist() == [[1, 4, 1], [4, 1, 4]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("radius", [0.5, 2**0.5 / 2, 1.0])
def test_points_at_the_radius_are_inside_in_every_pose(dtype, radius):
    x = grid(dtype=dtype)
    expected = ball_query(x, radius, 40)
    exact = (x[0].unsqueeze(0) - x[0].unsqueeze(1)).double().square().sum(-1).sqrt() <= radius + 1e-9
    assert [len(set(row)) for row in expected[0].tolist()] == exact.sum(-1).clamp(max=40).tolist()
    for seed in range(5):
        assert torch.equal(ball_query(turn(x, seed), radius, 40), expected)
        assert torch.equal(ball_query(turn(x, seed), radius, 5), ball_query(x, radius, 5))


def test_a_strict_radius_would_depend_on_the_pose():
    """Control: rounding puts points at the radius inside in one pose and outside in another."""
    counts = [(torch.cdist(y, y) <= 0.5).sum().item() for y in (turn(grid(), 0), turn(grid(), 1))]
    assert counts[0] != counts[1]


@pytest.mark.parametrize("scale", [2.0**-100, 1e-3, 2.0**100])
def test_the_radius_is_in_the_units_of_the_points(scale):
    x = cloud(2, 40, 3)
    assert torch.equal(ball_query(x * scale, 0.7 * scale, 8), ball_query(x, 0.7, 8))
    assert not torch.equal(ball_query(x * 2, 0.7, 8), ball_query(x, 0.7, 8))


def test_padding_is_in_no_ball():
    x = cloud(2, 20, 3)
    mask = torch.arange(20) < torch.tensor([[20], [4]])
    for padding in (torch.nan, 1e30, 0.0):
        found = ball_query(x.where(mask.unsqueeze(-1), padding), 1.5, 8, mask=mask)
        assert torch.equal(found[0], ball_query(x, 1.5, 8)[0])
        assert torch.equal(found[1, :4], ball_query(x[1:, :4], 1.5, 8)[0])
        assert torch.equal(found[1, 4:], torch.arange(4, 20).view(-1, 1).expand(16, 8))


def test_permutations():
    x, order = cloud(1, 60, 3), torch.randperm(60, generator=torch.Generator().manual_seed(0))
    assert torch.equal(order[ball_query(x[:, order], 0.8, 10)], ball_query(x, 0.8, 10)[:, order])


@pytest.mark.parametrize("make", [grid, lambda dtype: cloud(1, 120, 3, dtype=dtype)], ids=["grid", "generic"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_frame_conv_on_balls_is_equivariant(make, dtype, bound):
    torch.manual_seed(0)
    layer = FrameConv((2, 4), (8, 6)).to(dtype).eval()
    points = make(dtype=dtype)
    s, v = cloud(1, points.shape[1], 2, seed=1, dtype=dtype), cloud(1, points.shape[1], 3, 4, seed=2, dtype=dtype)
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[0].to(dtype)

    def run(points, v):
        return layer(points, Features(s, v), ball_query(points, 0.5, 12, farthest_points(points, 30)))

    here, there = run(points, v), run(points @ R.mT, R @ v)
    assert relative_error(there.scalars, here.scalars) <= bound
    assert relative_error(there.vectors, R @ here.vectors) <= bound
    if make is not grid:  # ties depend on the origin
        assert relative_error(run(points + 3, v).scalars, here.scalars) <= 10 * bound


def test_balls_under_vmap_and_in_graphs():
    x, centers = cloud(3, 2, 16, 3), torch.tensor([[0, 3], [2, 2]])
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    found = torch.func.vmap(lambda y: ball_query(y, 1.0, 4, centers, mask))(x)
    assert torch.equal(found, torch.stack([ball_query(y, 1.0, 4, centers, mask) for y in x]))
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda y: ball_query(y, 1.0, 4, centers), tracing_mode="fake", _allow_non_fake_inputs=True)(x[0])
    assert torch.equal(traced(x[1]), ball_query(x[1], 1.0, 4, centers))


X, INDEX = cloud(2, 5, 3), torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ball_query(X[0], 1.0, 4), r"points \(B, N, 3\)"),
        (lambda: ball_query(X, 1.0, 0), "k >= 1"),
        (lambda: ball_query(X, 0.0, 4), "radius > 0"),
        (lambda: ball_query(X, -1.0, 4), "radius > 0"),
        (lambda: ball_query(X, math.nan, 4), "radius > 0"),
        (lambda: ball_query(X, 1.0, 4, INDEX + 5), "indices 0 to 4"),
        (lambda: ball_query(X, 1.0, 4, INDEX - 1), "indices 0 to 4"),
        (lambda: ball_query(X, 1.0, 4, INDEX[0]), r"indices \(2, M\)"),
        (lambda: ball_query(X, 1.0, 4, X[..., 0]), "got torch.float32"),
        (lambda: ball_query(X, 1.0, 4, mask=torch.ones(2, 4, dtype=torch.bool)), r"mask \(2, 5\)"),
    ],
)
def test_mistakes_are_explained(unchecked, call, words):
    with pytest.raises(ValueError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
