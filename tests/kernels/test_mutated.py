"""Mutations of native operators reach the layers, break their symmetry, and leave nothing behind."""

import pytest
import torch
from mutated import NOT_EQUIVARIANT, mutated

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.geometry.sampling import farthest_points
from vector_neurons.nn.hybrid import Features, FrameConv, HybridBlock

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


class FramePool(torch.nn.Module):
    def forward(self, x):
        frame = x[..., :3].contiguous()
        return torch.cat(torch.ops.vector_neurons.frame_pool(x, x.mean(1), frame)[:2], dim=-1)


class FarthestPoint(torch.nn.Module):
    def forward(self, x):
        return x.take_along_dim(farthest_points(x[..., 0], 4)[..., None, None], 1)


class HybridVectors(torch.nn.Module):
    """The vectors of a hybrid layer without scalars in; of `FrameConv` on the first of the vectors as points."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        points, features = x[..., 0], Features(x.new_zeros(*x.shape[:2], 0), x)
        given = (points, features, vn.knn(points, 5)) if isinstance(self.layer, FrameConv) else (features,)
        return self.layer(*given).vectors


LAYERS = {  # and whether they are invariant
    "norm_leaky_relu": (lambda: vn.Block(4, 8), False),
    "project": (lambda: vn.Linear(4, 8), False),
    "frame_pool": (FramePool, True),
    "knn_canonical": (lambda: vn.EdgeConv(4, 8, k=3), False),
    "farthest_canonical": (FarthestPoint, False),
    "frame_project": (lambda: HybridVectors(HybridBlock((0, 4), (6, 5))), False),
    "frame_linear": (lambda: HybridVectors(FrameConv((0, 4), (6, 5))), False),
    "frame_mean": (lambda: HybridVectors(FrameConv((0, 4), (6, 5))), False),
}


def symmetry_error(layer, invariant):
    torch.manual_seed(0)
    x, rotation = torch.randn(2, 9, 3, 4).double(), torch.linalg.qr(torch.randn(3, 3).double()).Q
    rotation = rotation * rotation.det()
    with kernels.using("native"), torch.no_grad():
        y, of_rotated = layer(x), layer(rotation @ x)
    return (of_rotated - (y if invariant else rotation @ y)).abs().max()


@pytest.mark.parametrize("name", NOT_EQUIVARIANT)
def test_a_mutation_breaks_the_symmetry_and_ends_with_its_block(name):
    make, invariant = LAYERS[name]
    torch.manual_seed(0)
    layer = make().double().eval()
    before = symmetry_error(layer, invariant)
    with mutated(name, NOT_EQUIVARIANT[name]):
        assert symmetry_error(layer, invariant) > 1e-2
    assert before < 1e-12
    assert symmetry_error(layer, invariant) == before


def test_the_eager_backend_is_not_mutated():
    layer, x = vn.Block(4, 8).eval(), torch.randn(2, 9, 3, 4)
    with kernels.using("eager"):
        expected = layer(x)
        with mutated("norm_leaky_relu", NOT_EQUIVARIANT["norm_leaky_relu"]):
            assert torch.equal(layer(x), expected)
