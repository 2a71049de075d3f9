"""Maxima of scalars over neighbors and points: torch's checks, gradients, statistics, ties, and fallbacks."""

import copy

import pytest
import torch
from maxima import B, C, K, N, arguments, draw
from mutated import mutated
from torch import nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.nn import scalar, sync
from vector_neurons.testing import relative_error

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")
operators = torch.ops.vector_neurons


@pytest.mark.parametrize(
    "name", ["edge_max", "edge_max-center", "edge_norm", "edge_norm-center", "max_mean", "product_argmax"]
)
def test_torch_checks_the_operator(name):
    given = arguments()[name]
    for place in (0, 6) if name.startswith("edge_norm") else (0,) if name == "max_mean" else ():
        given[place].requires_grad_()
    torch.library.opcheck(getattr(operators, name.partition("-")[0]).default, given)


@pytest.mark.parametrize("wrong", [-1, N])
@pytest.mark.parametrize("name", ["edge_max", "edge_norm"])
def test_a_neighbor_that_is_no_point_is_refused(name, wrong):
    given = list(arguments()[name])
    given[1] = given[1].clone()
    given[1][1, 2, 3] = wrong
    with pytest.raises(IndexError, match=f"neighbor {wrong} is not one of {N} points"):
        getattr(operators, name)(*given)


@pytest.mark.parametrize(
    ("name", "place", "change"),
    [
        ("edge_max", 0, lambda x: x[..., 1:].contiguous()),
        ("edge_max", 0, lambda x: x.mT.contiguous().mT),
        ("edge_max", 1, lambda x: x[:, 1:].contiguous()),
        ("edge_max", 1, lambda x: x[..., :0]),
        ("edge_max", 2, lambda x: x[1:]),
        ("edge_max-center", 3, lambda x: x.float()),
        ("edge_norm", 2, lambda x: x[:, 1:].contiguous()),
        ("edge_norm", 3, lambda x: x.long()),
        ("edge_norm", 4, lambda x: x[:0]),
        ("edge_norm", 5, lambda x: x[:0]),
        ("edge_norm", 6, lambda x: x[:3]),
        ("product_argmax", 0, lambda x: x[:, :0]),
        ("product_argmax", 1, lambda x: x[1:]),
        ("product_argmax", 2, lambda x: x[1:]),
        ("max_mean", 0, lambda x: x[0]),
        ("max_mean", 0, lambda x: x[:, :0]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, place, change):
    given = list(arguments()[name])
    given[place] = change(given[place])
    with pytest.raises(RuntimeError):
        getattr(operators, name.partition("-")[0])(*given)


def test_an_index_out_of_range_is_refused_by_the_gradients():
    projected, neighbors, largest, argmax, *others = arguments()["edge_norm"]
    with pytest.raises(IndexError, match="not at one of"):
        operators.edge_norm_backward(largest, projected, neighbors, largest, argmax + N, *others)
    with pytest.raises(IndexError, match="not one of"):
        operators.max_mean_backward(draw(B, C), draw(B, C), torch.full((B, C), N, dtype=torch.int32), N)


def convolution(channels=6, out=21, *, dtype=torch.float64, training=True, **options):
    """With norms of either sign."""
    torch.manual_seed(0)
    layer = scalar.EdgeConv(channels, out, k=K, pool="max", **options).to(dtype).train(training)
    bn = layer.blocks[0].norm.bn
    with torch.no_grad():
        for values in (bn.weight, bn.bias, bn.running_mean):
            values.normal_()
        bn.running_var.uniform_(0.5, 2)
    return layer


def run(layer, x, backend, *more):
    """Output, gradients and buffers, of a copy of the layer."""
    layer, x = copy.deepcopy(layer), x.clone().requires_grad_()
    with kernels.using(backend):
        y = layer(x, *more)
        (y * torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters()}
    return {"output": y.detach(), "input": x.grad, **gradients, **dict(layer.named_buffers())}


def assert_same(layer, x, *more, tolerance=1e-11):
    eager, native = run(layer, x, "eager", *more), run(layer, x, "native", *more)
    assert native.keys() == eager.keys()
    for part, expected in eager.items():
        assert relative_error(native[part].double(), expected.double()) <= tolerance, part
    return native


def uses_edge_max(layer, x, *more):
    """Whether the kernel computes this convolution: a changed one changes it."""
    with kernels.using("native"), torch.no_grad():
        expected = copy.deepcopy(layer)(x, *more)
        with mutated("edge_max", lambda found, *_: (found[0] + 1, *found[1:])):
            return not torch.equal(copy.deepcopy(layer)(x, *more), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [3, 6])
def test_norms_of_either_sign(training, channels):
    layer, x = convolution(channels, training=training), draw(B, 33, channels)
    assert layer.blocks[0].norm.bn.weight.min() < 0 < layer.blocks[0].norm.bn.weight.max()
    assert uses_edge_max(layer, x)
    assert_same(layer, x)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_finite_differences(training):
    layer, graph = convolution(4, 3, training=training), vn.knn(draw(1, 7, 3), K)
    x = draw(1, 7, 4).requires_grad_()
    parameters = list(layer.parameters())
    with kernels.using("native"):
        assert torch.autograd.gradcheck(lambda x, *_: layer(x, graph), (x, *parameters))


@pytest.mark.parametrize("mean", [1e3, 1e5])
@pytest.mark.parametrize("channels", [3, 6])
def test_features_of_a_large_mean_keep_their_variance(mean, channels):
    """It would be lost in the difference of two sums, and in float32 in that of two projections of points."""
    x, graph = (draw(B, 60, channels) + mean).float(), vn.knn(draw(B, 60, channels), K)
    layer = convolution(channels, dtype=torch.float32)
    exact = run(copy.deepcopy(layer).double(), x.double(), "eager", graph)
    eager, native = run(layer, x, "eager", graph), run(layer, x, "native", graph)
    for part, truth in exact.items():
        error = relative_error(native[part].double(), truth.double())
        assert error <= 4 * relative_error(eager[part].double(), truth.double()) + 1e-6, part
    # The gradient of a weight multiplies errors of the size of the mean by it.
    assert_same(convolution(channels), x.double(), graph, tolerance=1e-15 * mean**2)


def test_running_statistics_are_those_of_torch():
    x, graph = draw(B, 33, 6), vn.knn(draw(B, 33, 3), K)
    for momentum in (0.1, None):
        layer, expected = convolution(), nn.BatchNorm1d(21, momentum=momentum).double()
        bn = layer.blocks[0].norm.bn
        bn.momentum = momentum
        expected.load_state_dict(bn.state_dict())
        for step in range(2):
            edges = layer.blocks[0].linear(vn.geometry.neighbors.edge_features((step + 1) * x, graph))
            expected(edges.flatten(0, -2))
            with kernels.using("native"):
                layer((step + 1) * x, graph)
        for name, buffer in expected.named_buffers():
            torch.testing.assert_close(bn.get_buffer(name), buffer)


def test_a_tie_goes_to_the_first_neighbor():
    layer, x = convolution(), draw(1, 6, 6)
    x[0, 3] = x[0, 1]
    graph = torch.tensor([[[3, 1], [1, 3], [0, 0], [0, 2], [4, 4], [5, 1]]])
    native, eager = run(layer.eval(), x, "native", graph), run(layer, x, "eager", graph)
    assert relative_error(native["output"], eager["output"]) <= 1e-12
    # The eager backend divides it among them: the sum over equal points is the same.
    assert relative_error(native["input"].sum(1), eager["input"].sum(1)) <= 1e-12
    for part in ("blocks.0.linear.weight", "blocks.0.norm.bn.weight", "blocks.0.norm.bn.bias"):
        assert relative_error(native[part], eager[part]) <= 1e-12
    _, argmax, _, _ = operators.edge_max(torch.zeros(1, 6, 2), graph, torch.ones(1), None)
    assert argmax.flatten().tolist() == graph[0, :, 0].tolist()


def test_a_norm_with_weight_zero_is_constant():
    layer, x = convolution(), draw(B, 33, 6)
    layer.blocks[0].norm.bn.weight.data.zero_()
    native, eager = run(layer, x, "native"), run(layer, x, "eager")
    assert torch.equal(native["output"], eager["output"])
    assert native["input"].abs().max() == native["blocks.0.linear.weight"].abs().max() == 0
    assert relative_error(native["blocks.0.norm.bn.bias"], eager["blocks.0.norm.bn.bias"]) <= 1e-12
    assert native["blocks.0.norm.bn.weight"].isfinite().all()


def test_equal_points_have_finite_gradients():
    layer = convolution()
    found = run(layer, torch.ones(B, 9, 6, dtype=torch.float64), "native")
    assert all(value.isfinite().all() for value in found.values())


def test_a_nan_reaches_the_points_it_is_a_neighbor_of():
    layer, x = convolution(training=False), draw(1, 6, 6)
    x[0, 2] = torch.nan
    graph = torch.tensor([[[0, 1], [1, 2], [3, 4], [2, 0], [4, 4], [5, 1]]])
    with kernels.using("native"), torch.no_grad():
        assert layer(x, graph)[0].isnan().all(-1).tolist() == [False, True, True, True, False, False]
        pooled = scalar.MaxPool(6)(x)
    assert pooled.isnan().all()


def test_the_number_of_threads_changes_no_bit():
    layer, x = convolution(20, 150, dtype=torch.float32), draw(3, 200, 20).float()
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(run(layer, x, "native"))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(other[part], value) for part, value in found[0].items())


def test_no_second_derivative_is_an_error():
    layer, x = convolution(), draw(B, 33, 6).requires_grad_()
    with kernels.using("native"):
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.square().sum().backward()


CHANGES = {
    "hook": lambda layer: layer.blocks[0].norm.register_forward_hook(lambda *_: None),
    "hook-of-block": lambda layer: layer.blocks[0].register_forward_hook(lambda *_: None),
    "hook-of-pool": lambda layer: layer.pool.register_forward_hook(lambda *_: None),
    "activation": lambda layer: setattr(layer.blocks[0], "activation", nn.Tanh()),
    "norm": lambda layer: setattr(layer.blocks[0], "norm", scalar.LayerNorm(21).double()),
    "half": lambda layer: layer.to(torch.bfloat16),
    "mean": lambda layer: setattr(layer, "pool", scalar.MeanPool()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_layers_do_not_use_the_kernel(change):
    layer = convolution()
    CHANGES[change](layer)
    assert not uses_edge_max(layer, draw(B, 9, 6).to(layer.blocks[0].linear.weight.dtype))


@pytest.mark.parametrize("options", [{"bias": True}, {"cross": True}])
def test_other_options_do_not_use_the_kernel(options):
    assert not uses_edge_max(convolution(**options), draw(B, 9, 6))


def test_padding_and_other_processes_are_left_to_the_eager_path():
    layer, x = convolution(), draw(B, 9, 6)
    mask = torch.arange(9) < torch.tensor([[9], [7]])
    assert not uses_edge_max(layer, x, None, mask)
    eager, native = (run(layer, x, backend, None, mask)["output"] for backend in ("eager", "native"))
    assert relative_error(native[mask], eager[mask]) <= 1e-12
    with sync.synchronized():
        assert layer.blocks[0].edge_max(x, vn.knn(x, K)) is None


def test_a_graph_in_int32_and_one_edge():
    layer = convolution()
    assert_same(layer, draw(B, 33, 6), vn.knn(draw(B, 33, 3), K).int())
    with kernels.using("native"), pytest.raises(ValueError, match="more than one element"):
        layer(draw(1, 1, 6), torch.zeros(1, 1, 1, dtype=torch.long))


def test_an_empty_batch_is_treated_as_by_the_eager_backend():
    layer, x = convolution(training=False), torch.zeros(0, 9, 6).double()
    with kernels.using("native"), torch.no_grad():
        assert layer(x, torch.zeros(0, 9, K, dtype=torch.long)).shape == (0, 9, 21)


@pytest.mark.parametrize("training", [True, False])
def test_a_bias_before_a_norm(training):
    torch.manual_seed(0)
    block, x = scalar.Block(6, 21, bias=True).double().train(training), draw(B, 100, 6)
    eager, native = run(block, x, "eager"), run(block, x, "native")
    if training:  # the norm removes it
        assert torch.equal(native.pop("linear.bias"), torch.zeros(21).double())
    for part, found in native.items():
        assert relative_error(found.double(), eager[part].double()) <= 1e-11, part
    with kernels.using("native"), torch.no_grad():
        found = copy.deepcopy(block)(x)  # by another kernel, if not in training
    assert relative_error(found, eager["output"]) <= 1e-12


class BlockMax(nn.Module):
    """A block and its maximum over points, with norms of either sign."""

    def __init__(self, channels=4, out=16, **options):
        super().__init__()
        torch.manual_seed(0)
        self.block, self.pool = scalar.Block(channels, out, **options), scalar.MaxPool(out)
        bn = self.double().block.norm.bn
        with torch.no_grad():
            for values in (bn.weight, bn.bias, bn.running_mean):
                values.normal_()

    def forward(self, x, mask=None):
        return scalar.block_pool(self.block, self.pool, x, mask)


def uses_product_argmax(layer, x, *more):
    with kernels.using("native"), torch.no_grad():
        expected = copy.deepcopy(layer)(x, *more)
        with mutated("product_argmax", lambda found, *_: torch.zeros_like(found)):
            return not torch.equal(copy.deepcopy(layer)(x, *more), expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mean", [0, 1e3])
def test_a_block_and_its_maximum_over_points(training, bias, mean):
    layer, x = BlockMax(bias=bias).train(training), draw(3, 300, 4) + mean
    assert uses_product_argmax(layer, x)
    eager, native = run(layer, x, "eager"), run(layer, x, "native")
    if training and bias:
        assert torch.equal(native.pop("block.linear.bias"), torch.zeros(16).double())
    for part, found in native.items():
        assert relative_error(found.double(), eager[part].double()) <= 1e-11 + 1e-15 * mean**2, part
    exact, single = run(copy.deepcopy(layer), x.float().double(), "eager"), copy.deepcopy(layer).float()
    eager, native = run(single, x.float(), "eager"), run(single, x.float(), "native")
    for part in ("output", "input", "block.linear.weight", "block.norm.bn.weight", "block.norm.bn.running_var"):
        error = relative_error(native[part].double(), exact[part].double())
        assert error <= 4 * relative_error(eager[part].double(), exact[part].double()) + 1e-6, part


def test_the_maximum_over_points_by_finite_differences_and_once_only():
    layer, x = BlockMax(2, 8), draw(2, 9, 2).requires_grad_()
    with kernels.using("native"):
        assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))
        (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        gradient.square().sum().backward()


def test_a_nan_is_the_maximum_over_points():
    layer, x = BlockMax().eval(), draw(2, 9, 4)
    x[1, 3] = torch.nan
    with kernels.using("native"), torch.no_grad():
        assert layer(x).isnan().all(-1).tolist() == [False, True]


def test_other_blocks_before_a_pool_are_computed_at_every_point():
    x = draw(B, N, 4)
    assert uses_product_argmax(BlockMax(), x)
    assert not uses_product_argmax(BlockMax(out=15), x)  # too narrow
    assert not uses_product_argmax(BlockMax(activation="gelu"), x)
    assert not uses_product_argmax(BlockMax(), x, torch.ones(B, N, dtype=torch.bool))
    hooked = BlockMax()
    hooked.block.register_forward_hook(lambda *_: None)
    assert not uses_product_argmax(hooked, x)


def test_mutated_pools_reach_the_layers():
    x = draw(B, 33, 6)
    with kernels.using("native"), mutated("max_mean", lambda found, *_: (found[0] + 1, found[1] + 2, found[2])):
        largest, mean, _ = scalar.Invariant(6)(x, pool=True)
        torch.testing.assert_close(largest, x.amax(1) + 1)
        torch.testing.assert_close(mean, x.mean(1) + 2)
        torch.testing.assert_close(scalar.MaxPool(6)(x), x.amax(1) + 1)
