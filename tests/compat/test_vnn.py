"""The compat layers against the published formulas, written in the reference's own axis order [B, C, 3, N, ...]."""

import pytest
import torch
from torch import nn

from vector_neurons import testing
from vector_neurons.compat import vnn
from vector_neurons.geometry import rotations

EPS = 1e-6


def features(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(layer, *arguments, seed=0, **keywords):
    torch.manual_seed(seed)
    return layer(*arguments, **keywords).double()


def mix(weight, x):
    return torch.einsum("oc,bc...->bo...", weight, x)


def bend(p, d, slope):
    dot, size = (p * d).sum(2, keepdim=True), (d * d).sum(2, keepdim=True)
    return torch.where(dot >= 0, p, p - (1 - slope) * dot / (size + EPS) * d)


def normalize(bn, x, training=True):
    length = x.square().sum(2).sqrt() + EPS
    if not training:
        mean, variance = bn.running_mean, bn.running_var
    else:
        over = [0, *range(2, length.ndim)]
        mean, variance = length.mean(over), length.var(over, unbiased=False)
    channel = [1, -1] + [1] * (length.ndim - 2)
    new = (length - mean.view(channel)) / (variance.view(channel) + bn.eps).sqrt()
    new = new * bn.weight.view(channel) + bn.bias.view(channel)
    return x * (new / length).unsqueeze(2)


RANKS = [(4, 6, 3), (2, 6, 3, 10), (2, 6, 3, 10, 5)]


@pytest.mark.parametrize("shape", RANKS)
def test_linear(shape):
    layer, x = build(vnn.VNLinear, 6, 4), features(*shape)
    torch.testing.assert_close(layer(x), mix(layer.map_to_feat.weight, x))


@pytest.mark.parametrize("shape", RANKS)
@pytest.mark.parametrize("shared", [False, True])
def test_leaky_relu(shape, shared):
    layer, x = build(vnn.VNLeakyReLU, 6, share_nonlinearity=shared, negative_slope=0.1), features(*shape)
    torch.testing.assert_close(layer(x), bend(x, mix(layer.map_to_dir.weight, x), 0.1))


@pytest.mark.parametrize("shape", RANKS)
@pytest.mark.parametrize("shared", [False, True])
def test_linear_leaky_relu(shape, shared):
    layer, x = build(vnn.VNLinearLeakyReLU, 6, 4, dim=len(shape), share_nonlinearity=shared), features(*shape)
    p = normalize(layer.batchnorm.bn, mix(layer.map_to_feat.weight, x))
    torch.testing.assert_close(layer(x), bend(p, mix(layer.map_to_dir.weight, x), 0.2))


@pytest.mark.parametrize("shape", RANKS)
@pytest.mark.parametrize("norm", ["norm", "none"])
def test_linear_and_leaky_relu(shape, norm):
    layer, x = build(vnn.VNLinearAndLeakyReLU, 6, 4, dim=len(shape), use_batchnorm=norm), features(*shape)
    p = mix(layer.linear.map_to_feat.weight, x)
    if norm == "norm":
        p = normalize(layer.batchnorm.bn, p)
    torch.testing.assert_close(layer(x), bend(p, mix(layer.leaky_relu.map_to_dir.weight, p), 0.2))


@pytest.mark.parametrize("shape", RANKS)
def test_batch_norm_in_training_and_evaluation(shape):
    layer, x = build(vnn.VNBatchNorm, 6, len(shape)), features(*shape)
    torch.testing.assert_close(layer(x), normalize(layer.bn, x))
    torch.testing.assert_close(layer.eval()(x), normalize(layer.bn, x, training=False))
    assert (layer(torch.zeros_like(x)) == 0).all()


@pytest.mark.parametrize("shape", RANKS[1:])
def test_max_pool(shape):
    layer, x = build(vnn.VNMaxPool, 6), features(*shape)
    agreement = (x * mix(layer.map_to_dir.weight, x)).sum(2)
    best = agreement.argmax(-1)
    expected = x.gather(-1, best[:, :, None, ..., None].expand(*x.shape[:-1], 1)).squeeze(-1)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("shape", [(4, 8, 3), (2, 8, 3, 10), (2, 8, 3, 10, 5)])
def test_std_feature(shape):
    layer, x = build(vnn.VNStdFeature, 8, dim=len(shape)), features(*shape)
    read, frame = layer(x)
    z = mix(layer.vn_lin.weight, layer.vn2(layer.vn1(x)))
    torch.testing.assert_close(frame, z.transpose(1, 2))
    torch.testing.assert_close(read, torch.einsum("bij...,bkj...->bik...", x, z))


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_normalized_frame_at_every_batch_size(batch):
    layer, x = build(vnn.VNStdFeature, 8, dim=4, normalize_frame=True).eval(), features(batch, 8, 3, 10)
    read, frame = layer(x)
    v, w = mix(layer.vn_lin.weight, layer.vn2(layer.vn1(x))).unbind(1)  # [B, 3, N] each
    u = v / (v.norm(dim=1, keepdim=True) + EPS)
    w = w - (w * u).sum(1, keepdim=True) * u
    w = w / (w.norm(dim=1, keepdim=True) + EPS)
    torch.testing.assert_close(frame, torch.stack([u, w, torch.linalg.cross(u, w, dim=1)], dim=2))
    R = rotations.draw("SO3", 1, dtype=torch.float64)[0]
    torch.testing.assert_close(layer(torch.einsum("ij,bcj...->bci...", R, x))[0], read)


def test_graph_features():
    x = features(2, 4, 3, 12)
    flat = x.reshape(2, 12, 12)
    distance = (flat[:, :, :, None] - flat[:, :, None]).square().sum(1)
    idx = distance.argsort(-1)[..., :5]
    assert torch.equal(vnn.knn(flat, 5), idx)
    plain, crossed = vnn.get_graph_feature(x, k=5), vnn.get_graph_feature_cross(x, k=5)
    assert plain.shape == (2, 8, 3, 12, 5)
    assert crossed.shape == (2, 12, 3, 12, 5)
    for n in range(12):
        for j in range(5):
            own, other = x[..., n], torch.stack([x[b, :, :, idx[b, n, j]] for b in range(2)])
            expected = torch.cat([other - own, own, torch.linalg.cross(other, own, dim=2)], dim=1)
            torch.testing.assert_close(crossed[..., n, j], expected)
    torch.testing.assert_close(plain, crossed[:, :8])
    torch.testing.assert_close(vnn.get_graph_feature(x, k=5, idx=idx), plain)
    coordinates = x[:, 0]
    by_coordinates = vnn.get_graph_feature(x, k=5, x_coord=coordinates)
    torch.testing.assert_close(by_coordinates, vnn.get_graph_feature(x, idx=vnn.knn(coordinates, 5)))


def test_mean_pool():
    x = features(2, 4, 3, 6)
    torch.testing.assert_close(vnn.mean_pool(x), x.mean(-1))
    assert vnn.mean_pool(x, keepdim=True).shape == (2, 4, 3, 1)


BN = ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"]


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (vnn.VNLinear(4, 5), ["map_to_feat.weight"]),
        (vnn.VNLeakyReLU(4), ["map_to_dir.weight"]),
        (vnn.VNMaxPool(4), ["map_to_dir.weight"]),
        (vnn.VNBatchNorm(4, 5), [f"bn.{n}" for n in BN]),
        (vnn.VNLinearLeakyReLU(4, 5), [f"batchnorm.bn.{n}" for n in BN] + ["map_to_dir.weight", "map_to_feat.weight"]),
        (
            vnn.VNLinearAndLeakyReLU(4, 5),
            [f"batchnorm.bn.{n}" for n in BN] + ["leaky_relu.map_to_dir.weight", "linear.map_to_feat.weight"],
        ),
    ],
)
def test_parameter_names_are_the_authors(layer, names):
    assert sorted(layer.state_dict()) == names


def test_std_feature_parameter_names_and_shapes():
    shapes = {name: tuple(p.shape) for name, p in vnn.VNStdFeature(682).named_parameters()}
    assert shapes["vn1.map_to_feat.weight"] == shapes["vn1.map_to_dir.weight"] == (341, 682)
    assert shapes["vn2.map_to_feat.weight"] == (170, 341)
    assert shapes["vn_lin.weight"] == (3, 170)
    assert "vn1.batchnorm.bn.weight" in shapes


def test_a_network_in_the_old_order_is_invariant():
    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = vnn.VNLinearLeakyReLU(3, 16)
            self.pool = vnn.VNMaxPool(16)
            self.std = vnn.VNStdFeature(16, dim=4, normalize_frame=True)

        def forward(self, points):
            x = vnn.get_graph_feature_cross(points.mT.unsqueeze(1), k=8)
            return self.std(self.pool(self.conv(x)))[0]

    testing.assert_invariant(build(Old).eval(), features(3, 40, 3))
