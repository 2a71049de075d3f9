"""Every layer compiles without a break and exports with free sizes; values and gradients stay those of eager mode."""

import pytest
import torch
from layers import LAYERS
from torch import nn

import vector_neurons as vn
from vector_neurons.models import (
    DGCNN,
    Canonicalize,
    DGCNNSegmenter,
    FrameNet,
    FrameNetSegmenter,
    LayerOptions,
    PointNet,
    PointNetSegmenter,
    PoseEncoder,
    VNTransformer,
)


class Tiny(nn.Module):
    """The README's network (`tests/docs` runs the README itself)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.edge = vn.EdgeConv(1, 32, k=16)
        self.body = nn.Sequential(vn.Block(32, 64), vn.Block(64, 64))
        self.read = vn.Invariant(64, frame="linear")
        self.head = nn.Linear(self.read.out_channels, classes)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.head(self.read(self.body(self.edge(vn.lift(points)))).amax(dim=1))


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


def value_and_gradients(function, module, x):
    x = x.clone().requires_grad_()
    module.zero_grad()
    torch.manual_seed(1)
    y = function(x)
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)
    (y * weights).sum().backward()
    # A bias or direction that cannot matter for this input has no gradient in one mode and zeros in the other.
    gradients = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in module.named_parameters()}
    return {"output": y.detach(), "input": x.grad, **{name: g.clone() for name, g in gradients.items()}}


def assert_same(module, x, backend, **tolerance):
    expected = value_and_gradients(module, module, x)
    found = value_and_gradients(torch.compile(module, fullgraph=True, backend=backend), module, x)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], msg=lambda m, name=name: f"{name}: {m}", **tolerance)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_layer_compiles_in_one_graph(layer):
    x = layer.example(dtype=torch.float64)
    module = layer.module_for(x, training=True)
    assert_same(module, x, "aot_eager")
    if any(isinstance(part, nn.BatchNorm1d | vn.Dropout) for part in module.modules()):  # which care for the mode
        torch.compiler.reset()
        assert_same(module.eval(), x, "aot_eager")


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_layer_exports_with_free_sizes(layer):
    x = layer.example(dtype=torch.float64)
    module = layer.module_for(x)
    batch, points = torch.export.Dim("batch", min=1), torch.export.Dim("points", min=4)
    free = {0: batch} if layer.name == "linear-elements" else {0: batch, 1: points}
    exported = torch.export.export(module, (x,), dynamic_shapes=(free,)).module()
    sizes = (3, 16) if layer.name == "linear-elements" else (3, 11)
    other = layer.example(sizes=sizes, dtype=torch.float64, seed=1)
    for y in (x, other):
        torch.testing.assert_close(exported(y), module(y))


@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.slow), True], ids=["eval", "train"])
def test_a_network_compiles_to_machine_code(training):
    assert_same(Tiny(5).double().train(training), torch.randn(2, 64, 3, dtype=torch.float64), "inductor")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["block-batch", "block-log-batch", "max-pool", "edge-conv-cross", "invariant-orthonormal"]
)
def test_layers_compile_to_machine_code(name):
    layer = next(layer for layer in LAYERS if layer.name == name)
    x = layer.example(dtype=torch.float64)
    assert_same(layer.module_for(x, training=True), x, "inductor")


def test_one_graph_serves_every_size():
    network = Tiny(5).double().eval()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager", dynamic=True)
    torch._dynamo.utils.counters.clear()
    for batch, points in ((2, 20), (3, 50), (4, 33)):
        x = torch.randn(batch, points, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), network(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


class Pooled(nn.Module):
    """A block, and the mean over points, of which the kernels make groups."""

    def __init__(self):
        super().__init__()
        self.block, self.pool = vn.Block(4, 8), vn.MeanPool()

    def forward(self, x):
        return vn.KITS["vector"].block_pool(self.block, self.pool, x)


@pytest.mark.parametrize("strict", [True, False])
def test_a_mean_over_points_exports_with_a_free_number_of_them(strict):
    network, points = Pooled().eval(), torch.export.Dim("points", min=2)
    with torch.no_grad():
        x = torch.randn(2, 300, 3, 4)
        exported = torch.export.export(network, (x,), dynamic_shapes=({1: points},), strict=strict).module()
        for number in (300, 77, 512):
            x = torch.randn(2, number, 3, 4)
            torch.testing.assert_close(exported(x), network(x))


def test_autocast_compiles():
    network, x = Tiny(5).eval(), torch.randn(2, 64, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = network(x)
        found = torch.compile(network, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, expected)


NETWORKS = {
    "dgcnn": lambda: DGCNN(5, k=8, widths=(12, 24), embedding=48, hidden=(16,), dropout=0.0),
    "dgcnn-max-detached": lambda: DGCNN(
        5,
        k=8,
        widths=(12, 24),
        embedding=48,
        hidden=(16,),
        dropout=0.0,
        layers=LayerOptions(pool="max", direction="output"),
    ),
    "dgcnn-scalar": lambda: DGCNN(5, neurons="scalar", k=8, widths=(12, 24), embedding=48, hidden=(16,), dropout=0.0),
    "pointnet": lambda: PointNet(5, k=8, widths=((12,), (24,)), embedding=48, hidden=(16,), dropout=0.0),
    "pointnet-scalar": lambda: PointNet(
        5, neurons="scalar", widths=((12,), (24,)), embedding=48, hidden=(16,), dropout=0
    ),
    "transformer": lambda: VNTransformer(5, k=8, width=48, depth=1, hidden=16, dropout=0.0),
    "dgcnn-segmenter": lambda: DGCNNSegmenter(7, 3, k=8, widths=((12, 12), (12,)), embedding=48, dropout=0.0),
    "pointnet-segmenter": lambda: PointNetSegmenter(7, 3, k=8, widths=((12,), (24,)), embedding=48),
    "dgcnn-hybrid": lambda: DGCNN(5, neurons="hybrid", k=8, widths=(12, 24), embedding=48, hidden=(16,), dropout=0.0),
    "pointnet-hybrid-segmenter": lambda: PointNetSegmenter(
        7, 3, neurons="hybrid", k=8, widths=((12,), (24,)), embedding=48
    ),
    "transformer-hybrid": lambda: VNTransformer(5, neurons="hybrid", k=8, width=48, depth=1, hidden=16, dropout=0.0),
    "framenet": lambda: FrameNet(5, k=8, k_last=3, width=16, hidden=16, dropout=0.0),
    "framenet-segmenter": lambda: FrameNetSegmenter(7, 3, k=8, k_last=3, width=16, hidden=(16, 16), dropout=0.0),
}


def network_and_more(name):
    return NETWORKS[name]().double(), (torch.tensor([0, 2]),) if "segmenter" in name else ()


# Every network in either mode, and with either kind of clouds; in all pairs of these it takes minutes.
@pytest.mark.parametrize(
    ("clouds", "mode"),
    [
        ("full", "train"),
        ("padded", "eval"),
        pytest.param("full", "eval", marks=pytest.mark.slow),
        pytest.param("padded", "train", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_compiles_in_one_graph(name, clouds, mode):
    network, more = network_and_more(name)
    lengths, training = torch.tensor([40, 23]) if clouds == "padded" else None, mode == "train"
    network.train(training)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    expected = value_and_gradients(lambda x: network(x, *more, lengths=lengths), network, x)
    found = value_and_gradients(lambda x: compiled(x, *more, lengths=lengths), network, x)
    for part in expected:
        # Two orders of summation, each amplified by the depth of the network.
        scale = expected[part].abs().max().clamp_min(1e-9)
        assert (found[part] - expected[part]).abs().max() <= 1e-8 * scale, part


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_exports_with_free_sizes(name):
    network, more = network_and_more(name)
    network.eval()
    batch, points = torch.export.Dim("batch", min=1), torch.export.Dim("points", min=17)  # an eighth is three
    free = ({0: batch, 1: points}, *({0: batch} for _ in more))
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    exported = torch.export.export(network, (x, *more), dynamic_shapes=free).module()
    other = torch.randn(3, 29, 3, dtype=torch.float64)
    for y, kinds in ((x, more), (other, tuple(torch.tensor([1, 0, 2]) for _ in more))):
        torch.testing.assert_close(exported(y, *kinds), network(y, *kinds))


def test_a_canonical_pose_compiles_in_one_graph():
    network = Canonicalize(nn.Sequential(nn.Flatten(), nn.Linear(60, 5)), PoseEncoder(8, k=4)).double()
    x = torch.randn(3, 20, 3, dtype=torch.float64)
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), network(x))
