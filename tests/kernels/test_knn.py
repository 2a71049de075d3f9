"""Nearest neighbors by the native backend: the same as by the eager one."""

import pytest
import torch

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.geometry import neighbors

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")

GRID = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 6)] * 3, indexing="ij"), dim=-1).reshape(1, -1, 3)


def clouds():
    torch.manual_seed(0)
    generic = torch.randn(2, 200, 3)
    duplicated = generic.clone()
    duplicated[:, :80] = duplicated[:, 100:180]
    return {
        "generic": generic,
        "wide": torch.randn(2, 200, 63),
        "wide-float64": torch.randn(2, 150, 63, dtype=torch.float64),
        "duplicated": duplicated,
        "wide-duplicated": duplicated.repeat(1, 1, 7),
        "grid": GRID,
        "all-equal": torch.ones(1, 50, 4),
        "far-from-the-origin": torch.randn(1, 200, 20) + 100,
        "few": torch.randn(3, 8, 3),
        "wide-huge": 3e18 * torch.randn(1, 100, 20),  # their squares are infinite in float32
    }


def by_both_backends(x, k, **options):
    with kernels.using("native"):
        found = vn.knn(x, k, **options)
    with kernels.using("eager"):
        return found, vn.knn(x, k, **options)


@pytest.mark.parametrize("cloud", clouds())
@pytest.mark.parametrize("include_self", [True, False])
def test_neighbors_are_the_same(cloud, include_self):
    found, expected = by_both_backends(clouds()[cloud], 7, include_self=include_self)
    assert torch.equal(found, expected)


def large_clouds():
    """Enough points to look for candidates in a subspace, which has most of some clouds and little of others."""
    torch.manual_seed(0)
    flat = torch.randn(2, 1600, 3) @ torch.randn(3, 63)
    grid = torch.stack(torch.meshgrid(*[torch.arange(12.0)] * 3, indexing="ij"), dim=-1).reshape(1, -1, 3)
    duplicated = flat + 0.1 * torch.randn(2, 1600, 63)
    duplicated[:, :700] = duplicated[:, 800:1500]
    return {
        "flat": flat,
        "thick": flat + 0.4 * torch.randn(2, 1600, 63),  # the nearest of all are not the nearest in the subspace
        "thick-float64": flat.double() + 0.4 * torch.randn(2, 1600, 63, dtype=torch.float64),
        "round": torch.randn(1, 1600, 63),
        "grid": grid.repeat(1, 1, 16),
        "duplicated": duplicated,
        "far-from-the-origin": flat + 100,
        "all-equal": torch.ones(1, 1600, 63),
        "half-equal": torch.cat([flat[:, :800], torch.ones(2, 800, 63)], dim=1),
        "narrow": torch.randn(2, 1600, 3),
        "narrow-grid": grid,
        "narrow-duplicated": duplicated[..., :3],
        "narrow-far-from-the-origin": torch.randn(1, 1600, 3, dtype=torch.float64) + 1e6,
        "on-a-line": torch.linspace(0, 1, 1600)[None, :, None] * torch.ones(3),
        "huge": 1e18 * torch.randn(1, 1600, 3),
        "one-is-infinite": torch.cat([flat, torch.full((2, 1, 63), torch.inf)], dim=1),
    }


@pytest.mark.parametrize("cloud", large_clouds())
@pytest.mark.parametrize("include_self", [True, False])
def test_neighbors_in_large_clouds_are_the_same(cloud, include_self):
    x = large_clouds()[cloud]
    found, expected = by_both_backends(x, 12, include_self=include_self)
    finite = x.isfinite().all(-1)
    assert torch.equal(found[finite], expected[finite])


@pytest.mark.parametrize("k", [1, 300, 1600])
def test_any_number_of_neighbors_can_be_asked_of_a_large_cloud(k):
    found, expected = by_both_backends(large_clouds()["thick"], k)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dim", [3, 63])
def test_neighbors_in_large_padded_clouds_are_the_same(dim):
    x = torch.randn(3, 1600, 3) @ torch.randn(3, dim) + 0.1 * torch.randn(3, 1600, dim)
    mask = torch.arange(1600) < torch.tensor([1600, 700, 9])[:, None]
    x[~mask] = torch.nan
    found, expected = by_both_backends(x, 8, mask=mask)
    assert torch.equal(found[mask], expected[mask])


@pytest.mark.parametrize("dim", [3, 20])
def test_neighbors_of_padded_clouds_are_the_same(dim):
    x, mask = torch.randn(3, 60, dim), torch.arange(60) < torch.tensor([60, 21, 9])[:, None]
    x[~mask] = torch.nan
    found, expected = by_both_backends(x, 8, mask=mask)
    assert torch.equal(found[mask], expected[mask])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("dim", [3, 20])
def test_what_is_nan_crashes_nothing(bad, dim):
    x = torch.randn(2, 40, dim)
    x[0, 3:30], x[1, 5, 0] = bad, bad
    with kernels.using("native"):
        found = vn.knn(x, 20)
    assert found.min() >= 0
    assert found.max() < 40


def test_neighbors_of_many_points_need_no_matrix():
    x = torch.randn(1, 3000, 30, dtype=torch.float64)  # in which random points do not tie
    with kernels.using("native"):
        found = vn.knn(x, 10)
    rows = torch.randint(3000, (20,))
    expected = torch.cdist(x[0, rows], x[0]).topk(10, largest=False).indices
    assert torch.equal(found[0, rows], expected)
    assert neighbors.BLOCK_ELEMENTS < 3000 * 3000 * 10


@pytest.fixture
def precision():
    yield torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("points", [100, 400])
def test_neighbors_do_not_round_where_products_may(everywhere, points, precision):
    x = torch.randn(1, points, 63)
    with kernels.using("native"):
        expected = vn.knn(x, 12)
        if everywhere:
            torch.set_float32_matmul_precision("medium")
        else:
            precision.fp32_precision = "bf16"  # torch then refuses to tell the precision everywhere
        assert torch.equal(vn.knn(x, 12), expected)


def test_a_space_without_dimensions():
    found, expected = by_both_backends(torch.empty(1, 600, 0), 3)
    assert torch.equal(found, expected)


def test_the_operator_refuses_what_it_would_read_beyond():
    x = torch.randn(2, 9, 3)
    for present, k in ((torch.tensor([3, 9]), 5), (torch.tensor([9, 10]), 2), (torch.tensor([9]), 2)):
        with pytest.raises(RuntimeError, match=r"neighbors of|how many"):
            torch.ops.vector_neurons.knn_canonical(x, present, k, True, 0.0)
