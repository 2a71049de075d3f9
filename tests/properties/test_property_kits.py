"""One network, two kits: vector and scalar neurons have the same names and the same constructors."""

import inspect

import pytest
import torch
from torch import nn

import vector_neurons as vn

vector, scalar = vn.KITS["vector"], vn.KITS["scalar"]
MODULES = [name for name in vector.__all__ if inspect.isclass(getattr(vector, name))]
FUNCTIONS = [name for name in vector.__all__ if inspect.isfunction(getattr(vector, name))]


def parameters(thing: object) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(thing).parameters.values()]


def test_same_names():
    assert vector.__all__ == scalar.__all__
    assert {*MODULES, *FUNCTIONS, "NORMS", "POOLS"} == set(vector.__all__)


@pytest.mark.parametrize("name", [*MODULES, *FUNCTIONS])
def test_same_parameters(name):
    """But for the bias, which vectors cannot have."""
    theirs = [p for p in parameters(getattr(scalar, name)) if p[0] != "bias"]
    assert parameters(getattr(vector, name)) == theirs


@pytest.mark.parametrize("name", ["NORMS", "POOLS"])
def test_same_choices(name):
    assert list(getattr(vector, name)) == list(getattr(scalar, name))


def test_every_layer_of_the_kit_is_in_the_package():
    assert {name for name in vector.__all__ if name not in ("NORMS", "POOLS")} <= set(vn.__all__)


@pytest.mark.parametrize("neurons", ["vector", "scalar"])
@pytest.mark.parametrize("norm", list(vector.NORMS))
def test_a_network_written_once_runs_in_both(neurons, norm):
    kit = vn.KITS[neurons]

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b = kit.width(24), kit.width(48)
            self.edge = kit.EdgeConv(kit.width(3), a, 4, cross=True, pool="max", include_self=False, norm=norm)
            self.body = kit.MLP([a, b, a], norm=norm, direction="output", negative_slope=0.1, shared_direction=True)
            self.bend = nn.Sequential(kit.Activation(a, torch.tanh), kit.LeakyReLU(a), kit.Dropout(0.3))
            self.read = kit.Invariant(a, frame="linear", mean=True, norm=norm)
            self.pool = kit.MeanPool()
            self.head = nn.Linear(self.read.out_channels + kit.Invariant(a, kind="norm").out_channels, 5)
            self.norm = kit.Invariant(a, kind="norm")

        def forward(self, points: torch.Tensor) -> torch.Tensor:
            x = self.bend(self.body(self.edge(kit.lift(kit.center(points)))))
            return self.head(torch.cat([self.read(x).amax(1), self.norm(self.pool(x))], dim=-1))

    assert Network()(torch.randn(2, 12, 3)).shape == (2, 5)
