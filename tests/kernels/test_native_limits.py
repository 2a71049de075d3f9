"""Where the native backend falls back to the eager one, what it refuses, and unusual inputs."""

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.kernels.ops import BlockInput, norm_leaky_relu

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


@pytest.mark.parametrize("widths", [(6, 8), (70, 90), (30, 300)], ids=["small", "large", "uneven"])
def test_two_threads_in_inference_mode(widths):
    """Each of the three kinds of products, called from threads that know nothing of the mode."""
    x, threads = torch.randn(2, 40, 3, widths[0]), torch.get_num_threads()
    layers = vn.EdgeConv(*widths, k=3).eval(), vn.Block(*widths).eval(), vn.Invariant(widths[0]).eval()
    try:
        torch.set_num_threads(2)
        for layer in layers:
            with kernels.using("eager"):
                expected = layer(x)
            with kernels.using("native"), torch.inference_mode():
                torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(threads)


def test_statistics_of_the_batch_in_evaluation_leave_padding_out():
    block, x = vn.Block(6, 8).eval(), torch.randn(2, 9, 3, 6)
    block.norm.bn.running_mean = block.norm.bn.running_var = None
    mask = torch.arange(9) < torch.tensor([9, 5])[:, None]
    x[~mask] = 100
    with kernels.using("eager"):
        expected = block(x, mask)
    with kernels.using("native"):
        torch.testing.assert_close(block(x, mask)[mask], expected[mask])


def test_points_without_neighbors_have_no_gradient():
    layer, x = vn.EdgeConv(6, [21, 10], k=4).eval(), torch.randn(2, 50, 3, 6, requires_grad=True)
    with kernels.using("native"):
        layer(x, torch.zeros(2, 50, 0, dtype=torch.int64)).nansum().backward()
    assert x.grad is None or x.grad.nan_to_num().abs().max() == 0


def test_frozen_statistics_stay_frozen():
    block, x = vn.Block(6, 8).train(), torch.randn(2, 9, 3, 6)
    block.norm.bn.eval()
    with kernels.using("eager"):
        expected = block(x)
    with kernels.using("native"):
        torch.testing.assert_close(block(x), expected)
    assert block.norm.bn.num_batches_tracked == 0


@pytest.mark.parametrize("channels", [6, 12])
def test_inputs_need_not_be_contiguous(channels):
    wide = torch.randn(2, 9, 3, 2 * channels)
    for x in (wide[..., :channels], torch.randn(2, 9, channels, 3).mT, wide[:1, :, :, :channels].expand(4, -1, -1, -1)):
        for module in (
            vn.Block(channels, 8),
            vn.BatchNorm(channels),
            vn.EdgeConv(channels, 8, k=3),
            vn.Invariant(channels),
        ):
            module.eval()
            with kernels.using("native"):
                torch.testing.assert_close(module(x), module(x.contiguous()))


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # raised by torch's own jvp
def test_transforms_of_functions_take_the_eager_backend():
    block, x = vn.Block(6, 8).eval(), torch.randn(2, 5, 3, 6)
    with kernels.using("native"):
        _, found = torch.func.jvp(block, (x,), (x,))
        gradient = torch.func.grad(lambda x: block(x).square().sum())(x)
    with kernels.using("eager"):
        _, expected = torch.func.jvp(block, (x,), (x,))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, torch.func.grad(lambda x: block(x).square().sum())(x))


def test_a_reading_that_is_nan_is_not_hidden():
    x = torch.randn(2, 9, 3, 6)
    x[0, 0] = torch.nan
    with kernels.using("native"):
        largest, mean, _ = vn.Invariant(6, mean=False, frame="linear")(x, pool=True)
    assert largest[0].isnan().all()
    assert mean[0].isnan().all()
    assert largest[1].isfinite().all()


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_graphs_that_do_not_fit_are_refused(backend, unchecked):
    layer, x = vn.EdgeConv(6, 8, k=4).eval(), torch.randn(2, 50, 3, 6)
    with kernels.using(backend):
        for shape in ((2, 10, 4), (1, 50, 4), (2, 60, 4)):
            with pytest.raises(ValueError, match=r"a graph of \(2, 50\) clouds and points"):
                layer(x, torch.zeros(shape, dtype=torch.int64))
        with pytest.raises(ValueError, match="indices 0 to 49"):
            layer(x, torch.full((2, 50, 4), 50))
        assert layer(x, vn.knn(x, 4).int()).shape == (2, 50, 3, 8)
        assert layer(x[:0], torch.zeros(0, 50, 4, dtype=torch.int64)).shape == (0, 50, 3, 8)


def test_operators_refuse_what_they_would_read_beyond():
    a, norm = torch.randn(2, 5, 3, 16), torch.rand(5, 8)
    graph, weight = torch.zeros(2, 5, 3, dtype=torch.int64), torch.randn(16, 16)

    def refused(why, rows, norm=norm, directions=8, channels=8, pool=1):
        with pytest.raises(RuntimeError, match=why):
            norm_leaky_relu(rows, norm, directions, channels, pool, 0.2, None)

    refused("indices 0 to 4", BlockInput(a, a, neighbors=graph + 5), pool=3)
    refused("second rows", BlockInput(a, a[:, :4].contiguous(), neighbors=graph), pool=3)
    refused("contiguous", BlockInput(a[..., :8]))
    refused("the norm must be", BlockInput(a), norm[:4])
    refused("one channel or 8", BlockInput(a), directions=4)
    refused("one channel or 16", BlockInput(a), torch.rand(5, 16), directions=16)
    narrow = BlockInput(a[..., :8].contiguous(), neighbors=graph)
    refused("the width of edges", narrow, torch.rand(5, 4), directions=4, channels=4, pool=3)
    refused("the width of edges", BlockInput(a), channels=9)
    refused("do not make groups", BlockInput(a), pool=3)
    refused("do not make groups", BlockInput(a, neighbors=graph), pool=6)
    refused("one channel or 8", BlockInput(a), directions=0)
    refused("a weight maps", BlockInput(a, weight=weight[:8]))
    refused("a weight maps", BlockInput(a, weight=weight, neighbors=graph), pool=3)
    refused("projected features need their weight", BlockInput(a, weight=weight, projected=a[:1]))
    refused("projected features need their weight", BlockInput(a, projected=a))


def test_second_derivatives_are_refused_in_one_line():
    x = torch.randn(2, 5, 3, 6, requires_grad=True)
    with kernels.using("native"):
        (gradient,) = torch.autograd.grad(vn.Block(6, 8)(x).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=r'use\("eager"\)'):
            gradient.square().sum().backward()
    with kernels.using("eager"):
        (gradient,) = torch.autograd.grad(vn.Block(6, 8)(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()


def test_hooks_on_parts_of_a_block_are_called():
    block, seen = vn.Block(6, 8), []
    block.norm.register_forward_hook(lambda *_: seen.append("norm"))
    with kernels.using("native"):
        block(torch.randn(2, 5, 3, 6))
    assert seen == ["norm"]


def test_a_part_may_be_exchanged():
    block = vn.Block(6, 8)
    x = torch.randn(2, 5, 3, 6)

    class Twice(vn.BatchNorm):
        def forward(self, x, mask=None):
            return 2 * super().forward(x, mask)

    for part, other in {
        "linear": nn.Sequential(vn.Linear(6, 4), vn.Linear(4, 8)),
        "direction": vn.Linear(6, 8, num_elements=5),
        "norm": Twice(8),
    }.items():
        setattr(block, part, other)
        with kernels.using("eager"):
            expected = block.eval()(x)
        with kernels.using("native"):
            torch.testing.assert_close(block(x), expected)
    block = vn.Block(6, 8)
    block.norm = vn.BatchNorm(8, eps=1.0)
    with kernels.using("eager"):
        expected = block.eval()(x)
    with kernels.using("native"):
        torch.testing.assert_close(block(x), expected)


def test_half_precision_and_other_dimensions_take_the_eager_backend():
    with kernels.using("native"):
        assert vn.Block(6, 8).bfloat16()(torch.randn(2, 5, 3, 6).bfloat16()).dtype == torch.bfloat16
        assert vn.Block(6, 8)(torch.randn(2, 5, 4, 6)).shape == (2, 5, 4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert vn.EdgeConv(6, 8, k=3)(torch.randn(2, 5, 3, 6)).shape == (2, 5, 3, 8)


def test_a_row_that_is_nan_leaves_its_neighbors_alone():
    block, x = vn.Block(6, 8, norm="none").eval(), torch.randn(1, 8, 3, 6)
    with torch.no_grad():
        block.direction.weight[0] *= 1e-5  # far below the bound
        expected = block(x)
        x[0, 1] = torch.nan
        for backend in ("native", "eager"):
            with kernels.using(backend):
                found = block(x)
            others = [0, *range(2, 8)]
            torch.testing.assert_close(found[0, others], expected[0, others])


def test_large_results_can_be_resized():
    x, weight = torch.randn(1, 4096, 3, 64), torch.randn(64, 64)
    with kernels.using("native"):
        y = torch.ops.vector_neurons.project(x, weight)
    assert y.nbytes >= 2**21
    first = y.flatten()[:10].clone()
    y.resize_(2 * y.numel())
    assert torch.equal(y[:10], first)
    y.untyped_storage().resize_(0)
    assert y.untyped_storage().nbytes() == 0


def test_many_gradients_at_once_through_a_linear_map():
    layer, x = vn.Linear(4, 5), torch.randn(2, 7, 3, 4, requires_grad=True)
    with kernels.using("native"):
        y = layer(x)
        seeds = torch.randn(3, *y.shape)
        found = torch.autograd.grad(y, [x, layer.weight], seeds, is_grads_batched=True)
    with kernels.using("eager"):
        expected = torch.autograd.grad(layer(x), [x, layer.weight], seeds, is_grads_batched=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "exact"), [((2, 40, 3, 24), True), ((2, 8, 5, 3, 24), True), ((2, 2, 40, 3, 24), False)]
)
def test_small_maps_are_rounded_once_and_those_of_many_edges_are_not(shape, exact):
    block, x = vn.Block(24, 24).eval(), torch.randn(shape)
    with kernels.using("native"), torch.no_grad():
        found, exactly = block(x), block.double()(x.double())
    assert torch.equal(found, exactly.float()) == exact
    torch.testing.assert_close(found, exactly.float(), rtol=1e-4, atol=1e-5)


def test_gradients_under_autocast_are_those_of_a_pass_without():
    block, x = vn.Block(70, 40), torch.randn(2, 50, 3, 70, requires_grad=True)  # wide, and no whole number of lanes
    found = []
    for enabled in (False, True):
        with kernels.using("native"):
            y = block(x).square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(y, [x, *block.parameters()]))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
