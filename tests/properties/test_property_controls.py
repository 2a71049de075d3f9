"""Negative controls: what is not equivariant is found out. And the tools that find it, tested themselves."""

from functools import partial

import pytest
import torch
from layers import LAYERS
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons import testing
from vector_neurons.testing import assert_equivariant, assert_invariant, equivariance_error, relative_error, report

RANDOM = torch.Generator().manual_seed(0)
POINTS = torch.randn(2, 24, 3, generator=RANDOM)
VECTORS = torch.randn(2, 24, 3, 4, generator=RANDOM)
AXIS = torch.arange(4.0)
GRID = torch.cartesian_prod(AXIS, AXIS, AXIS)[None] + 0.5


class Network(nn.Module):
    """A classifier of points in either kit."""

    def __init__(self, kit) -> None:
        super().__init__()
        self.lift = kit.lift
        self.edge = kit.EdgeConv(kit.width(3), kit.width(24), k=5)
        self.body = kit.Block(kit.width(24), kit.width(48))
        self.read = kit.Invariant(kit.width(48))
        self.head = nn.Linear(self.read.out_channels, 4)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.read(self.body(self.edge(self.lift(points)))).amax(dim=1))


class Biased(nn.Module):
    """A linear layer plus a vector that stays where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bias = vn.Linear(4, 4), nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.bias


class Naive(nn.Module):
    """Mean over neighbors found the usual way, which lets rounding decide among equals."""

    def forward(self, points: Tensor) -> Tensor:
        index = torch.cdist(points, points).topk(5, largest=False).indices
        return vn.lift(vn.geometry.neighbors.gather(points, index).mean(dim=2))


def broken(name: str) -> nn.Module:
    torch.manual_seed(0)
    return {"relu": nn.ReLU, "bias": Biased, "coordinates": lambda: nn.Sequential(vn.Linear(4, 4), nn.Tanh())}[name]()


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("neurons", list(vn.KITS))
def test_the_scalar_twin_depends_on_the_pose(neurons, training):
    network = Network(vn.KITS[neurons]).train(training)
    error = equivariance_error(network, POINTS, "points", "scalars")
    if neurons != "scalar":
        assert error <= 1e-5
        assert_invariant(network, POINTS)
    else:
        assert error > 1e-2
        with pytest.raises(AssertionError, match="Network is not SO3-equivariant"):
            assert_invariant(network, POINTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["relu", "bias", "coordinates"])
def test_broken_modules_are_found(name, dtype):
    module, x = broken(name).to(dtype), VECTORS.to(dtype)
    assert equivariance_error(module, x) > 1e-2
    with pytest.raises(AssertionError, match="relative error"):
        assert_equivariant(module, x)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_outputs_that_are_not_numbers_fail(value):
    def once(x: Tensor) -> Tensor:
        return x.index_fill(1, torch.tensor([3]), value)

    def always(x: Tensor) -> Tensor:
        return torch.full_like(x, value)

    def turned(x: Tensor) -> Tensor:
        return x if torch.equal(x, VECTORS) else always(x)

    def straight(x: Tensor) -> Tensor:
        return always(x) if torch.equal(x, VECTORS) else x

    for function in (once, always, turned, straight):
        assert equivariance_error(function, VECTORS) == torch.inf
        with pytest.raises(AssertionError, match=f"{function.__name__} is not"):
            assert_equivariant(function, VECTORS)
    # Not even a generous tolerance lets it pass.
    with pytest.raises(AssertionError):
        assert_equivariant(always, VECTORS, tolerance=1e30)


@pytest.mark.parametrize("group", ["SO3", "O3", "SE3", "scale", "permutation"])
def test_each_group_finds_its_own_fault(group):
    weights = torch.linspace(0, 1, 24)[:, None]
    faults = {
        "SO3": lambda p: p.relu(),
        "O3": lambda p: torch.linalg.cross(p, p.roll(1, 1)),
        "SE3": lambda p: p.norm(dim=-1, keepdim=True) * p,
        "scale": lambda p: p * p.norm(dim=-1, keepdim=True),
        "permutation": lambda p: p * weights,
    }
    assert equivariance_error(lambda p: vn.lift(vn.center(p)), POINTS, "points", "vectors", group) <= 1e-5
    assert equivariance_error(faults[group], POINTS, "points", "points", group) > 1e-2


def test_groups_are_named_in_any_case():
    with pytest.raises(AssertionError, match="ReLU is not SO3-equivariant"):
        assert_equivariant(nn.ReLU(), VECTORS, group="so3")
    assert report(nn.ReLU(), VECTORS, "vectors", group="so3").group == "SO3"
    with pytest.raises(ValueError, match="unknown group 'so4'"):
        equivariance_error(nn.ReLU(), VECTORS, group="so4")


def test_relative_error():
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0
    assert relative_error(torch.ones(3), torch.zeros(3)) == torch.inf
    assert relative_error(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])) == pytest.approx(1.25)
    with pytest.raises(ValueError, match=r"\(3,\) → \(2,\)"):
        relative_error(torch.ones(2), torch.ones(3))


def test_the_module_is_left_as_it_was():
    module = vn.Block(4, 6).train()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    numbers = torch.get_rng_state()
    equivariance_error(module, VECTORS)
    report(module, VECTORS, "vectors")
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert module.training


@pytest.mark.parametrize("wrong", [{"gives": ("vectors", "vectors")}, {"takes": "scalars"}], ids=str)
def test_wrong_kinds_are_refused(wrong):
    with pytest.raises(ValueError, match=r"2 kinds for 1 tensors|declared as scalars"):
        equivariance_error(vn.Linear(4, 4), VECTORS, **wrong)


def test_several_inputs_and_outputs():
    module = vn.Invariant(4, frame="linear")
    kinds = ("scalars", "frames")
    assert equivariance_error(partial(module, return_frame=True), VECTORS, gives=kinds) <= 2e-6
    assert equivariance_error(partial(module, return_frame=True), VECTORS, gives=("scalars", "scalars")) > 1e-2
    assert (
        equivariance_error(lambda x, p: x * p.norm(dim=-1)[..., None, None], (VECTORS, POINTS), ("vectors", "points"))
        <= 1e-6
    )


def test_report_names_the_first_layer_that_breaks():
    network = nn.Sequential(vn.Block(4, 6), vn.Linear(6, 6), nn.ReLU(), vn.Linear(6, 6), nn.Tanh())
    found = report(network, VECTORS, "vectors", "vectors")
    assert (found.culprit.layer, found.culprit.type, found.cause) == ("2", "ReLU", "architecture")
    assert [row.layer for row in found.rows if row.error <= found.tolerance][-1] == "1"
    assert found.rows[-1].layer == "(output)"
    assert "2 (ReLU)" in found.verdict
    assert sum("<-- breaks" in line for line in str(found).splitlines()) == 1


def test_report_of_a_sound_network():
    found = report(Network(vn.KITS["vector"]), POINTS, "points", "scalars")
    assert found.culprit is None
    assert found.cause == "none"
    assert found.verdict.startswith("SO3-equivariant")
    behavior = {row.layer: row.behavior for row in found.rows}
    assert (behavior["edge"], behavior["body"], behavior["read"]) == ("vectors", "vectors", "scalars")


MODELS = {
    "DGCNN": lambda: vn.models.DGCNN(5, k=6, widths=(12, 12), embedding=24, hidden=(8,)),
    "DGCNN, one graph": lambda: vn.models.DGCNN(5, k=6, widths=(12,), embedding=24, hidden=(8,), graph="coordinates"),
    "DGCNNSegmenter": lambda: vn.models.DGCNNSegmenter(5, 3, k=6, embedding=24),
    "PointNet": lambda: vn.models.PointNet(5, k=6, embedding=24, hidden=(8,)),
    "PointNetSegmenter": lambda: vn.models.PointNetSegmenter(
        5, 3, k=6, widths=((24,), (24,)), embedding=24, hidden=(8,)
    ),
    "VNTransformer": lambda: vn.models.VNTransformer(5, k=6, width=24, heads=2, depth=1, hidden=8),
    "OccupancyNetwork": lambda: vn.models.OccupancyNetwork(k=6, code=24, hidden=24, decoder_hidden=8),
    "OccupancyNetwork, local": lambda: vn.models.OccupancyNetwork(
        encoder="dgcnn", k=6, code=24, hidden=24, decoder_hidden=8, local=4, conditional=True
    ),
    "FrameNetOccupancy": lambda: vn.models.FrameNetOccupancy(
        k=6, centers=(12, 6), width=8, decoder_hidden=8, near=(4, 3, 3), vectors=4
    ),
}


@pytest.mark.parametrize("group", ["SO3", "permutation"])
@pytest.mark.parametrize("name", MODELS)
def test_report_of_models(name, group):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    found = report(model, *model.example(POINTS), None, group)
    assert found.culprit is None, str(found)
    # Nor would anything in them be blamed if they were part of a network that breaks.
    worst = max((*found.rows, *found.inputs), key=lambda row: row.error)
    assert worst.error <= found.tolerance, f"{worst.layer}: {worst}"


@pytest.mark.parametrize("group", ["O3", "permutation"])
def test_report_in_other_groups(group):
    network = nn.Sequential(vn.EdgeConv(4, 6, k=4, cross=group == "O3"), vn.Linear(6, 6, num_elements=24))
    found = report(network, VECTORS, "vectors", "vectors", group)
    # The cross products are in the code of the edge convolution, before its first block.
    expected = {"O3": ("0.blocks.0", True), "permutation": ("1", False)}[group]
    assert (found.culprit.layer, found.culprit.is_input) == expected
    assert found.cause == "architecture"


def test_naive_neighbors_on_a_grid_are_called_ties():
    network = nn.Sequential(Naive(), vn.Block(1, 4))
    assert report(network, POINTS, "points", "vectors").culprit is None
    found = report(network, GRID, "points", "vectors")
    assert (found.culprit.layer, found.cause) == ("0", "ties")
    assert "ties" in found.verdict
    sound = nn.Sequential(vn.EdgeConv(1, 4, k=5), vn.Block(4, 4))
    assert report(sound, vn.lift(GRID), "vectors", "vectors").cause == "none"


@pytest.mark.parametrize("x", [POINTS, GRID], ids=["generic", "grid"])
def test_a_mistake_in_the_architecture_is_called_one(x):
    found = report(nn.Sequential(Naive(), vn.Linear(1, 4), nn.ReLU()), x, "points", "vectors")
    assert (found.culprit.layer, found.cause) == ("2", "architecture")


class TestBlock(testing.EquivarianceTests):
    """The battery passes for a block, with all groups it claims."""

    groups = ("SO3", "O3", "permutation")

    def module(self) -> nn.Module:
        return vn.Block(4, 6)

    def example(self) -> Tensor:
        return VECTORS


class Battery(testing.EquivarianceTests):
    """A battery not collected by pytest, for a module given by hand."""

    def __init__(self, module: nn.Module, gives: testing.Kind = "vectors") -> None:
        self.given, self.gives = module, gives

    def module(self) -> nn.Module:
        return self.given

    def example(self) -> Tensor:
        return VECTORS


class OverBatch(nn.Module):
    """Equivariant, if all samples turn together, but lets them see each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Unstable(nn.Module):
    """Equivariant, with an infinite derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + self.weight.sqrt())


@pytest.mark.parametrize(
    ("test", "module", "message"),
    [
        ("test_groups", nn.ReLU(), "ReLU is not SO3-equivariant"),
        ("test_float64", Biased(), "Biased is not SO3-equivariant"),
        ("test_samples_are_independent", OverBatch(), "depends on the others"),
        ("test_gradients_are_finite", Unstable(), "not finite"),
    ],
)
def test_the_battery_fails_for_a_broken_module(test, module, message):
    with pytest.raises(AssertionError, match=message):
        getattr(Battery(module), test)()


@pytest.mark.parametrize("name", ["mean-pool", "invariant-gram", "max-pool", "edge-conv-max"])
@pytest.mark.parametrize("test", [name for name in dir(Battery) if name.startswith("test_")])
def test_the_battery_passes_for_layers_without_trained_parameters(test, name):
    layer = next(layer for layer in LAYERS if layer.name == name)
    getattr(Battery(layer.module(), layer.gives), test)()


def test_the_battery_asks_for_what_it_needs():
    with pytest.raises(TypeError, match=r"must define module\(\)"):
        testing.EquivarianceTests().test_groups()
