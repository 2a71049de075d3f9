"""Coordinates whose squares leave the range of float32, in both directions: right results, or an error that says so."""

import itertools

import pytest
import torch
from layers import LAYERS
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.models import LayerOptions

# Powers of two, by which multiplication is exact: what is left are the layers' own mistakes.
EXPONENTS = (-95, -60, -40, 58, 63, 95)
every_body = pytest.mark.parametrize("body", ["eager", "native"])


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def models() -> dict[str, nn.Module]:
    """Small networks, in evaluation mode."""
    torch.manual_seed(0)
    small = {"k": 6, "embedding": 24, "hidden": (8,)}
    made = {
        "dgcnn": vn.models.DGCNN(5, widths=(12, 12), **small),
        "dgcnn-layer": vn.models.DGCNN(5, widths=(12, 12), layers=LayerOptions(norm="layer"), **small),
        "dgcnn-scalar": vn.models.DGCNN(5, widths=(12, 12), neurons="scalar", **small),
        "pointnet": vn.models.PointNet(5, **small),
        "pointnet-scalar": vn.models.PointNet(5, neurons="scalar", **small),
        "segmenter": vn.models.PointNetSegmenter(5, 3, widths=((24,), (24,)), **small),
        "transformer": vn.models.VNTransformer(5, k=6, width=24, heads=2, depth=1, hidden=8),
        "dgcnn-hybrid": vn.models.DGCNN(5, widths=(12, 12), neurons="hybrid", **small),
        "pointnet-hybrid": vn.models.PointNet(5, neurons="hybrid", **small),
        "occupancy": vn.models.OccupancyNetwork(k=6, code=24, hidden=24, decoder_hidden=8),
        "occupancy-local": vn.models.OccupancyNetwork(
            encoder="dgcnn", k=6, code=24, hidden=24, decoder_hidden=8, local=3
        ),
        "occupancy-framenet": vn.models.FrameNetOccupancy(
            k=6, centers=(12, 6), width=8, decoder_hidden=8, near=(4, 3, 3), vectors=4
        ),
    }
    return {name: network.eval() for name, network in made.items()}


@every_body
@pytest.mark.parametrize("layer", [x for x in LAYERS if x.scale is not None and not x.random], ids=str)
def test_layers_commute_with_extreme_scales(layer, body):
    x = layer.example()
    with kernels.using(body):
        module = layer.module_for(x)
        expected = module(x)
        for exponent in EXPONENTS:
            if abs(exponent * layer.scale) > 120:
                continue
            assert relative(module(x * 2.0**exponent) * 2.0 ** (-exponent * layer.scale), expected) < 1e-5, exponent


@every_body
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layers_are_finite_or_refuse(layer, body):
    for scale, training in itertools.product((1e-40, 1e10, 1e18, 1e30), (False, True)):
        x = (layer.example() * scale).requires_grad_()
        with kernels.using(body):
            module = layer.module_for(x.detach(), training=training)
            try:
                y = module(x)
            except ValueError as error:
                assert scale > 1
                assert "beyond the range of float32: bring clouds to unit size" in str(error)  # noqa: PT017
                continue
            assert y.isfinite().all(), scale
            y.backward(torch.ones_like(y))
            gradients = [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]
            assert scale > 1e18 or all(g.isfinite().all() for g in gradients), scale
            assert all(b.isfinite().all() for b in module.buffers()), scale


@every_body
@pytest.mark.parametrize("name", models())
def test_networks_are_finite_or_refuse(name, body):
    network = models()[name]
    points = torch.randn(4, 24, 3, generator=torch.Generator().manual_seed(0))
    for scale, training in itertools.product((1e-40, 1e8, 1e10, 1e18, 1e30), (False, True)):
        network.train(training).zero_grad()
        x = (points * scale).requires_grad_()
        others = [scale * y if y.is_floating_point() else y for y in network.example(points)[0][1:]]
        with kernels.using(body):
            try:
                y = network(x, *others)
            except ValueError as error:
                assert scale > 1e9
                assert "beyond the range of float32" in str(error)  # noqa: PT017
                continue
            assert y.isfinite().all(), scale
            if scale < 1e9:
                y.sum().backward()
                assert x.grad.isfinite().all()
                assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None), scale


@every_body
def test_a_network_without_a_scale_of_its_own_gives_the_same_at_every_scale(body):
    network, points = models()["dgcnn-layer"], torch.randn(2, 24, 3)
    with kernels.using(body):
        for exponent in EXPONENTS:
            assert relative(network(points * 2.0**exponent), network(points)) < 1e-4


def test_batch_norm_that_refuses_has_learned_nothing():
    module = vn.BatchNorm(4).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"would learn a variance of .e\+"):
        module(torch.randn(2, 8, 3, 4) * 1e30)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_batch_norm_learns_in_place_on_extreme_scales():
    module = vn.Block(4, 4).train()
    module(torch.randn(2, 8, 3, 4) * 1e18)
    assert module.norm.bn.num_batches_tracked == 1
    assert 1e16 < module.norm.bn.running_mean.mean() < 1e18
    assert all(p.dtype == torch.float32 for p in module.state_dict().values() if p.is_floating_point())


def test_hooks_are_called_once_on_extreme_scales():
    module, calls = vn.Block(4, 4).eval(), []
    for part in (module, module.linear):
        part.register_forward_hook(lambda *_: calls.append(1))
    module(torch.randn(2, 8, 3, 4) * 1e20)
    assert len(calls) == 2


def test_what_is_not_finite_stays_so():
    x = torch.randn(2, 8, 3, 4) * 1e20
    x[0, 0, 0, 0] = torch.nan
    assert vn.Block(4, 4).eval()(x)[0, 0].isnan().any()
    x[0, 0, 0, 0] = torch.inf
    assert not vn.Block(4, 4).eval()(x)[0, 0].isfinite().all()
