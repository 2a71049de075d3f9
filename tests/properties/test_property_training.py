"""What training needs: signals that keep their size, gradients, copies and checkpoints."""

import copy
from itertools import pairwise

import pytest
import torch
from layers import LAYERS
from torch import Tensor, nn

import vector_neurons as vn

every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)
seeds = pytest.mark.parametrize("seed", range(4))


def growth(module: nn.Module, channels: int) -> float:
    """Mean squared length of the vectors that come out, relative to those that go in."""
    x = torch.randn(4, 64, 3, channels)
    with torch.no_grad():
        return float(module(x).square().mean() / x.square().mean())


@seeds
def test_ten_linear_layers_keep_the_size(seed):
    torch.manual_seed(seed)
    assert 0.5 <= growth(nn.Sequential(*(vn.Linear(128, 128) for _ in range(10))), 128) <= 2


@seeds
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_ten_blocks_keep_the_size(seed, slope):
    torch.manual_seed(seed)
    blocks = nn.Sequential(*(vn.Block(128, 128, norm="none", negative_slope=slope) for _ in range(10)))
    assert 0.5 <= growth(blocks, 128) <= 2


@seeds
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_ten_blocks_with_batch_norm_give_vectors_of_order_one(seed, training):
    torch.manual_seed(seed)
    blocks = nn.Sequential(*(vn.Block(128, 128) for _ in range(10))).train(training)
    assert 0.1 <= growth(blocks, 128) <= 10


def test_widths_may_change_on_the_way():
    widths = [64, 256, 32, 128, 64, 256, 32, 128, 64]
    assert 0.5 <= growth(nn.Sequential(*(vn.Block(a, b, norm="none") for a, b in pairwise(widths))), 64) <= 2


@every_layer
def test_a_copy_is_equal_and_separate(layer):
    x = layer.example()
    module = layer.module()
    twin = copy.deepcopy(module)
    before = module(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1)
    assert torch.equal(module(x), before)


@every_layer
def test_state_dict_round_trip(layer, tmp_path):
    x = layer.example()
    module, other = layer.module(seed=0), layer.module(seed=1)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), module(x))


# An argmax has no derivative: the directions of VN-Max, as the paper defines it, stay where they start.
UNTRAINED = [("max-pool", "direction.weight"), ("edge-conv-max", "pool.direction.weight")]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@every_layer
def test_gradients_are_finite_and_reach_everything(layer, training):
    x = layer.example()
    module = layer.module(training=training)
    x.requires_grad_()
    module(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()
    for name, parameter in module.named_parameters():
        if (layer.name, name) in UNTRAINED:
            assert parameter.grad is None
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


CHECKED = {
    *("linear-elements", "leaky-relu", "activation-tanh", "batch-norm", "batch-norm-log", "max-pool"),
    *("block-batch", "block-layer", "block-instance-detached", "edge-conv-cross"),
    *("invariant-mlp-mean", "invariant-orthonormal", "invariant-gram"),
    *("affine-linear", "activation-softplus", "activation-gelu", "residual-layer", "residual-none", "attention"),
}


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.name in CHECKED], ids=str)
def test_gradients_are_right(layer):
    x = layer.example(sizes=(2, 3), channels=2, dtype=torch.float64).requires_grad_()
    module = layer.module_for(x)
    names = [name for name, _ in module.named_parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), x)

    assert torch.autograd.gradcheck(run, (x, *module.parameters()))


def test_checked_layers_exist():
    assert {layer.name for layer in LAYERS} >= CHECKED


@pytest.mark.parametrize("mode", ["norm", "log"])
def test_conversion_to_synchronized_batch_norm(mode):
    module, x = vn.BatchNorm(4, mode=mode), torch.randn(8, 5, 3, 4)
    for _ in range(3):
        module(x)  # running statistics to carry over
    before = module.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    assert isinstance(converted, vn.BatchNorm)
    assert isinstance(converted.bn, nn.SyncBatchNorm)
    assert torch.equal(converted.eval()(x), before)


def test_conversion_reaches_every_batch_norm_of_a_network():
    network = nn.Sequential(vn.EdgeConv(1, 6, k=4), vn.Block(6, 6, norm="log-batch"), vn.Invariant(6))
    x = torch.randn(4, 12, 3, 1)
    network(x)
    before = network.eval()(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert not any(isinstance(part, nn.BatchNorm1d) for part in converted.modules())
    assert torch.equal(converted(x), before)


@pytest.mark.parametrize("mode", ["norm", "log"])
def test_an_untrained_batch_norm_in_evaluation_mode_is_the_identity(mode):
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(vn.BatchNorm(4, mode=mode).double().eval()(x), x)
