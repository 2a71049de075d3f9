"""`help(x)` must be enough to use x: what every public layer, network and function says of itself."""

import inspect
from importlib import import_module

import pytest
from torch import nn

MODULES = [
    "vector_neurons",
    "vector_neurons.compat.vnn",
    "vector_neurons.geometry.inside",
    "vector_neurons.geometry.neighbors",
    "vector_neurons.geometry.query",
    "vector_neurons.geometry.rotations",
    "vector_neurons.geometry.sampling",
    "vector_neurons.geometry.scale",
    "vector_neurons.geometry.segments",
    "vector_neurons.models",
    "vector_neurons.nn",
    "vector_neurons.nn.functional",
    "vector_neurons.nn.hybrid",
    "vector_neurons.nn.scalar",
    "vector_neurons.testing",
]
PUBLIC = {
    f"{module}.{name}".removeprefix("vector_neurons."): getattr(import_module(module), name)
    for module in MODULES
    for name in import_module(module).__all__
}
DOCUMENTED = {
    name: thing
    for name, thing in PUBLIC.items()
    if inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, nn.Module))
}
TENSORS = {
    name: thing
    for name, thing in DOCUMENTED.items()
    if not name.startswith("compat") and name != "models.Model"
    and (inspect.isclass(thing) or name.startswith("nn.functional"))
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_there_is_an_example(name):
    assert ">>> " in inspect.getdoc(DOCUMENTED[name])


@pytest.mark.parametrize("name", TENSORS)
def test_layers_and_networks_state_shapes_and_symmetry(name):
    text = inspect.getdoc(TENSORS[name])
    assert "Shape:" in text
    assert "quivariant to" in text or "nvariant to" in text or "Not equivariant" in text


@pytest.mark.parametrize("name", [name for name, thing in TENSORS.items() if not name.startswith("nn.scalar")])
def test_arguments_are_documented(name):
    """By one line for each, or by the layer that explains them."""
    thing, text = TENSORS[name], inspect.getdoc(TENSORS[name])
    function = thing.__init__ if inspect.isclass(thing) else thing
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "args", "kwargs")]
    if not inspect.isclass(thing) and "Args:" not in text:
        return  # its parameters are in Shape
    missing = [p for p in parameters if f"{p}:" not in text and f"{p}," not in text and "Arguments as in" not in text]
    assert not missing
