"""The native bodies against the plain ones: values and gradients, and where they leave the work to them."""

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.kernels.block import Rows, bend, images, moments
from vector_neurons.testing import relative_error

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")

N, K = 33, 5
CASES = {
    "block": (lambda: vn.Block(6, 21), (2, N, 3, 6)),
    "block-wide": (lambda: vn.Block(6, 40), (2, N, 3, 6)),
    "block-one-channel": (lambda: vn.Block(6, 1), (2, N, 3, 6)),
    "block-shared": (lambda: vn.Block(6, 21, shared_direction=True), (2, N, 3, 6)),
    "block-none": (lambda: vn.Block(6, 21, norm="none", slope=0.0), (2, N, 3, 6)),
    "block-eps": (lambda: vn.Block(6, 21, eps=1e-6), (2, N, 3, 6)),
    "block-many-in": (lambda: vn.Block(30, 21), (2, N, 3, 30)),
    "block-many-in-shared": (lambda: vn.Block(30, 21, shared_direction=True), (2, N, 3, 30)),
    "block-many-rows": (lambda: vn.Block(25, 9), (2, 700, 3, 25)),
    "block-rank-3": (lambda: vn.Block(6, 21), (9, 3, 6)),
    "block-of-edges": (lambda: vn.Block(6, 21), (2, N, K, 3, 6)),
    "batch-norm": (lambda: vn.BatchNorm(6), (2, N, 3, 6)),
    "batch-norm-eps": (lambda: vn.BatchNorm(6, eps=1e-6), (2, N, 3, 6)),
    "edge-conv": (lambda: vn.EdgeConv(6, 21, k=K), (2, N, 3, 6)),
    "edge-conv-shared": (lambda: vn.EdgeConv(6, 21, k=K, shared_direction=True), (2, N, 3, 6)),
    "edge-conv-eps": (lambda: vn.EdgeConv(6, 21, k=K, eps=1e-6), (2, N, 3, 6)),
    "edge-conv-max": (lambda: vn.EdgeConv(6, 21, k=K, pool="max"), (2, N, 3, 6)),
    "edge-conv-deep": (lambda: vn.EdgeConv(6, [21, 10], k=K), (2, N, 3, 6)),
    "edge-conv-first": (lambda: vn.EdgeConv(1, 21, k=K, cross=True), (2, N, 3, 1)),
    "edge-conv-one-cloud": (lambda: vn.EdgeConv(6, 21, k=K), (1, N, 3, 6)),
    "edge-conv-k-1": (lambda: vn.EdgeConv(6, 21, k=1), (2, N, 3, 6)),
    "invariant": (lambda: vn.Invariant(6), (2, N, 3, 6)),
    "invariant-many-in": (lambda: vn.Invariant(26), (2, 300, 3, 26)),
    "invariant-no-mean": (lambda: vn.Invariant(24, mean=False), (2, N, 3, 24)),
}
both_modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def run(module, x, body):
    """Output, and the gradients of input and parameters, of a random function of it."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    with kernels.using(body):
        y = module(x)
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (y * weights.to(y.dtype)).sum().backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "input": x.grad, **gradients}


class Pooled(nn.Module):
    """The pools of what an invariant layer reads."""

    def __init__(self, **options):
        super().__init__()
        self.read = vn.Invariant(6, **options)

    def forward(self, x):
        largest, mean, frame = self.read.pooled(x)
        return torch.cat([largest, mean, frame.flatten(1)], dim=-1)


CASES |= {
    "pooled": (Pooled, (2, N, 3, 6)),
    "pooled-read-mean": (lambda: Pooled(read_mean=True), (2, N, 3, 6)),
    "pooled-orthonormal-no-mean": (lambda: Pooled(mean=False, frame="linear", orthonormal=True), (2, N, 3, 6)),
}


every_case = pytest.mark.parametrize("name", CASES)


def build(name, dtype, training, seed=0):
    torch.manual_seed(seed)
    make, shape = CASES[name]
    module, x = make().double().train(training), torch.randn(shape, dtype=torch.float64)
    return module.to(dtype), x.to(dtype)


@every_case
@both_modes
def test_values_and_gradients_in_float64(name, training):
    module, x = build(name, torch.float64, training)
    statistics = [b.clone() for b in module.buffers()]
    plain = run(module, x, "eager")
    learned = [b.clone() for b in module.buffers()]
    for buffer, before in zip(module.buffers(), statistics, strict=True):
        buffer.copy_(before)
    native = run(module, x, "native")
    assert native.keys() == plain.keys()
    for part, expected in plain.items():
        assert relative_error(native[part], expected) <= 1e-11, part
    for buffer, expected in zip(module.buffers(), learned, strict=True):
        torch.testing.assert_close(buffer, expected)


@every_case
@both_modes
def test_float32_is_as_accurate_as_the_plain_body(name, training):
    exact = run(*build(name, torch.float64, training), "eager")
    plain = run(*build(name, torch.float32, training), "eager")
    native = run(*build(name, torch.float32, training), "native")
    for part, truth in exact.items():
        # Where the plain body happens to be exact, three units of rounding are allowed.
        assert relative_error(native[part], truth) <= 4 * relative_error(plain[part], truth) + 4e-7, part


@pytest.mark.parametrize("name", ["block", "block-shared", "block-none", "edge-conv", "edge-conv-deep", "batch-norm"])
@pytest.mark.parametrize("cloud", ["zero", "equal", "some-zero", "tiny", "huge"])
@both_modes
def test_degenerate_clouds(name, cloud, training):
    module, x = build(name, torch.float64, training)
    x = {
        "zero": torch.zeros_like(x),
        "equal": x[:, :1].expand_as(x).clone(),
        "some-zero": x * (torch.arange(x.shape[1]) % 3 > 0)[:, None, None],
        "tiny": 1e-30 * x,
        "huge": 1e30 * x,
    }[cloud]
    plain, native = run(module, x, "eager"), run(module, x, "native")
    for part, expected in plain.items():
        assert native[part].isfinite().all()
        scale = expected.abs().max().clamp_min(1e-12)
        assert ((native[part] - expected).abs().max() / scale) <= 1e-9, part


@pytest.mark.parametrize("clouds", [1, 3])
@pytest.mark.parametrize("on", ["edges", "points", "images", "wide-images"])
def test_the_number_of_threads_changes_no_bit(clouds, on):
    torch.manual_seed(0)
    wide = on == "wide-images"  # by another product
    on, inputs, width = ("images", 96, 128) if wide else (on, 48, 24)
    a = torch.randn(clouds, 300, 3, inputs)
    b = torch.randn(clouds, 300, 3, 2 * width)
    graph, weight = torch.randint(300, (clouds, 300, 7)), torch.randn(inputs, 2 * width)
    norm = torch.rand(5, width)

    def everything(threads):
        torch.set_num_threads(threads)
        leaves = [t.clone().requires_grad_() for t in (a, b if on == "edges" else b[:, :1], norm, weight)]
        rows = Rows(*leaves[:2])
        rows = rows._replace(graph=graph) if on == "edges" else rows
        rows = rows._replace(weight=leaves[3]) if on == "images" else rows
        y = bend(rows, leaves[2], width, width - 3, 7 if on == "edges" else 1, 0.2, None, batch=100)
        sums = moments(rows, width, None)
        loss = y.square().sum() + (0 if on == "images" else sums.square().sum())
        gradients = torch.autograd.grad(loss, leaves[: 4 if on == "images" else 3])
        return [y, sums, images(a, weight), vn.knn(a, 9), vn.knn(a[..., :1], 9), *gradients]

    threads = torch.get_num_threads()
    try:
        with kernels.using("native"):
            for some in (2, 3, 5):
                for one, other in zip(everything(1), everything(some), strict=True):
                    assert torch.equal(one, other)
    finally:
        torch.set_num_threads(threads)


def test_the_gradient_by_finite_differences():
    torch.manual_seed(0)
    module = vn.EdgeConv(2, 3, k=3, slope=0.3).double().train()
    graph = vn.knn(torch.randn(1, 6, 3), 3)
    from vector_neurons.nn.unbuilt import Edges

    with kernels.using("native"):
        block = module.blocks[0]
        assert torch.autograd.gradcheck(
            lambda x: block.mean(Edges(x, graph)), torch.randn(1, 6, 3, 2, dtype=torch.float64, requires_grad=True)
        )


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 0.0])
def test_lengths_that_hardly_differ_have_a_variance(spread):
    """It is the difference of two sums, of which float32 would leave nothing, or less."""
    torch.manual_seed(0)
    x = 3 * torch.randn(1, 1, 3, 12) + spread * torch.randn(2, 200, 3, 12)
    blocks = [vn.Block(12, 8) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    exact = run(blocks[0].double(), x.double(), "eager")
    plain, native = run(blocks[0].float(), x, "eager"), run(blocks[1], x, "native")
    assert blocks[1].norm.bn.running_var.min() >= 0
    if spread:
        for part in ("output", "input"):
            assert relative_error(native[part], exact[part]) <= 4 * relative_error(plain[part], exact[part]) + 1e-6


def test_a_cloud_far_from_the_origin():
    x = torch.randn(2, 200, 3, 1) + 1000 * torch.randn(3, 1)
    assert all(value.isfinite().all() for value in run(vn.Block(1, 8), x, "native").values())


@pytest.mark.parametrize("name", ["block", "block-many-in", "edge-conv", "invariant", "invariant-many-in", "pooled"])
@both_modes
def test_an_input_without_gradient(name, training):
    module, x = build(name, torch.float64, training)
    gradients = []
    for body in ("eager", "native"):
        module.zero_grad()
        with kernels.using(body):
            module(x).square().sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_parameters_without_gradient():
    module, x = build("block-many-in", torch.float64, True)
    module.linear.requires_grad_(False), module.direction.requires_grad_(False)
    plain, native = run(module, x, "eager"), run(module, x, "native")
    assert native.keys() == plain.keys()
    for part, expected in plain.items():
        assert relative_error(native[part], expected) <= 1e-11, part


def test_directions_too_short_beside_others_are_bounded_alike():
    module, x = build("block", torch.float64, True)
    module.direction.weight.data[0] *= 5e-4
    plain, native = run(module, x, "eager"), run(module, x, "native")
    for part, expected in plain.items():
        assert relative_error(native[part], expected) <= 1e-11, part


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


def test_points_without_neighbours_have_no_gradient():
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
            with kernels.using("eager"):
                expected = module(x)
            with kernels.using("native"):
                torch.testing.assert_close(module(x), expected)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # raised by torch's own jvp
def test_transforms_of_functions_take_the_plain_body():
    block, x = vn.Block(6, 8).eval(), torch.randn(2, 5, 3, 6)
    with kernels.using("native"):
        _, found = torch.func.jvp(block, (x,), (x,))
        gradient = torch.func.grad(lambda x: block(x).square().sum())(x)
    with kernels.using("eager"):
        _, expected = torch.func.jvp(block, (x,), (x,))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradient, torch.func.grad(lambda x: block(x).square().sum())(x))


def test_a_reading_that_is_no_number_is_not_hidden():
    x = torch.randn(2, 9, 3, 6)
    x[0, 0] = torch.nan
    with kernels.using("native"):
        largest, mean, _ = vn.Invariant(6, mean=False, frame="linear").pooled(x)
    assert largest[0].isnan().all()
    assert mean[0].isnan().all()
    assert largest[1].isfinite().all()


@pytest.mark.parametrize("body", ["eager", "native"])
def test_graphs_that_do_not_fit_are_refused(body, unchecked):
    layer, x = vn.EdgeConv(6, 8, k=4).eval(), torch.randn(2, 50, 3, 6)
    with kernels.using(body):
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
            bend(rows, norm, directions, channels, pool, 0.2, None)

    refused("indices 0 to 4", Rows(a, a, graph=graph + 5), pool=3)
    refused("second rows", Rows(a, a[:, :4].contiguous(), graph=graph), pool=3)
    refused("contiguous", Rows(a[..., :8]))
    refused("the norm must be", Rows(a), norm[:4])
    refused("one channel or 8", Rows(a), directions=4)
    refused("one channel or 16", Rows(a), torch.rand(5, 16), directions=16)
    narrow = Rows(a[..., :8].contiguous(), graph=graph)
    refused("the width of edges", narrow, torch.rand(5, 4), directions=4, channels=4, pool=3)
    refused("the width of edges", Rows(a), channels=9)
    refused("do not make groups", Rows(a), pool=3)
    refused("do not make groups", Rows(a, graph=graph), pool=6)
    refused("one channel or 8", Rows(a), directions=0)
    refused("a weight maps", Rows(a, weight=weight[:8]))
    refused("a weight maps", Rows(a, weight=weight, graph=graph), pool=3)
    refused("images need their weight", Rows(a, weight=weight, images=a[:1]))
    refused("images need their weight", Rows(a, images=a))


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
        "direction": vn.Linear(6, 8, elements=5),
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


def test_half_precision_and_other_dimensions_take_the_plain_body():
    with kernels.using("native"):
        assert vn.Block(6, 8).bfloat16()(torch.randn(2, 5, 3, 6).bfloat16()).dtype == torch.bfloat16
        assert vn.Block(6, 8)(torch.randn(2, 5, 4, 6)).shape == (2, 5, 4, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert vn.EdgeConv(6, 8, k=3)(torch.randn(2, 5, 3, 6)).shape == (2, 5, 3, 8)
