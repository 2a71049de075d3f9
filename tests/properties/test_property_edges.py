"""Edge convolutions: graphs that are given, edges that are not built, cross products of either kit."""

import pytest
import torch

import vector_neurons as vn
from vector_neurons.nn._factored import ConcatMean, EdgeInput
from vector_neurons.testing import relative_error

X = torch.randn(2, 20, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_unbuilt_inputs_are_mapped_like_built_ones():
    neighbors, linear = vn.knn(X, 6), vn.Linear(10, 7).double()
    built = vn.geometry.neighbors.edge_features(X, neighbors)
    assert relative_error(linear(EdgeInput(X, neighbors)), linear(built)) < 1e-14
    mean = X.mean(1, keepdim=True)
    assert relative_error(linear(ConcatMean(X, mean)), linear(torch.cat([X, mean.expand_as(X)], dim=-1))) < 1e-14


def test_half_precision_builds_its_edges():
    near = 1 + 0.03 * torch.randn(1, 30, 3, 8)  # neighbors whose features differ by little
    conv = vn.EdgeConv(8, 8, k=5, norm="none")
    with torch.no_grad():
        conv.blocks[0].linear.weight[:, 8:] = 0  # sees differences only
        exact = conv.double()(near.double(), vn.knn(near, 5))
        conv.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert relative_error(conv(near, vn.knn(near, 5)), exact) < 0.05


@pytest.mark.parametrize("index", [-1, 20])
def test_neighbors_of_another_cloud_are_refused(index):
    neighbors = vn.knn(X, 6)
    neighbors[1, 3, 2] = index
    with pytest.raises(ValueError, match="indices 0 to 19"):
        vn.EdgeConv(5, 4, k=6).double()(X, neighbors)


def test_scalar_cross_products_are_those_of_the_vectors():
    points, normals = X[..., 0], X[..., 1]
    neighbors = vn.knn(points, 6)
    vectors = vn.geometry.neighbors.edge_features(vn.lift(points, normals), neighbors, cross=True)
    scalar = vn.KITS["scalar"]
    edges = scalar.EdgeConv(6, 4, k=6, cross=True).edges(scalar.lift(points, normals), neighbors)
    torch.testing.assert_close(edges, vectors.mT.flatten(-2))
