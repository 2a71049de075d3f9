"""Tables of layers and networks: no layer is left out of the tests or of its page, and parameters are counted right."""

import inspect
import re

import layers
import pytest
from blocks import text
from torch import nn

import vector_neurons as vn

KIT = vn.KITS["vector"]
EXPORTED = [name for name in KIT.__all__ if name not in ("NORMS", "POOLS")]
LAYERS = [name for name in EXPORTED if inspect.isclass(getattr(KIT, name))]
PAGE = "docs/layers.md"


def table(page: str, head: str) -> list[str]:
    """The rows of the table that starts with this line."""
    _, found, rest = text(page).partition(f"{head}\n")
    assert found, f"{page} has no table {head}"
    return rest.partition("\n\n")[0].splitlines()[1:]


def names(rows: list[str]) -> set[str]:
    """Layers in the first column of a table."""
    code = re.findall(r"`(?:vn\.)?(\w+)[^`]*`", " ".join(row.split("|")[1] for row in rows))
    return set(code)


def test_every_layer_has_a_row_in_the_tests():
    tested = {type(row.module()).__name__ for row in layers.LAYERS}
    assert not set(LAYERS) - tested, "add rows to tests/layers.py"


def test_every_layer_is_in_the_overview():
    assert not set(EXPORTED) - names(table(PAGE, "| layer | what it does |")), f"add rows to {PAGE}"


@pytest.mark.parametrize(
    "head", ["| layer | takes |", "| layer | rotations | reflections | scaling | order of elements |"]
)
def test_every_layer_is_in_the_tables_of_shapes_and_symmetries(head):
    assert not set(LAYERS) - names(table(PAGE, head)), f"add them to {head} in {PAGE}"


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_parameters_of_hybrid_networks():
    rows = table("docs/networks.md", '| network | `neurons="hybrid"` | parameters |')
    assert len(rows) == 5
    for row in rows:
        call, _, number = (cell.strip() for cell in row.strip("|").split("|"))
        name, arguments = re.fullmatch(r"`(\w+)\((.*)\)`", call).groups()  # type: ignore[union-attr]
        sizes = {key: int(value) for key, value in (word.split("=") for word in arguments.split(", "))}
        assert f"{count(vn.models.MODELS[name](neurons='hybrid', **sizes)):,}" == number, name


def test_parameters_of_networks():
    for row in table(
        "docs/networks.md", '| network | `neurons="vector"` | parameters | `neurons="scalar"` | parameters |'
    ):
        call, _, vector, _, scalar = (cell.strip() for cell in row.strip("|").split("|"))
        name, arguments = re.fullmatch(r"`(\w+)\((.*)\)`", call).groups()  # type: ignore[union-attr]
        sizes = {key: int(value) for key, value in (word.split("=") for word in arguments.split(", "))}
        for neurons, number in (("vector", vector), ("scalar", scalar)):
            built = vn.models.MODELS[name](neurons=neurons, **sizes)
            assert f"{count(built):,}" == number, f"{name}, {neurons}"
