import pytest
import torch

import vector_neurons as vn
from vector_neurons.geometry.neighbors import gather
from vector_neurons.nn import functional as VF

from . import transcription as paper
from .compare import assert_same, draw, norm_of, randomized, set_shapes, sets, vectors


def pooled_by(weight):
    return lambda elements: paper.max_pool(elements, [paper.linear(V, weight.tolist()) for V in elements])


@set_shapes
def test_mean_pool(shape):
    x, lead = draw(*shape), shape[:-3]
    expected = vectors([paper.mean_pool(each) for each in sets(x, len(lead))], lead)
    assert_same(vn.MeanPool()(x), expected)
    assert_same(VF.mean_pool(x), expected)


@set_shapes
def test_max_pool(shape):
    """Global on (B, N, 3, C), local on (B, N, K, 3, C)."""
    x, k, lead = draw(*shape), draw(*shape), shape[:-3]
    layer = randomized(vn.MaxPool(4))
    axes = len(lead)
    assert_same(layer(x), vectors([pooled_by(layer.direction.weight)(each) for each in sets(x, axes)], lead))
    given = [paper.max_pool(each, its) for each, its in zip(sets(x, axes), sets(k, axes), strict=True)]
    assert_same(VF.max_pool(x, k), vectors(given, lead))


def test_local_max_pool_unshared():
    """The supplement writes W_k: a matrix for each neighbor."""
    x, W = draw(2, 3, 4, 3, 5), draw(4, 5, 5)
    expected = [
        paper.max_pool(group, [paper.linear(V, W[m].tolist()) for m, V in enumerate(group)]) for group in sets(x, 2)
    ]
    assert_same(VF.max_pool(x, VF.linear(x, W)), vectors(expected, (2, 3)))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("shape", [(2, 7, 3, 1), (2, 7, 3, 4), (2, 7, 5, 2)], ids=str)
def test_knn(shape, include_self):
    x = draw(*shape)
    expected = [paper.nearest(cloud, 4, include_self) for cloud in sets(x)]
    assert vn.knn(x, 4, include_self=include_self).tolist() == expected


def test_local_max_pool_in_primal_space():
    points, x, layer = draw(2, 6, 3), draw(2, 6, 3, 4), randomized(vn.MaxPool(4))
    expected = [
        pooled_by(layer.direction.weight)([cloud[m] for m in group])
        for cloud, at in zip(sets(x), sets(vn.lift(points)), strict=True)
        for group in paper.nearest(at, 3, True)
    ]
    assert_same(layer(gather(x, vn.knn(points, 3))), vectors(expected, (2, 6)))


def edge_conv(conv, x, graphs):
    parts = (
        conv.blocks[0].linear.weight.split(conv.in_channels, 1),
        conv.blocks[0].direction.weight.split(conv.in_channels, 1),
    )
    feature, direction = [[part.tolist() for part in side] for side in parts]
    pool = paper.mean_pool if isinstance(conv.pool, vn.MeanPool) else pooled_by(conv.pool.direction.weight)
    norm = norm_of(conv.blocks[0].norm, len(x))
    new = paper.edge_conv(sets(x), graphs, feature, direction, norm, conv.blocks[0].negative_slope, pool)
    return vectors([V for cloud in new for V in cloud], x.shape[:2])


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize(("dim", "cross"), [(2, False), (3, False), (3, True), (5, False)])
def test_edge_conv(pool, slope, norm, dim, cross):
    options = {"cross": cross, "pool": pool, "norm": norm, "negative_slope": slope}
    for include_self in (True, False):
        x = draw(2, 6, dim, 2)
        conv = randomized(vn.EdgeConv(2, 4, 3, include_self=include_self, **options))
        graphs = [paper.nearest(cloud, 3, include_self) for cloud in sets(x)]
        assert_same(conv(x), edge_conv(conv, x, graphs))


def test_edge_conv_in_primal_space():
    points, x, conv = draw(2, 6, 3), draw(2, 6, 3, 2), randomized(vn.EdgeConv(2, 4, shared_direction=True))
    graphs = [paper.nearest(cloud, 3, True) for cloud in sets(vn.lift(points))]
    assert_same(conv(x, vn.knn(points, 3)), edge_conv(conv, x, graphs))


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize(("norm", "cross"), [("none", False), ("batch", False), ("none", True)])
def test_edge_conv_on_a_graph(pool, norm, cross):
    """Edges in any order; points with none, one and several incoming edges."""
    x, conv = draw(6, 3, 2), randomized(vn.EdgeConv(2, 4, pool=pool, norm=norm, cross=cross))
    edges = [(3, 0), (1, 4), (5, 0), (0, 0), (2, 1), (4, 4), (0, 3), (1, 0), (3, 0)]  # from m to n
    connected = [0, 1, 3, 4]
    found = conv(x, torch.tensor(edges).mT)
    assert not found[[2, 5]].any()  # where no edge leads
    parts = [side.weight.split(2, 1) for side in (conv.blocks[0].linear, conv.blocks[0].direction)]
    feature, direction = [[part.tolist() for part in side] for side in parts]
    cloud = sets(x[None])[0]
    Q = norm_of(conv.blocks[0].norm, 1)([paper.edge_map(cloud[m], cloud[n], feature) for m, n in edges])
    K = [paper.edge_map(cloud[m], cloud[n], direction) for m, n in edges]
    bent = [paper.bend(q, k, conv.blocks[0].negative_slope) for q, k in zip(Q, K, strict=True)]
    pooled = paper.mean_pool if pool == "mean" else pooled_by(conv.pool.direction.weight)
    expected = [pooled([V for V, (_, n) in zip(bent, edges, strict=True) if n == target]) for target in connected]
    assert_same(found[connected], vectors(expected, (len(connected),)))


def test_edge_conv_with_directions_from_the_output():
    x, conv = draw(2, 6, 3, 2), randomized(vn.EdgeConv(2, 4, 3, norm="none", direction="output", negative_slope=0.0))
    theta, phi = [part.tolist() for part in conv.blocks[0].linear.weight.split(2, 1)]
    expected = []
    for cloud in sets(x):
        for n, group in enumerate(paper.nearest(cloud, 3, True)):
            Q = [paper.edge_map(cloud[m], cloud[n], [theta, phi]) for m in group]
            K = [paper.linear(q, conv.blocks[0].direction.weight.tolist()) for q in Q]
            expected.append(paper.mean_pool([paper.bend(q, k, 0.0) for q, k in zip(Q, K, strict=True)]))
    assert_same(conv(x), vectors(expected, (2, 6)))
