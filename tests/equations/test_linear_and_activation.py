import math

import pytest
import torch

import vector_neurons as vn
from vector_neurons.nn import functional as VF

from . import transcription as paper
from .compare import (
    SHAPES,
    assert_same,
    draw,
    every_shape,
    lists,
    mapped,
    randomized,
    run_block,
    run_mlp,
    set_shapes,
    vectors,
)

slopes = pytest.mark.parametrize("slope", [0.0, 0.2])
shared_or_not = pytest.mark.parametrize("shared", [False, True], ids=["own-direction", "shared-direction"])


def directions(shape, shared):
    return draw(*shape[:-1], 1 if shared else shape[-1])


def each_channel(function, q, k, *arguments):
    """`function(q, k, ...)` of the transcription for every vector of every element."""
    return vectors(
        [
            [function(Q[c], paper.own(K, c), *arguments) for c in range(len(Q))]
            for Q, K in zip(lists(q), lists(k), strict=True)
        ],
        q.shape[:-2],
    )


@every_shape
def test_linear(shape):
    for out in (4, 5):
        layer, x = randomized(vn.Linear(4, out)), draw(*shape)
        expected = mapped(x, layer.weight)
        assert_same(layer(x), expected)
        assert_same(VF.linear(x, layer.weight), expected)


@every_shape
def test_affine_linear(shape):
    for out in (1, 5):
        layer, x = randomized(vn.AffineLinear(4, out)), draw(*shape)
        assert_same(layer(x), vectors([paper.affine(V, layer.weight.tolist()) for V in lists(x)], shape[:-2]))


@set_shapes
def test_linear_unshared(shape):
    elements = shape[-3]
    layer, x = randomized(vn.Linear(4, 5, num_elements=elements)), draw(*shape)
    W = layer.weight.tolist()
    expected = vectors([paper.linear(V, W[n % elements]) for n, V in enumerate(lists(x))], shape[:-2])
    assert_same(layer(x), expected)
    assert_same(VF.linear(x, layer.weight), expected)


@every_shape
@shared_or_not
def test_relu(shape, shared):
    q, k = draw(*shape), directions(shape, shared)
    k[0] = 0
    assert_same(VF.relu(q, k), each_channel(paper.relu, q, k))


@every_shape
@slopes
@shared_or_not
def test_leaky_relu(shape, slope, shared):
    q, k = draw(*shape), directions(shape, shared)
    assert_same(VF.leaky_relu(q, k, slope), each_channel(paper.leaky_relu, q, k, slope))
    layer = randomized(vn.LeakyReLU(4, negative_slope=slope, shared_direction=shared))
    assert_same(layer(q), each_channel(paper.leaky_relu, q, mapped(q, layer.direction.weight), slope))


@slopes
@shared_or_not
def test_leaky_relu_authors_eps(slope, shared):
    def theirs(q, k):
        return paper.leaky_relu_over(q, k, slope, paper.dot(k, k) + 1e-6)

    q, k = draw(2, 3, 3, 4), directions((2, 3, 3, 4), shared)
    for scale in (1.0, 1e-3):
        expected = each_channel(theirs, scale * q, scale * k)
        assert_same(VF.leaky_relu(scale * q, scale * k, slope, eps=1e-6), expected)


@slopes
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_short_directions(slope, scale):
    """The equation down to a thousandth of the list's RMS length; anything shorter counts as that long."""
    q, k = draw(6, 3, 4), scale * draw(6, 3, 4)
    k[..., 0] *= 2e-3 * VF.norm(k).square().mean(-1, keepdim=True).sqrt() / VF.norm(k)[..., :1]
    assert_same(VF.leaky_relu(q, k, slope), each_channel(paper.leaky_relu, q, k, slope))
    assert_same(VF.activation(q, k, cubic), each_channel(paper.activation, q, k, cubic))

    k[..., 0] *= 0.1
    bounded = []
    for Q, K in zip(lists(q), lists(k), strict=True):
        floor = 1e-6 * sum(paper.dot(v, v) for v in K) / len(K)
        squares = [max(paper.dot(v, v), floor) for v in K]
        bounded.append([paper.leaky_relu_over(Q[c], K[c], slope, squares[c]) for c in range(len(Q))])
    assert_same(VF.leaky_relu(q, k, slope), vectors(bounded, (6,)))


def cubic(t):
    return 0.25 - 0.5 * t + t * t * t


@every_shape
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "supplement"])
@shared_or_not
def test_activation(shape, signed, shared):
    rule = paper.activation if signed else paper.activation_of_length
    q, k = draw(*shape), directions(shape, shared)
    assert_same(VF.activation(q, k, cubic, signed=signed), each_channel(rule, q, k, cubic))
    layer = randomized(vn.Activation(4, cubic, signed=signed, shared_direction=shared))
    assert_same(layer(q), each_channel(rule, q, mapped(q, layer.direction.weight), cubic))


NAMED = {
    "relu": lambda t: max(t, 0.0),
    "softplus": lambda t: math.log(1 + math.exp(t)),
    "gelu": lambda t: t / 2 * (1 + math.erf(t / math.sqrt(2))),
    "silu": lambda t: t / (1 + math.exp(-t)),
    "tanh": lambda t: (math.exp(t) - math.exp(-t)) / (math.exp(t) + math.exp(-t)),
}
every_name = pytest.mark.parametrize("name", NAMED)


@every_name
@shared_or_not
def test_named_activation(name, shared):
    x = draw(2, 3, 3, 4)
    layer = randomized(vn.Activation(4, name, shared_direction=shared))
    assert_same(layer(x), each_channel(paper.activation, x, mapped(x, layer.direction.weight), NAMED[name]))


@every_name
def test_block_with_named_activation(name):
    layer, x = randomized(vn.Block(4, 3, norm="none", activation=name)), draw(2, 3, 3, 4)
    q, k = (mapped(x, part.weight) for part in (layer.linear, layer.direction))
    assert_same(layer(x), each_channel(paper.activation, q, k, NAMED[name]))


@every_name
def test_named_activation_of_scalars(name):
    x = draw(2, 3, 4)
    expected = torch.tensor([NAMED[name](t) for t in x.flatten().tolist()], dtype=torch.float64).view(2, 3, 4)
    assert_same(vn.nn.scalar.Activation(4, name)(x), expected)
    block = vn.nn.scalar.Block(4, 4, norm="none", activation=name).double()
    torch.nn.init.eye_(block.linear.weight)
    torch.nn.init.zeros_(block.linear.bias)
    assert_same(block(x), expected)


@pytest.mark.parametrize("kit", ["vector", "scalar"])
@pytest.mark.parametrize("wrong", ["swish", None])
@pytest.mark.usefixtures("unchecked")
def test_unknown_activations_are_named(kit, wrong):
    with pytest.raises(ValueError, match=r"unknown activation .*: choose one of relu, softplus, gelu, silu, tanh, or"):
        vn.KITS[kit].Activation(4, wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="unknown activation 'swish'"):
            vn.KITS[kit].Block(4, 4, activation=wrong)


def test_activation_by_relu():
    q, k = draw(5, 3, 4), draw(5, 3, 4)
    assert_same(VF.activation(q, k, torch.relu), each_channel(paper.relu, q, k))
    assert_same(VF.activation(q, k, torch.relu, signed=False), q)


NORMS = ["none", "batch", "log-batch", "layer", "instance"]
NORMED = [(shape, norm) for shape in SHAPES for norm in NORMS if norm != "instance" or len(shape) > 3]


@pytest.mark.parametrize(("shape", "norm"), NORMED, ids=str)
@slopes
@pytest.mark.parametrize("source", ["input", "output"])
def test_block(shape, norm, slope, source):
    shared = shape[-2] == 5
    layer = randomized(
        vn.Block(4, 3, norm=norm, direction=source, negative_slope=slope, shared_direction=shared),
    )
    for training in (True, False):
        layer.train(training)
        x = draw(*shape)
        expected = vectors(run_block(layer, lists(x), shape[0]), shape[:-2])
        assert_same(layer(x), expected)


@pytest.mark.parametrize("source", ["input", "output"])
def test_block_with_activation(source):
    layer, x = randomized(vn.Block(4, 3, norm="none", direction=source, activation=cubic)), draw(2, 3, 3, 4)
    q = mapped(x, layer.linear.weight)
    k = mapped(x if source == "input" else q, layer.direction.weight)
    assert_same(layer(x), each_channel(paper.activation, q, k, cubic))


@every_shape
def test_mlp(shape):
    layer, x = randomized(vn.MLP([4, 5, 3, 2])), draw(*shape)
    assert_same(layer(x), vectors(run_mlp(layer, lists(x), shape[0]), shape[:-2]))


def test_parts_of_an_mlp_follow_each_other():
    layer, x = randomized(vn.MLP([4, 5, 3, 2])), draw(2, 6, 3, 4)
    assert torch.equal(layer[1:](layer[:1](x)), layer(x))
    assert layer[-1] is list(layer)[-1]
