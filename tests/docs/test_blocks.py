"""Every block of code on the site and in README runs, and every `vn` command names verbs and flags that exist."""

import re

import published
import pytest
import torch
from blocks import NOT_RUN, PAGES, blocks, commands, text

import vector_neurons as vn
from vector_neurons.data import modelnet40, occupancy

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
WITH_COMMANDS = [page for page in PAGES if commands(page)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with small data sets in the places that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    modelnet40.convert(published.modelnet_off(folder / "ModelNet40"), folder)
    for name in ("cup/a", "cup/b", "cup/c", "plate/a", "plate/b"):
        published.off(folder / "my_scans" / f"{name}.off")
    occupancy.convert(folder / "my_scans", folder, to="mine", points=300, queries=2048, near=8)
    return folder


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_every_python_block_runs(page, workplace, monkeypatch):
    """In order, in one namespace: a page reads like a session."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("VN_DATA", str(workplace))
    torch.manual_seed(0)
    namespace: dict = {"__name__": page}
    for number, block in enumerate(blocks(page, "python"), start=1):
        code = compile(block, f"{page}, block {number}", "exec")
        if not block.startswith(NOT_RUN):
            exec(code, namespace)
    for battery in batteries(namespace):
        for name in [name for name in dir(battery) if name.startswith("test_")]:
            getattr(battery(), name)()


def batteries(namespace):
    """The test classes that a page defines."""
    classes = [value for value in namespace.values() if isinstance(value, type) and value.__module__ in PAGES]
    return [value for value in classes if issubclass(value, vn.testing.EquivarianceTests)]


def test_a_page_shows_tests_to_inherit():
    assert "class TestTiny(vn.testing.EquivarianceTests)" in text("docs/tutorial.md")


def test_most_blocks_are_run():
    every = [block for page in WITH_PYTHON for block in blocks(page, "python")]
    assert sum(block.startswith(NOT_RUN) for block in every) <= len(every) // 10


@pytest.fixture
def flags_of(vn_command):
    """The flags that `vn VERB --help` lists (of `vn data`, those of the data set)."""

    def flags(*verb):
        code, out, err = vn_command(*verb, "--help")
        assert code == 0, err
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", out))

    return flags


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_has_flags_that_exist(page, flags_of):
    known: dict = {}
    for words in commands(page):
        of_a_set = words[0] == "data" and len(words) > 1 and not words[1].startswith("-")
        verb = tuple(words[: 2 if of_a_set else 1])
        known.setdefault(verb, flags_of(*verb))
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known[verb], f"{page}: vn {' '.join(words)}"
