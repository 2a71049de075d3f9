"""Attention and residual blocks against loops, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vector_neurons as vn

from . import transcription as paper
from .compare import assert_same, draw, every_shape, lists, norm_of, randomized, sets, vectors

MASK = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]])


def run_attention(layer, x, context, mask):
    W = {name: part.weight.tolist() for name, part in layer.named_children()}
    result = []
    for queries, keys, present in zip(sets(x), sets(context), mask.tolist(), strict=True):
        Q = [paper.linear(V, W["query"]) for V in queries]
        K, values = ([paper.linear(V, W[name]) for V in keys] for name in ("key", "value"))
        result += [paper.linear(V, W["out"]) for V in paper.attention(Q, K, values, layer.heads, present)]
    return vectors(result, x.shape[:-2])


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention(heads, dim):
    layer, x = randomized(vn.Attention(4, heads)), draw(2, 5, dim, 4)
    assert_same(layer(x), run_attention(layer, x, x, torch.ones_like(MASK)))
    assert_same(layer(x, mask=MASK), run_attention(layer, x, x, MASK))


@pytest.mark.parametrize("channels", [4, 3])
def test_cross_attention(channels):
    layer = randomized(vn.Attention(4, 2, context_channels=channels))
    x, context = draw(2, 7, 3, 4), draw(2, 5, 3, channels)
    assert_same(layer(x, context), run_attention(layer, x, context, torch.ones_like(MASK)))
    assert_same(layer(x, context, MASK), run_attention(layer, x, context, MASK))


def test_attention_of_scalars():
    """Against torch's own layer."""
    layer, theirs = randomized(vn.nn.scalar.Attention(6, 3)), nn.MultiheadAttention(6, 3, batch_first=True).double()
    parts = [layer.query, layer.key, layer.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(layer.out.state_dict())
    x, context = draw(2, 7, 6), draw(2, 5, 6)
    assert_same(layer(x), theirs(x, x, x)[0])
    assert_same(layer(x, context, MASK), theirs(x, context, context, key_padding_mask=~MASK)[0])


def run_residual(layer, elements, batch):
    """One element after the other, but for the norms."""

    def activate(activation, values):
        directions = [paper.linear(V, activation.direction.weight.tolist()) for V in values]
        return [paper.bend(V, k, activation.negative_slope) for V, k in zip(values, directions, strict=True)]

    y = activate(layer.activation_in, norm_of(layer.norm_in, batch)(elements))
    y = norm_of(layer.norm_out, batch)([paper.linear(V, layer.linear_in.weight.tolist()) for V in y])
    y = [paper.linear(V, layer.linear_out.weight.tolist()) for V in activate(layer.activation_out, y)]
    if isinstance(layer.shortcut, vn.Linear):
        elements = [paper.linear(V, layer.shortcut.weight.tolist()) for V in elements]
    return [[paper.plus(*both) for both in zip(S, V, strict=True)] for S, V in zip(elements, y, strict=True)]


@every_shape
@pytest.mark.parametrize("norm", ["none", "batch", "log-batch", "layer"])
@pytest.mark.parametrize("widths", [(4,), (4, 3), (4, 4, 5)], ids=str)
def test_residual_block(shape, norm, widths):
    layer = randomized(vn.ResidualBlock(*widths, norm=norm, shared_direction=shape[-2] == 5))
    for training in (True, False):
        layer.train(training)
        x = draw(*shape)
        assert_same(layer(x), vectors(run_residual(layer, lists(x), shape[0]), shape[:-2]))


def test_residual_block_of_scalars():
    layer, x = randomized(vn.nn.scalar.ResidualBlock(4, 3, 5, norm="none", negative_slope=0.1)), draw(2, 6, 4)
    inner, outer = layer.linear_in, layer.linear_out
    y = F.linear(torch.where(x > 0, x, 0.1 * x), inner.weight, inner.bias)
    y = F.linear(torch.where(y > 0, y, 0.1 * y), outer.weight, outer.bias)
    assert layer.shortcut.bias is None
    assert_same(layer(x), x @ layer.shortcut.weight.mT + y)


@pytest.mark.parametrize("kit", ["vector", "scalar"])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_new_residual_block_is_its_shortcut(kit, activation):
    x = draw(2, 6, 3, 4) if kit == "vector" else draw(2, 6, 4)
    layer = vn.KITS[kit].ResidualBlock(4, activation=activation).double().train()
    bias = 0 if kit == "vector" else layer.linear_out.bias
    assert torch.equal(layer(x), x + bias)
    assert not vn.KITS[kit].ResidualBlock(4, 8, 2).linear_out.weight.any()


def test_a_residual_block_passes_options_on():
    layer = vn.ResidualBlock(4, 8, 6, activation="silu", norm="batch", eps=1e-6, shared_direction=True)
    assert [layer.norm_in.eps, layer.norm_out.eps] == [1e-6, 1e-6]
    assert [layer.activation_in.h, layer.activation_out.h] == [F.silu, F.silu]
    assert [layer.activation_in.direction.out_channels, layer.linear_in.out_channels] == [1, 6]
    layer = vn.ResidualBlock(4, negative_slope=0.3, eps=1e-6, norm="layer")
    assert [layer.activation_in.negative_slope, layer.activation_out.eps, layer.norm_in.eps] == [0.3, 1e-6, 1e-5]
