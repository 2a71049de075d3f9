"""The blocks of docs/data.md run, on small sets in the places the page names."""

import re

import published
import pytest

from vector_neurons.data import modelnet40, occupancy

BLOCKS = re.findall(r"```python\n(.*?)```", (published.ROOT / "docs" / "data.md").read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("page")
    modelnet40.convert(published.modelnet_off(place / "ModelNet40"), place)
    for name in ("cup/a", "cup/b", "cup/c", "plate/a", "plate/b"):
        published.off(place / "my_scans" / f"{name}.off")
    occupancy.convert(place / "my_scans", place, to="mine", points=300, queries=2048, near=8)
    return place


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_runs(number, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("VN_DATA", str(place))
    exec(compile(BLOCKS[number], "docs/data.md", "exec"), {})
