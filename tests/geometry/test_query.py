"""The nearest of other points, and weights of interpolation, where distances are equal or vanish."""

import pytest
import torch

from vector_neurons.geometry import query, rotations
from vector_neurons.geometry.neighbors import gather, knn
from vector_neurons.geometry.query import interpolation_weights, nearest


def cloud(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def grid(side=5, dtype=torch.float32):
    axis = torch.linspace(-1, 1, side, dtype=dtype)
    return torch.cartesian_prod(axis, axis, axis)[None]


def duplicated(dtype=torch.float32):
    x = cloud(2, 100, 3, seed=1, dtype=dtype)
    x[:, :40] = x[:, 50:90]
    return x


def turn(x, seed):
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x.double() @ R.mT).to(x.dtype)


@pytest.mark.parametrize("dim", [1, 3, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearest_is_brute_force(dim, dtype):
    queries, points = cloud(2, 30, dim, dtype=dtype), cloud(2, 20, dim, seed=1, dtype=dtype)
    distances = (queries.double().unsqueeze(2) - points.double().unsqueeze(1)).square().sum(-1)
    assert torch.equal(nearest(queries, points, 7), distances.argsort(-1)[..., :7])


def test_nearest_of_the_points_themselves_are_their_neighbors():
    x = cloud(2, 50, 3)
    assert torch.equal(nearest(x, x, 6), knn(x, 6))


def test_blocks_change_nothing(monkeypatch):
    queries, points = grid(), duplicated()[:1]
    whole = nearest(queries, points, 5)
    monkeypatch.setattr(query, "BLOCK_ELEMENTS", 1000)
    assert torch.equal(nearest(queries, points, 5), whole)


@pytest.mark.parametrize("make", [grid, duplicated], ids=["grid", "duplicated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_do_not_depend_on_the_pose(make, dtype):
    points = make(dtype=dtype)
    queries = torch.cat([points[:, ::3], (points[:, :-1:4] + points[:, 1::4]) / 2], dim=1)
    for seed in range(5):
        for k in (1, 3, 8):
            assert torch.equal(nearest(turn(queries, seed), turn(points, seed), k), nearest(queries, points, k))


def test_naive_nearest_do_depend_on_the_pose():
    """Control: the queries above do have ties that rounding decides."""
    points = grid()
    queries = (points[:, :-1:4] + points[:, 1::4]) / 2
    naive = [torch.cdist(turn(queries, s), turn(points, s)).topk(3, largest=False).indices for s in range(2)]
    assert not torch.equal(naive[0].sort(-1).values, naive[1].sort(-1).values)


def test_ties_go_to_the_point_nearer_the_origin_then_to_the_lower_index():
    points = torch.tensor([[[3.0, 0.0], [2.0, 1.0], [2.0, -1.0], [1.0, 0.0]]])
    assert nearest(torch.tensor([[[2.0, 0.0]]]), points, 3).tolist() == [[[3, 1, 2]]]


def test_padding_is_never_found_and_changes_nothing():
    queries, points = cloud(2, 30, 3), cloud(2, 20, 3, seed=1)
    mask = torch.arange(20) < torch.tensor([[20], [11]])
    for padding in (torch.nan, 1e30, 0.0):
        padded = points.where(mask.unsqueeze(-1), padding)
        found = nearest(queries, padded, 5, mask=mask)
        assert torch.equal(found[0], nearest(queries, points, 5)[0])
        assert torch.equal(found[1], nearest(queries[1:], points[1:, :11], 5)[0])
        weights = interpolation_weights(queries, padded, found, mask=mask)
        assert torch.equal(weights[1], interpolation_weights(queries[1:], points[1:, :11], found[1:])[0])


def test_clouds_of_fewer_points_than_k():
    queries, points, mask = cloud(1, 6, 3), cloud(1, 4, 3, seed=1), torch.tensor([[False, True, False, True]])
    found = nearest(queries, points, 3, mask=mask)
    alone = nearest(queries, points[:, 1::2], 2)
    assert torch.equal(found[..., :2], 2 * alone + 1)
    assert torch.equal(found[..., 2], found[..., 0])
    weights = interpolation_weights(queries, points, found, mask=mask)
    assert torch.equal(weights[..., 2], torch.zeros(1, 6))
    torch.testing.assert_close(weights[..., :2], interpolation_weights(queries, points[:, 1::2], alone))


@pytest.mark.parametrize("exponent", [-100, -60, 64, 110])
def test_units_of_length_do_not_matter(exponent):
    queries, points = cloud(2, 30, 3), cloud(2, 20, 3, seed=1)
    scale = torch.tensor([1.0, 2.0**exponent]).view(2, 1, 1)
    found = nearest(queries * scale, points * scale, 3)
    assert torch.equal(found, nearest(queries, points, 3))
    weights = [interpolation_weights(queries * s, points * s, found) for s in (1, scale)]
    assert torch.equal(*weights)


def test_weights_by_hand():
    queries, points = cloud(2, 9, 3, dtype=torch.float64), cloud(2, 7, 3, seed=1, dtype=torch.float64)
    neighbors = nearest(queries, points, 3)
    weights = interpolation_weights(queries, points, neighbors)
    for b in range(2):
        for n in range(9):
            squares = [sum((points[b, m] - queries[b, n]).tolist()[a] ** 2 for a in range(3)) for m in neighbors[b, n]]
            total = sum(1 / s for s in squares)
            for j, s in enumerate(squares):
                assert abs(weights[b, n, j].item() - 1 / s / total) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_at_a_point_takes_it_and_at_several_takes_their_mean(dtype):
    points = cloud(1, 6, 3, dtype=dtype)
    points[:, 4] = points[:, 1]
    for pose in (points, turn(points, 0), turn(points, 1)):
        for q, expected in ((0, {0: 1.0}), (1, {1: 0.5, 4: 0.5})):
            found = nearest(pose[:, q : q + 1], pose, 3)
            weights = interpolation_weights(pose[:, q : q + 1], pose, found)
            pairs = zip(found[0, 0].tolist(), weights[0, 0].tolist(), strict=True)
            assert all(abs(w - expected.get(m, 0.0)) < 1e-7 for m, w in pairs)


@pytest.mark.parametrize("points", [torch.zeros(1, 5, 3), torch.ones(1, 5, 3), torch.ones(1, 5, 3) / 3, cloud(1, 1, 3)])
def test_weights_and_gradients_are_finite_where_points_coincide(points):
    points = points.double().requires_grad_()
    queries = points.detach().clone()[:, :2].requires_grad_()
    found = nearest(queries, points, min(3, points.shape[1]))
    weights = interpolation_weights(queries, points, found)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / weights.shape[-1]))
    weights.square().sum().backward()
    assert queries.grad.isfinite().all()
    assert points.grad.isfinite().all()


def test_gradients_of_weights():
    queries, points = (cloud(1, n, 3, seed=n, dtype=torch.float64).requires_grad_() for n in (4, 6))
    found = nearest(queries, points, 3)
    assert torch.autograd.gradcheck(lambda q, p: interpolation_weights(q, p, found), (queries, points))


def test_nearest_under_vmap():
    queries, points = cloud(3, 2, 8, 3), cloud(3, 2, 16, 3, seed=1)
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    found = torch.func.vmap(lambda q, p: nearest(q, p, 4, mask=mask))(queries, points)
    assert torch.equal(found, torch.stack([nearest(q, p, 4, mask=mask) for q, p in zip(queries, points, strict=True)]))


def test_no_queries():
    assert nearest(cloud(2, 0, 3), cloud(2, 5, 3), 3).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("arguments", "mask", "words"),
    [
        ((cloud(1, 5, 3), cloud(1, 4, 3), 5), None, "1 <= k <= 4"),
        ((cloud(1, 5, 3), cloud(1, 4, 3), 0), None, "k=0"),
        ((cloud(5, 3), cloud(1, 4, 3), 2), None, r"queries \(B, Q, 3\)"),
        ((cloud(1, 5, 3), cloud(2, 4, 3), 2), None, "got"),
        ((cloud(1, 5, 2), cloud(1, 4, 3), 2), None, "got"),
        ((cloud(1, 5, 3), cloud(1, 4, 3), 2), torch.ones(1, 5, dtype=torch.bool), r"mask \(1, 4\)"),
        ((cloud(1, 5, 3), cloud(1, 4, 3), 2), torch.zeros(1, 4, dtype=torch.bool), "False everywhere"),
    ],
)
def test_bad_input(unchecked, arguments, mask, words):
    with pytest.raises(ValueError, match=words) as raised:
        nearest(*arguments, mask=mask)
    assert "\n" not in str(raised.value)


def test_interpolation_of_a_linear_function_between_its_points():
    """Weights sum to 1, so constants are kept, and values lie between those of the sources."""
    queries, points = cloud(2, 30, 3), cloud(2, 20, 3, seed=1)
    found = nearest(queries, points, 3)
    weights = interpolation_weights(queries, points, found)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 30))
    assert (weights >= 0).all()
    assert (weights[..., :-1] >= weights[..., 1:] - 1e-6).all()  # nearer points weigh more
    assert gather(points, found).shape == (2, 30, 3, 3)
