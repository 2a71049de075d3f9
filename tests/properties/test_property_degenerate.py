"""Inputs without a general position: equal, collinear, zero, on a grid, duplicated, alone."""

import itertools

import pytest
import torch
from layers import LAYERS
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.testing import assert_equivariant, equivariance_error

# Ties and duplicates must not cost more than a digit over generic inputs.
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=["float32", "float64"])
every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)
EDGES = [{}, {"cross": True}, {"include_self": False}, {"pool": "max"}]


def generic(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def grid_points(side: int, *, centered: bool) -> Tensor:
    """Points `(2, side³, 3)` of a cubic grid, about the origin or beside it, and the same in another order."""
    axis = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    points = torch.cartesian_prod(axis, axis, axis) + (0 if centered else torch.tensor([0.5, 1.0, 1.5]))
    return torch.stack([points, points[torch.randperm(len(points), generator=torch.Generator().manual_seed(1))]])


def grid() -> Tensor:
    """Points of a grid, and three more whole-numbered vectors at each: distances and lengths tie."""
    points = vn.lift(grid_points(3, centered=True))
    more = torch.randint(-1, 2, (2, 27, 3, 3), generator=torch.Generator().manual_seed(2))
    return torch.cat([points, more.double()], dim=-1)


def duplicated() -> Tensor:
    """Forty per cent of the points stand where others do."""
    x = generic(2, 20, 3, 4)
    x[:, 12:] = x[:, :8]
    return x


def some_zero() -> Tensor:
    """A few points without any vector, and a channel without any."""
    x = generic(2, 16, 3, 4)
    x[:, :5] = 0
    x[..., 1] = 0
    return x


DEGENERATE = {
    "equal": lambda: generic(1, 1, 3, 4).expand(2, 16, 3, 4),
    "collinear": lambda: generic(2, 16, 1, 4) * generic(3, 1),
    "grid": grid,
    "duplicated": duplicated,
    "zero": lambda: torch.zeros(2, 16, 3, 4, dtype=torch.float64),
    "some-zero": some_zero,
    "one-point": lambda: generic(2, 1, 3, 4),
}


@pytest.mark.parametrize("name", DEGENERATE)
@every_layer
def test_outputs_and_gradients_are_finite(layer, name):
    for dtype, training in itertools.product(BOUNDS, (False, True)):
        x = DEGENERATE[name]().to(dtype)
        if x.shape[1] < layer.least:
            x = x.expand(-1, layer.least, -1, -1)
        module = layer.module_for(x, training=training)
        x = x.clone().requires_grad_()
        y = module(x)
        y.backward(generic(*y.shape).to(dtype))  # not y itself, which is zero where things go wrong
        assert y.isfinite().all()
        assert x.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


@pytest.mark.parametrize("point", [0, 7])
@every_layer
def test_a_vector_that_is_not_a_number_is_not_hidden(layer, point):
    x = layer.example()
    x[0, point, 1, 2] = torch.nan
    y = layer.module_for(x)(x)
    assert y[0].isnan().any()
    assert not y[1].isnan().any()


@every_dtype
@pytest.mark.parametrize("name", ["grid", "duplicated"])
@every_layer
def test_rotation_with_ties(layer, name, dtype):
    x = DEGENERATE[name]().to(dtype)
    for training in (False, True):
        assert equivariance_error(layer.module_for(x, training=training), x, gives=layer.gives) <= BOUNDS[dtype]


@every_dtype
@pytest.mark.parametrize("centered", [True, False], ids=["centered", "aside"])
@pytest.mark.parametrize("options", EDGES, ids=str)
def test_edge_convolution_of_a_grid(options, centered, dtype):
    x = vn.lift(grid_points(4, centered=centered)).to(dtype)
    for k, training in itertools.product((4, 7, 12), (False, True)):
        torch.manual_seed(0)
        module = vn.EdgeConv(1, 8, k=k, **options).to(dtype).train(training)
        assert equivariance_error(module, x) <= BOUNDS[dtype]


@every_dtype
@pytest.mark.parametrize(
    "x", [duplicated()[..., :1], vn.lift(grid_points(3, centered=True)), grid()], ids=["duplicated", "lifted", "grid"]
)
def test_maxima_with_ties(x, dtype):
    for seed in range(8):
        torch.manual_seed(seed)
        assert equivariance_error(vn.MaxPool(x.shape[-1]).to(dtype), x.to(dtype)) <= BOUNDS[dtype]


@every_dtype
@pytest.mark.parametrize("options", EDGES, ids=str)
def test_edge_convolution_of_a_cloud_with_duplicated_points(options, dtype):
    x = duplicated()[..., :1].to(dtype)
    module = vn.EdgeConv(1, 8, k=6, **options).to(dtype).train()
    assert equivariance_error(module, x) <= BOUNDS[dtype]


@pytest.mark.parametrize("name", ["equal", "zero"])
def test_norms_give_zero_where_there_is_nothing_to_normalize(name):
    x = DEGENERATE[name]()
    assert vn.InstanceNorm(4).double()(x).abs().max() < 1e-12
    assert not vn.LayerNorm(4).double()(torch.zeros_like(x)).any()
    assert not vn.BatchNorm(4).double().train()(torch.zeros_like(x)).any()


def network(norm: str) -> nn.Module:
    """The README's network in small: points to logits."""
    torch.manual_seed(0)

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edge = vn.EdgeConv(1, 8, k=7, norm=norm)
            self.body = nn.Sequential(vn.Block(8, 16, norm=norm), vn.Block(16, 16, norm=norm))
            self.read = vn.Invariant(16, norm=norm)
            self.head = nn.Linear(self.read.out_channels, 5)

        def forward(self, points: Tensor) -> Tensor:
            return self.head(self.read(self.body(self.edge(vn.lift(points)))).amax(dim=1))

    return Tiny().double().train()


# With k = 7 the neighbors of the point in the middle cancel: what is left of its features is rounding.
every_norm = pytest.mark.parametrize("norm", ["batch", "log-batch", "layer", "instance", "none"])


@every_norm
@pytest.mark.parametrize("centered", [True, False], ids=["centered", "aside"])
def test_rotation_of_a_network_on_a_grid(norm, centered):
    assert_equivariant(network(norm), grid_points(5, centered=centered), "points", "scalars", tolerance=1e-10)


@every_norm
@pytest.mark.parametrize("centered", [True, False], ids=["centered", "aside"])
def test_gradients_of_a_network_on_a_grid_are_of_ordinary_size(norm, centered):
    module = network(norm)
    module(grid_points(5, centered=centered)).square().sum().backward()
    assert max(float(p.grad.abs().max()) for p in module.parameters()) < 1e4
