"""For all tests: `layers` is importable, and runs are repeatable."""

import gc
import sys
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("repeatable")


def pytest_collection_finish():
    """What is there by now stays, and need not be looked at each time that Python collects garbage: a sixth faster."""
    import torch  # not above: the process that hands out the tests does without

    torch.set_num_threads(1)  # small tensors, and pytest-xdist already fills the cores
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_runtest_setup():
    """A test draws the same numbers, on one thread, whatever ran before it, and alone."""
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_backend_for_every_test():
    """A test, or a command that it runs, may choose a backend for its process: the next one starts as before."""
    if "vector_neurons.kernels" not in sys.modules:
        yield
        return
    from vector_neurons import kernels

    before = kernels.chosen()
    yield
    if kernels.chosen() != before:
        kernels.use(before)


@pytest.fixture
def unchecked():
    """Without the shape checks of the hook, as users run the library: its own errors are what they see."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def vn_command(monkeypatch, capsys):
    """Run `vn ...` in this process: exit code, standard output, standard error."""

    from vector_neurons import cli  # not above: the hook must come before the package

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["vn", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def stand_in_compiler(monkeypatch, tmp_path):
    """In the place of the C++ compiler one that is quick and writes anything; gives a file with a line for each call.

    The real one builds the library that all other tests use.
    """
    script, calls = tmp_path / "c++", tmp_path / "calls"
    script.write_text(f'#!/bin/sh\nsleep 0.1\necho "$*" >> {calls}\nfor out; do :; done\necho > "$out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    return calls


@pytest.fixture
def convert(vn_command, tmp_path):
    """Run `vn data SET --from SOURCE`: exit code, output, the lines of the standard error that are not progress."""

    def run(name, source, *more):
        code, out, err = vn_command(
            "data", name, "--from", source, "--data-root", tmp_path / "root", "--workers", "1", *more
        )
        return code, out, [line for line in err.splitlines() if not line.startswith("read ")]

    run.root = tmp_path / "root"  # type: ignore[attr-defined]
    run.packs = lambda: (  # type: ignore[attr-defined]
        [file.name for file in run.root.iterdir() if file.suffix != ".partial"] if run.root.exists() else []  # type: ignore[attr-defined]
    )
    return run
