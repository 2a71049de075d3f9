"""Irregular graphs: edges `(2, E)` and the cloud of each point, against dense graphs and clouds one by one."""

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons.geometry import rotations
from vector_neurons.geometry.segments import to_edge_index
from vector_neurons.testing import relative_error

POINTS = torch.randn(2, 20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = torch.randn(2, 20, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BATCH = torch.arange(2).repeat_interleave(20)
SIZES = (11, 1, 20, 7)


def features(neurons, x=X):
    return x if neurons == "vector" else x.flatten(-2)


def channels(neurons):
    return 5 if neurons == "vector" else 15


def shuffle(edges, seed=0):
    return edges[:, torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(seed))]


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, {"norm": "layer"}, {"norm": "none", "cross": True}], ids=str)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_edges_of_a_dense_graph_give_the_dense_result(neurons, pool, training, options, backend):
    torch.manual_seed(0)
    conv = vn.KITS[neurons].EdgeConv(channels(neurons), [6, 4], 6, pool=pool, **options).double().train(training)
    x, neighbors = features(neurons).clone().requires_grad_(), vn.knn(POINTS, 6)
    with vn.kernels.using(backend):
        dense = conv(x, neighbors)
        sparse = conv(x.flatten(0, 1), shuffle(to_edge_index(neighbors)))
        weight = torch.randn(dense.shape, dtype=dense.dtype)
        gradients = [
            torch.autograd.grad((y.view_as(weight) * weight).sum(), [x, *conv.blocks.parameters()])
            for y in (dense, sparse)
        ]
    assert relative_error(sparse.view_as(dense), dense) < 1e-12
    assert all(relative_error(b, a) < 1e-11 for a, b in zip(*gradients, strict=True))


class Little(nn.Module):
    """Lift, two edge convolutions, invariants, a pool and a linear map, on edges."""

    def __init__(self, neurons="vector", pool="mean", **options):
        super().__init__()
        kit = vn.KITS[neurons]
        self.lift = kit.lift
        self.first = kit.EdgeConv(kit.width(3), kit.width(24), pool=pool)
        self.second = kit.EdgeConv(kit.width(24), kit.width(48), pool=pool)
        self.invariant = kit.Invariant(kit.width(48), **options)
        self.pool = vn.KITS["scalar"].MaxPool(self.invariant.out_channels)
        self.head = nn.Linear(self.invariant.out_channels, 4)

    def forward(self, points, edge_index, batch):
        x = self.second(self.first(self.lift(points), edge_index), edge_index)
        return self.head(self.pool(self.invariant(x, batch=batch), batch=batch))


def clouds(dtype=torch.float64):
    """Clouds of different sizes: points, random edges with isolated points, and the cloud of each point."""
    generator = torch.Generator().manual_seed(2)
    parts = [torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype) for n in SIZES]
    return parts, [torch.randint(0, n, (2, 4 * n), generator=generator) for n in SIZES]


def joined(parts, edges):
    starts = torch.tensor([0, *SIZES]).cumsum(0)
    batch = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    return torch.cat(parts), torch.cat([e + s for e, s in zip(edges, starts, strict=False)], dim=1), batch


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("options", [{}, {"project_mean": True}, {"frame": "linear"}, {"kind": "norm"}], ids=str)
def test_clouds_of_different_sizes_are_independent(neurons, pool, options):
    torch.manual_seed(0)
    network = Little(neurons, pool, **options).double().eval()
    parts, edges = clouds()
    points, edge_index, batch = joined(parts, edges)
    together = network(points, edge_index, batch)
    alone = [network(p, e, torch.zeros(len(p), dtype=torch.long)) for p, e in zip(parts, edges, strict=True)]
    assert relative_error(together, torch.cat(alone)) < 1e-12
    # Points in any order, and edges in any order.
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    renumbered = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    mixed = network(points[order], shuffle(renumbered[edge_index]), batch[order])
    assert relative_error(mixed, together) < 1e-12


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_a_network_on_edges_is_invariant(pool, dtype, bound):
    torch.manual_seed(0)
    network = Little(pool=pool).to(dtype).eval()
    points, edge_index, batch = joined(*clouds(dtype))
    for seed in range(3):
        R = rotations.draw("SO3", len(SIZES), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for matrices in (R, -R):  # a rotation or reflection of its own for each cloud
            turned = (matrices.to(dtype)[batch] @ points.unsqueeze(-1)).squeeze(-1)
            assert relative_error(network(turned, edge_index, batch), network(points, edge_index, batch)) <= bound
    scalar = Little("scalar", pool).to(dtype).eval()
    turned = (R.to(dtype)[batch] @ points.unsqueeze(-1)).squeeze(-1)
    assert relative_error(scalar(turned, edge_index, batch), scalar(points, edge_index, batch)) > 1e-2


def test_a_mean_over_clouds_would_depend_on_the_others():
    """Control: one mean for all points is not the mean of each cloud."""
    network = Little().double().eval()
    points, edge_index, batch = joined(*clouds())
    x = network.second(network.first(vn.lift(points), edge_index), edge_index)
    assert relative_error(network.invariant(x, batch=torch.zeros_like(batch)), network.invariant(x, batch=batch)) > 1e-3


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
def test_points_without_edges_and_clouds_without_points_get_zeros(neurons):
    kit, x = vn.KITS[neurons], features(neurons)[0].clone().requires_grad_()
    edges = torch.tensor([[0, 1, 2], [3, 3, 4]])
    for pool in ("mean", "max"):
        conv = kit.EdgeConv(channels(neurons), 4, pool=pool, norm="none").double()
        y = conv(x, edges)
        assert (y.flatten(1) != 0).any(1).nonzero().flatten().tolist() == [3, 4]
        assert torch.equal(conv(x, edges[:, :0]), torch.zeros_like(y))
        y.square().sum().backward()
        assert x.grad.isfinite().all()
    batch = torch.zeros(20, dtype=torch.long)
    for layer in (kit.MeanPool(), kit.MaxPool(channels(neurons)).double()):
        pooled = layer(x, batch=batch + 1, size=3)
        assert torch.equal(pooled[::2], torch.zeros_like(pooled[::2]))
        assert layer(x, batch=batch + 1).shape == (2, *x.shape[1:])


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
def test_pools_of_clouds_are_those_of_a_batch(neurons):
    kit, x = vn.KITS[neurons], features(neurons)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for layer in (kit.MeanPool(), kit.MaxPool(channels(neurons)).double()):
        assert relative_error(layer(x.flatten(0, 1)[order], batch=BATCH[order]), layer(x)) < 1e-14


@pytest.mark.parametrize("options", [{}, {"project_mean": True}, {"mean": False}, {"orthonormal": True}], ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("neurons", ["vector", "scalar"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_invariants_of_clouds_are_those_of_a_batch(neurons, options, training, backend):
    torch.manual_seed(0)
    layer, x = vn.KITS[neurons].Invariant(channels(neurons), **options).double().train(training), features(neurons)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    rows = x.flatten(0, 1)[order]
    with vn.kernels.using(backend):
        scalars, frame = layer(rows, batch=BATCH[order], return_frame=True)
        dense, dense_frame = layer(x, return_frame=True)
        pooled = layer(rows, batch=BATCH[order], pool=True)
        expected = layer(x, pool=True)
    assert relative_error(scalars, dense.flatten(0, 1)[order]) < 1e-12
    assert all(relative_error(a, b) < 1e-12 for a, b in zip(pooled[:2], expected[:2], strict=True))
    if neurons == "vector":
        assert relative_error(frame, dense_frame.flatten(0, 1)[order]) < 1e-12


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_gradients_on_edges_are_right(pool):
    torch.manual_seed(0)
    conv, read = vn.EdgeConv(2, 3, pool=pool, norm="none").double(), vn.Invariant(3, norm="none").double()
    edges, batch = torch.tensor([[0, 1, 2, 4, 3, 0], [1, 1, 0, 3, 4, 1]]), torch.tensor([0, 0, 0, 1, 1])
    x = X[0, :5, :, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: read(conv(x, edges), batch=batch, pool=True)[:2], x)
    assert torch.autograd.gradcheck(lambda x: vn.MeanPool()(conv(x, edges), batch=batch), x)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_degenerate_features_stay_finite(pool):
    points, edge_index, batch = joined(*clouds())
    for x in (torch.zeros_like(points), torch.ones_like(points), points * torch.tensor([1.0, 0.0, 0.0])):
        network, x = Little(pool=pool).double().train(), x.clone().requires_grad_()
        y = network(x, edge_index, batch)
        y.square().sum().backward()
        assert y.isfinite().all()
        assert x.grad.isfinite().all()


def test_ties_of_maxima_do_not_depend_on_the_pose():
    """Vectors of a cube: products with their direction are equal to within rounding."""
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3).unsqueeze(-1)
    pool = vn.MaxPool(1).double()
    batch = torch.zeros(8, dtype=torch.long)
    for seed in range(10):
        R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0]
        assert relative_error(pool(R @ corners, batch=batch), R @ pool(corners, batch=batch)) < 1e-14
        assert torch.equal(pool(R @ corners, batch=batch), pool((R @ corners).unsqueeze(0)))


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_features_beyond_the_range_of_squares(scale):
    conv = vn.EdgeConv(5, 4, pool="max", norm="none")
    x, edges = X[0].float(), to_edge_index(vn.knn(POINTS[:1], 6))
    assert relative_error(conv(x * scale, edges) / scale, conv(x, edges)) < 1e-5
    pool, batch = vn.MaxPool(5), torch.zeros(20, dtype=torch.long)
    assert relative_error(pool(x * scale, batch=batch) / scale, pool(x, batch=batch)) < 1e-6


def test_bfloat16():
    conv, edges = vn.EdgeConv(5, 4), to_edge_index(vn.knn(POINTS[:1], 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert conv(X[0].float(), edges).isfinite().all()
    assert conv.bfloat16()(X[0].bfloat16(), edges).dtype == torch.bfloat16


EDGES = torch.tensor([[0, 1], [2, 3]])
ROWS, CLOUD = X[0], torch.zeros(20, dtype=torch.long)


@pytest.mark.parametrize(
    ("x", "edges", "mask", "words"),
    [
        (ROWS, EDGES + 17, None, "0 to 19"),
        (ROWS, EDGES - 1, None, "0 to 19"),
        (ROWS, EDGES.int(), None, "int64.*int32"),
        (ROWS, EDGES.double(), None, "int64.*float64"),
        (ROWS, EDGES[0], None, r"\(2, E\)"),
        (ROWS, EDGES[:1], None, r"\(2, E\)"),
        (ROWS, torch.zeros(7, 2, dtype=torch.long), None, r"pass edge_index.mT"),
        (X, EDGES, None, r"takes x \(N, 3, C\)"),
        (ROWS[..., :2], EDGES, None, "EdgeConv takes vectors"),
        (ROWS, EDGES, torch.ones(20, 3, dtype=torch.bool), "takes no mask"),
    ],
)
def test_bad_graphs_are_explained(unchecked, x, edges, mask, words):
    with pytest.raises(ValueError, match=words) as raised:
        vn.EdgeConv(5, 4).double()(x, edges, mask)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("x", "options", "words"),
    [
        (ROWS, {"batch": CLOUD - 1}, "numbers of clouds"),
        (ROWS, {"batch": CLOUD + 2, "size": 2}, "0 to 1"),
        (ROWS, {"batch": CLOUD.int()}, "int64"),
        (ROWS, {"batch": CLOUD.double()}, "int64"),
        (ROWS, {"batch": CLOUD[:5]}, r"batch \(20,\)"),
        (X, {"batch": CLOUD}, r"takes x \(N, 3, C\)"),
        (ROWS, {"size": 2}, "only with batch"),
        (ROWS, {"batch": CLOUD, "mask": torch.ones(20, 3, dtype=torch.bool)}, "not both"),
    ],
)
@pytest.mark.parametrize("layer", [vn.MeanPool(), vn.MaxPool(5).double(), vn.Invariant(5).double()], ids=str)
def test_bad_batches_are_explained(unchecked, layer, x, options, words):
    with pytest.raises(ValueError, match=words) as raised:
        layer(x, **options)
    assert "\n" not in str(raised.value)


def test_matrices_of_neighbors_need_neighbors():
    with pytest.raises(ValueError, match="num_elements"):
        vn.MaxPool(5, num_elements=20).double()(ROWS, batch=CLOUD)
