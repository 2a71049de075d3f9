"""The native backend against the eager one: values and gradients."""

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.kernels.ops import BlockInput, length_sums, norm_leaky_relu, project
from vector_neurons.nn import scalar
from vector_neurons.nn.hybrid import Features, FrameConv, HybridBlock
from vector_neurons.testing import relative_error

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")

N, K = 33, 5
CASES = {
    "block": (lambda: vn.Block(6, 21), (2, N, 3, 6)),
    "block-wide": (lambda: vn.Block(6, 40), (2, N, 3, 6)),
    "block-one-channel": (lambda: vn.Block(6, 1), (2, N, 3, 6)),
    "block-shared": (lambda: vn.Block(6, 21, shared_direction=True), (2, N, 3, 6)),
    "block-none": (lambda: vn.Block(6, 21, norm="none", negative_slope=0.0), (2, N, 3, 6)),
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
    "scalar-block": (lambda: scalar.Block(6, 21), (2, N, 6)),
    "scalar-block-one-channel": (lambda: scalar.Block(6, 1, negative_slope=0.0), (2, N, 6)),
    "scalar-block-many-rows": (lambda: scalar.Block(5, 24), (2, 1500, K, 5)),
    "scalar-block-rows": (lambda: scalar.Block(70, 200), (50, 70)),
    "scalar-block-none": (lambda: scalar.Block(6, 21, norm="none"), (2, N, 6)),
    "scalar-batch-norm": (lambda: scalar.BatchNorm(6), (2, N, 6)),
    "scalar-max": (lambda: scalar.MaxPool(6), (2, 300, 6)),
    "scalar-max-wide": (lambda: scalar.MaxPool(600), (2, N, 600)),
    "scalar-max-mean": (lambda: MaxMean(), (2, 300, 21)),
    "scalar-block-max": (lambda: BlockMax(), (2, N, 6)),
    "scalar-edge-max": (lambda: scalar.EdgeConv(6, 21, k=K, pool="max"), (2, N, 6)),
    "scalar-edge-max-of-points": (lambda: scalar.EdgeConv(3, 21, k=K, pool="max"), (2, N, 3)),
    "scalar-edge-max-wide": (lambda: scalar.EdgeConv(20, 150, k=20, pool="max"), (2, 200, 20)),
    "scalar-edge-max-few": (lambda: scalar.EdgeConv(5, 1, k=2, pool="max", negative_slope=0.0), (1, 3, 5)),
    "scalar-edge-max-k-1": (lambda: scalar.EdgeConv(6, 21, k=1, pool="max"), (2, N, 6)),
    "scalar-edge-conv": (lambda: scalar.EdgeConv(6, [21, 9], k=K, pool="max"), (2, N, 6)),
    "hybrid-block": (lambda: OnFeatures(HybridBlock((6, 6), (21, 10))), (2, N, 3, 6)),
    "frame-conv": (lambda: OnFeatures(FrameConv((6, 6), (21, 9), hidden=13), K), (2, N, 3, 6)),
    "frame-conv-wide": (lambda: OnFeatures(FrameConv((25, 25), (70, 33), hidden=90), 20), (2, 300, 3, 25)),
    "frame-conv-no-scalars": (lambda: OnFeatures(FrameConv((0, 6), (21, 9)), K), (2, N, 3, 6)),
    "frame-conv-orthonormal": (lambda: OnFeatures(FrameConv((6, 6), (21, 9), orthonormal=True), K), (2, N, 3, 6)),
    "frame-conv-no-norm": (lambda: OnFeatures(FrameConv((0, 6), (21, 1), norm="none"), K), (2, N, 3, 6)),
    "frame-conv-k-1": (lambda: OnFeatures(FrameConv((6, 6), (21, 9)), 1), (2, N, 3, 6)),
}


class BlockMax(nn.Module):
    """A wide block and its maximum over points, with norms of either sign."""

    def __init__(self):
        super().__init__()
        self.block, self.pool = scalar.Block(6, 40), scalar.MaxPool(40)
        self.block.norm.bn.weight.data.uniform_(-1, 1)

    def forward(self, x):
        return scalar.block_pool(self.block, self.pool, x)


class MaxMean(nn.Module):
    """The pools of scalar features, one of them twice."""

    def forward(self, x):
        largest, mean, _ = scalar.Invariant(x.shape[-1])(x, pool=True)
        return largest + 2 * mean


class OnFeatures(nn.Module):
    """A hybrid layer on vectors, their squared lengths as scalars, and the first of them as points."""

    def __init__(self, layer, k=None):
        super().__init__()
        self.layer, self.k = layer, k

    def forward(self, x):
        points, features = x[..., 0], Features(x.square().sum(-2)[..., : self.layer.in_channels[0]], x)
        given = (features,) if self.k is None else (points, features, vn.knn(points, self.k)[:, :20])
        return torch.cat([y.flatten(2) for y in self.layer(*given)], dim=-1)


both_modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def run(module, x, backend):
    """Output, and the gradients of input and parameters, of a random function of it."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    with kernels.using(backend):
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
        largest, mean, frame = self.read(x, pool=True)
        return torch.cat([largest, mean, frame.flatten(1)], dim=-1)


CASES |= {
    "pooled": (Pooled, (2, N, 3, 6)),
    "pooled-project-mean": (lambda: Pooled(project_mean=True), (2, N, 3, 6)),
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
    eager = run(module, x, "eager")
    learned = [b.clone() for b in module.buffers()]
    for buffer, before in zip(module.buffers(), statistics, strict=True):
        buffer.copy_(before)
    native = run(module, x, "native")
    assert native.keys() == eager.keys()
    for part, expected in eager.items():
        assert relative_error(native[part], expected) <= 1e-11, part
    for buffer, expected in zip(module.buffers(), learned, strict=True):
        torch.testing.assert_close(buffer, expected)


@every_case
@both_modes
def test_float32_is_as_accurate_as_the_eager_backend(name, training):
    exact = run(*build(name, torch.float64, training), "eager")  # type: ignore[call-arg]
    eager = run(*build(name, torch.float32, training), "eager")  # type: ignore[call-arg]
    native = run(*build(name, torch.float32, training), "native")  # type: ignore[call-arg]
    for part, truth in exact.items():
        # Where the eager backend happens to be exact, three units of rounding are allowed.
        assert relative_error(native[part], truth) <= 4 * relative_error(eager[part], truth) + 4e-7, part


DEGENERATE = ["block", "block-shared", "block-none", "edge-conv", "edge-conv-deep", "batch-norm"]


@pytest.mark.parametrize("name", [*DEGENERATE, "scalar-block", "hybrid-block", "frame-conv"])
@pytest.mark.parametrize("cloud", ["zero", "equal", "some-zero", "tiny", "huge"])
@both_modes
def test_degenerate_clouds(name, cloud, training):
    module, x = build(name, torch.float64, training)
    x = {
        "zero": torch.zeros_like(x),
        "equal": x[:, :1].expand_as(x).clone(),
        "some-zero": x * (torch.arange(x.shape[1]) % 3 > 0).view(-1, *[1] * (x.ndim - 2)),
        "tiny": 1e-30 * x,
        "huge": 1e30 * x,
    }[cloud]
    eager, native = run(module, x, "eager"), run(module, x, "native")
    for part, expected in eager.items():
        assert native[part].isfinite().all()
        if name == "frame-conv" and cloud in ("zero", "equal", "some-zero") and part != "output":
            continue  # up to rounding, neighbors tie in the maximum or lie at the kink: it decides on the gradient
        scale = expected.abs().max().clamp_min(1e-12)
        assert ((native[part] - expected).abs().max() / scale) <= 1e-9, part


@pytest.mark.parametrize("clouds", [1, 3])
@pytest.mark.parametrize("on", ["edges", "points", "projected", "wide-projected"])
def test_the_number_of_threads_changes_no_bit(clouds, on):
    wide = on == "wide-projected"  # by another product
    on, inputs, width = ("projected", 96, 128) if wide else (on, 48, 24)
    a = torch.randn(clouds, 300, 3, inputs)
    b = torch.randn(clouds, 300, 3, 2 * width)
    graph, weight = torch.randint(300, (clouds, 300, 7)), torch.randn(inputs, 2 * width)
    norm = torch.rand(5, width)

    def everything(threads):
        torch.set_num_threads(threads)
        leaves = [t.clone().requires_grad_() for t in (a, b if on == "edges" else b[:, :1], norm, weight)]
        rows = BlockInput(*leaves[:2])
        rows = rows._replace(neighbors=graph) if on == "edges" else rows
        rows = rows._replace(weight=leaves[3]) if on == "projected" else rows
        y = norm_leaky_relu(rows, leaves[2], width, width - 3, 7 if on == "edges" else 1, 0.2, None, batch=100)
        sums = length_sums(rows, width, None)
        loss = y.square().sum() + (0 if on == "projected" else sums.square().sum())
        gradients = torch.autograd.grad(loss, leaves[: 4 if on == "projected" else 3])
        return [y, sums, project(a, weight), vn.knn(a, 9), vn.knn(a[..., :1], 9), *gradients]

    threads = torch.get_num_threads()
    try:
        with kernels.using("native"):
            for some in (2, 3, 5):
                for one, other in zip(everything(1), everything(some), strict=True):
                    assert torch.equal(one, other)
    finally:
        torch.set_num_threads(threads)


def test_the_gradient_by_finite_differences():
    module = vn.EdgeConv(2, 3, k=3, negative_slope=0.3).double().train()
    graph = vn.knn(torch.randn(1, 6, 3), 3)
    from vector_neurons.nn._factored import EdgeInput

    with kernels.using("native"):
        block = module.blocks[0]
        assert torch.autograd.gradcheck(
            lambda x: block(EdgeInput(x, graph), mean_pool=True),
            torch.randn(1, 6, 3, 2, dtype=torch.float64, requires_grad=True),
        )


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 0.0])
def test_lengths_that_hardly_differ_have_a_variance(spread):
    """It is the difference of two sums, of which float32 would leave nothing, or less."""
    x = 3 * torch.randn(1, 1, 3, 12) + spread * torch.randn(2, 200, 3, 12)
    blocks = [vn.Block(12, 8) for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    exact = run(blocks[0].double(), x.double(), "eager")
    eager, native = run(blocks[0].float(), x, "eager"), run(blocks[1], x, "native")
    assert blocks[1].norm.bn.running_var.min() >= 0
    if spread:
        for part in ("output", "input"):
            assert relative_error(native[part], exact[part]) <= 4 * relative_error(eager[part], exact[part]) + 1e-6


def test_a_cloud_far_from_the_origin():
    x = torch.randn(2, 200, 3, 1) + 1000 * torch.randn(3, 1)
    assert all(value.isfinite().all() for value in run(vn.Block(1, 8), x, "native").values())


@pytest.mark.parametrize("name", ["block", "block-many-in", "edge-conv", "invariant", "invariant-many-in", "pooled"])
@both_modes
def test_an_input_without_gradient(name, training):
    module, x = build(name, torch.float64, training)
    gradients = []
    for backend in ("eager", "native"):
        module.zero_grad()
        with kernels.using(backend):
            module(x).square().sum().backward()
        gradients.append([p.grad for p in module.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_parameters_without_gradient():
    module, x = build("block-many-in", torch.float64, True)
    module.linear.requires_grad_(False), module.direction.requires_grad_(False)
    eager, native = run(module, x, "eager"), run(module, x, "native")
    assert native.keys() == eager.keys()
    for part, expected in eager.items():
        assert relative_error(native[part], expected) <= 1e-11, part


def test_directions_too_short_beside_others_are_bounded_alike():
    module, x = build("block", torch.float64, True)
    module.direction.weight.data[0] *= 5e-4
    eager, native = run(module, x, "eager"), run(module, x, "native")
    for part, expected in eager.items():
        assert relative_error(native[part], expected) <= 1e-11, part


@pytest.mark.parametrize("name", ["block", "block-shared", "block-none", "block-of-edges", "block-many-rows"])
@both_modes
def test_small_maps_without_a_gradient_round_once(name, training):
    exact, _ = build(name, torch.float64, training)
    module, x = build(name, torch.float32, training)
    exact.load_state_dict(module.state_dict())  # the same rounded weights
    with kernels.using("native"), torch.no_grad():
        found, expected = module(x), exact(x.double())
    assert found.dtype == torch.float32
    assert ((found - expected).abs() <= 6e-8 * expected.abs()).float().mean() > 0.99
    with kernels.using("eager"), torch.no_grad():  # which rounds more often
        assert ((module(x) - expected).abs() <= 6e-8 * expected.abs()).float().mean() < 0.9


def test_a_mean_of_points_is_worked_on_in_float64_too():
    exact = vn.Invariant(24).double().eval()
    module = vn.Invariant(24).eval()
    module.load_state_dict(exact.state_dict())
    exact.load_state_dict(module.state_dict())
    x = torch.randn(2, 300, 3, 24)
    with torch.no_grad(), kernels.using("native"):
        native = relative_error(module(x), exact(x.double()))
    with torch.no_grad(), kernels.using("eager"):
        assert native < relative_error(module(x), exact(x.double())) / 1.5


def test_rows_mapped_by_a_weight_of_another_type():
    x, weight = torch.randn(1, 9, 3, 4), torch.randn(4, 16, dtype=torch.float64)
    norm = torch.cat([torch.ones(1, 8), torch.zeros(4, 8)]).double()
    gradients = []
    with kernels.using("native"):
        for dtype in (torch.float32, torch.float64):
            w = weight.to(dtype).requires_grad_()
            norm_leaky_relu(BlockInput(x, weight=w), norm.to(dtype), 8, 8, 1, 0.2, None).square().sum().backward()
            gradients.append(w.grad)
        assert gradients[1].dtype == torch.float64
        assert relative_error(*gradients) <= 1e-6
        with pytest.raises(RuntimeError, match="cannot map"):
            norm_leaky_relu(BlockInput(x.double(), weight=weight.float()), norm, 8, 8, 1, 0.2, None)


@both_modes
def test_a_norm_trains_behind_frozen_maps(training):
    block, x = vn.Block(4, 8).train(training), torch.randn(2, 9, 3, 4)
    block.linear.requires_grad_(False), block.direction.requires_grad_(False)
    native, eager = (run_frozen(block, x, backend) for backend in ("native", "eager"))
    for found, expected in zip(native, eager, strict=True):
        assert relative_error(found, expected) <= 1e-5


def run_frozen(block, x, backend):
    block.zero_grad()
    with kernels.using(backend):
        block(x).square().sum().backward()
    return [block.norm.bn.weight.grad.clone(), block.norm.bn.bias.grad.clone()]


@pytest.mark.parametrize(("of_block", "of_x"), [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_block_and_features_of_two_types_are_refused(of_block, of_x):
    block, x = vn.Block(4, 8).to(of_block).eval(), torch.randn(2, 5, 3, 4, dtype=of_x)
    with kernels.using("native"), torch.no_grad(), pytest.raises(RuntimeError, match="convert one of them"):
        block(x)
