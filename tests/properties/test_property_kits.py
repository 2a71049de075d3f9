"""One network, three kits: vector, scalar and hybrid neurons have the same names and the same constructors."""

import inspect
from typing import get_args

import pytest
import torch
from torch import nn

import vector_neurons as vn

vector, scalar, hybrid = vn.KITS["vector"], vn.KITS["scalar"], vn.KITS["hybrid"]
FREE = ("bias", "scalars")  # what vectors cannot have
MODULES = [name for name in vector.__all__ if inspect.isclass(getattr(vector, name))]
FUNCTIONS = [name for name in vector.__all__ if inspect.isfunction(getattr(vector, name))]


def parameters(thing: object) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(thing).parameters.values()]


def test_same_names():
    assert vector.__all__ == scalar.__all__
    assert {*MODULES, *FUNCTIONS, "NORMS", "POOLS"} == set(vector.__all__)
    assert set(vector.__all__) <= set(hybrid.__all__)
    assert vn.KITS.keys() == set(get_args(vn.typing.Neurons))
    assert all(hasattr(kit, "block_pool") for kit in vn.KITS.values())


@pytest.mark.parametrize("kit", [scalar, hybrid], ids=["scalar", "hybrid"])
@pytest.mark.parametrize("name", [*MODULES, *FUNCTIONS])
def test_same_parameters(name, kit):
    """But for the bias and the scalars, which vectors cannot have."""
    theirs = [p for p in parameters(getattr(kit, name)) if p[0] not in FREE]
    assert parameters(getattr(vector, name)) == theirs


@pytest.mark.parametrize("kit", [scalar, hybrid], ids=["scalar", "hybrid"])
@pytest.mark.parametrize("name", ["NORMS", "POOLS"])
def test_same_choices(name, kit):
    assert list(getattr(vector, name)) == list(getattr(kit, name))


def test_every_layer_of_the_kit_is_in_the_package():
    assert {name for name in vector.__all__ if name not in ("NORMS", "POOLS")} <= set(vn.__all__)


@pytest.mark.parametrize("neurons", list(vn.KITS))
@pytest.mark.parametrize("norm", list(vector.NORMS))
def test_a_network_written_once_runs_in_all(neurons, norm):
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
