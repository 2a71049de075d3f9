import resource
import subprocess
import sys

import pytest
import torch

from vector_neurons import kernels
from vector_neurons.geometry import neighbors, rotations
from vector_neurons.geometry.neighbors import edge_features, gather, knn
from vector_neurons.geometry.sampling import farthest_points


def cloud(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def grid(side=6, dtype=torch.float32):
    axis = torch.linspace(-1, 1, side, dtype=dtype)
    return torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(1, -1, 3)


def duplicated(dtype=torch.float32):
    x = cloud(2, 200, 3, dtype=dtype)
    x[:, :80] = x[:, 100:180]
    return x


def turn(x, seed):
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x.double() @ R.mT).to(x.dtype)


def brute_force(x, k):
    flat = x.double().flatten(2)
    return (flat[:, :, None] - flat[:, None]).square().sum(-1).argsort(dim=-1, stable=True)[..., :k]


@pytest.mark.parametrize("shape", [(2, 50, 3), (1, 40, 3, 21), (3, 30, 5), (2, 9, 1)])
@pytest.mark.parametrize("k", [1, 5, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_knn_is_brute_force(shape, k, dtype):
    x = cloud(*shape, dtype=dtype)
    assert torch.equal(knn(x, k), brute_force(x, k))


def test_all_points_are_neighbors_of_each_when_k_is_n():
    assert torch.equal(knn(cloud(2, 7, 3), 7).sort(-1).values, torch.arange(7).expand(2, 7, 7))


def test_without_itself():
    x = cloud(2, 50, 3)
    with_self = knn(x, 6)
    assert torch.equal(with_self[..., 0], torch.arange(50).expand(2, 50))
    assert torch.equal(knn(x, 5, include_self=False), with_self[..., 1:])


def test_itself_even_among_duplicates():
    same = torch.ones(1, 30, 3)
    assert torch.equal(knn(same, 4)[..., 0], torch.arange(30)[None])
    without = knn(same, 4, include_self=False)
    assert not (without == torch.arange(30)[None, :, None]).any()


def test_blocks_change_nothing(monkeypatch):
    x = duplicated()
    whole = knn(x, 10)
    monkeypatch.setattr(neighbors, "BLOCK_ELEMENTS", 1000)
    assert torch.equal(knn(x, 10), whole)


@pytest.mark.parametrize("make", [grid, duplicated, lambda dtype: cloud(2, 300, 3, dtype=dtype)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("include_self", [True, False])
def test_neighbors_do_not_depend_on_the_pose(make, dtype, include_self):
    x = make(dtype=dtype)
    for seed in range(5):
        for k in (4, 8, 20):
            there = knn(turn(x, seed), k, include_self=include_self)
            assert torch.equal(knn(x, k, include_self=include_self), there)


def test_a_naive_graph_does_depend_on_the_pose():
    naive = [torch.cdist(y, y).topk(8, largest=False).indices for y in (grid(), turn(grid(), 0))]
    assert not torch.equal(naive[0].sort(-1).values, naive[1].sort(-1).values)


def test_wide_features_of_a_grid_do_not_depend_on_the_pose():
    weight = cloud(1, 16, seed=3)
    features = grid().unsqueeze(-1) * weight
    turned = turn(grid(), 1).unsqueeze(-1) * weight
    assert torch.equal(knn(features, 10), knn(turned, 10))


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_neighbors_do_not_depend_on_the_scale(scale):
    assert torch.equal(knn(cloud(1, 200, 3), 8), knn(cloud(1, 200, 3) * scale, 8))


def test_neighbors_do_not_depend_on_the_order_of_a_generic_cloud():
    for seed in range(10):
        x = cloud(1, 500, 3, seed=seed)
        order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(order[knn(x[:, order], 10)], knn(x, 10)[:, order])


def test_ties_go_to_the_point_nearer_the_origin_then_to_the_lower_index():
    x = torch.tensor([[[2.0, 0.0], [3.0, 0.0], [1.0, 0.0], [2.0, 1.0], [2.0, -1.0]]])
    assert knn(x, 4)[0, 0].tolist() == [0, 2, 3, 4]


def test_half_precision_is_widened_and_nothing_has_a_gradient():
    x = cloud(1, 40, 3).bfloat16().requires_grad_()
    assert torch.equal(knn(x, 5), knn(x.float(), 5))
    wide = cloud(1, 40, 30)
    plain = knn(wide, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(knn(wide, 5), plain)


@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((cloud(1, 5, 3), 6), {}, "1 <= k <= 5"),
        ((cloud(1, 5, 3), 0), {}, "k=0"),
        ((cloud(1, 5, 3), 5), {"include_self": False}, "4 other points"),
    ],
)
def test_impossible_k(arguments, keywords, words):
    with pytest.raises(ValueError, match=words):
        knn(*arguments, **keywords)


def test_a_missing_batch_axis_is_explained():
    with pytest.raises(ValueError, match=r"x\[None\]"):
        knn(cloud(5, 3), 2)


def test_gather_and_edge_features_by_hand():
    x, index = cloud(2, 6, 3, 4), knn(cloud(2, 6, 3), 3)
    read, edges = gather(x, index), edge_features(x, index, cross=True)
    for b in range(2):
        for n in range(6):
            for j, m in enumerate(index[b, n].tolist()):
                assert torch.equal(read[b, n, j], x[b, m])
                by_hand = [x[b, m] - x[b, n], x[b, n], torch.linalg.cross(x[b, m], x[b, n], dim=0)]
                torch.testing.assert_close(edges[b, n, j], torch.cat(by_hand, dim=-1))


def test_cross_products_are_three_dimensional():
    with pytest.raises(ValueError, match="3-D only"):
        edge_features(cloud(1, 6, 2, 4), knn(cloud(1, 6, 2), 3), cross=True)


def farthest_by_hand(x, n):
    chosen = [int((x - x.mean(0)).norm(dim=-1).argmax())]
    while len(chosen) < n:
        chosen.append(int((x[:, None] - x[None, chosen]).norm(dim=-1).amin(-1).argmax()))
    return chosen


def test_farthest_points():
    x = cloud(3, 60, 3, dtype=torch.float64)
    assert farthest_points(x, 20).tolist() == [farthest_by_hand(y, 20) for y in x]


@pytest.mark.parametrize("make", [grid, duplicated])
def test_farthest_points_turn_with_the_cloud_and_never_repeat(make):
    x = make()
    chosen = farthest_points(x, x.shape[1] // 2)
    assert torch.equal(chosen, farthest_points(turn(x, 2), x.shape[1] // 2))
    assert all(len(set(row)) == len(row) for row in farthest_points(x, x.shape[1]).tolist())


def test_farthest_points_need_enough_points():
    with pytest.raises(ValueError, match="1 <= n <= 5"):
        farthest_points(cloud(1, 5, 3), 6)


@pytest.mark.slow
def test_memory_stays_bounded_at_100_000_points():
    x = cloud(1, 100_000, 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    index = knn(x, 20)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    assert grown < 1.0, f"{grown:.2f} GiB for a matrix of 37 GiB"
    rows = torch.arange(0, 100_000, 10_000)
    distance = (x[0, rows, None].double() - x[0].double()).square().sum(-1)
    assert torch.equal(index[0, rows], distance.argsort(-1)[:, :20])


@pytest.mark.parametrize("body", ["eager", "native"])
@pytest.mark.parametrize("exponent", [-100, -60, 64, 110])
def test_neighbors_at_extreme_scales(exponent, body):
    x = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    wide = torch.randn(2, 40, 3, 6, generator=torch.Generator().manual_seed(0))
    # Each cloud has its own scale: those of a batch need not be alike.
    scale = torch.tensor([1.0, 2.0**exponent]).view(2, 1, 1)
    mask = torch.arange(40) < torch.tensor([[40], [20]])
    with kernels.using(body):
        assert torch.equal(knn(x * scale, 5), knn(x, 5))
        assert torch.equal(knn(wide * scale[..., None], 5), knn(wide, 5))
        padded = (x * scale).masked_fill(~mask[..., None], 1e38)
        assert torch.equal(knn(padded, 5, mask=mask)[mask], knn(x, 5, mask=mask)[mask])
        assert torch.equal(farthest_points(x * scale, 6), farthest_points(x, 6))


def test_neighbors_under_vmap():
    x = torch.randn(3, 2, 16, 3)
    mask = torch.arange(16) < torch.tensor([[16], [9]])
    found = torch.func.vmap(lambda cloud: knn(cloud, 4, mask=mask))(x)
    assert torch.equal(found[:, mask], torch.stack([knn(cloud, 4, mask=mask)[mask] for cloud in x]))
    found = torch.func.vmap(lambda cloud: knn(cloud, 4), in_dims=1)(x)
    assert torch.equal(found, torch.stack([knn(x[:, i], 4) for i in range(2)]))


def test_the_first_search_does_not_import_the_compiler():
    code = "import sys, torch; from vector_neurons import knn; knn(torch.rand(1, 9, 3), 2)\n"
    code += "print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
