"""The native kernels where they cannot be built or loaded, and what their cache key depends on."""

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
import torch
from elsewhere import python

from vector_neurons import _constants, kernels
from vector_neurons._files import locked, sha256
from vector_neurons.kernels.build import CPU, SOURCES, UNITS, flags
from vector_neurons.nn import functional

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


USE = """
    import torch, vector_neurons as vn
    from vector_neurons import kernels
    for _ in range(2):
        y = vn.Block(2, 3)(torch.randn(2, 4, 3, 2))
    print(kernels.available(), tuple(y.shape))
"""


def test_without_a_compiler_there_is_one_warning_and_the_eager_backend(tmp_path):
    code, out, err = python(USE, CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert out == "('eager',) (2, 4, 3, 3)\n"
    assert err.count("UserWarning") == 1
    assert "no C++ compiler was found" in err


def test_a_failed_build_is_one_warning_and_leaves_nothing(tmp_path):
    code, out, err = python(USE, CXX="false", XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert "could not compile them" in err
    assert err.count("UserWarning") == 1
    assert "eager" in out
    assert not list(tmp_path.rglob("*.so"))


def test_a_library_that_cannot_be_loaded(tmp_path):
    name = "from vector_neurons.kernels.build import library; print(library())"
    path = Path(python(name, XDG_CACHE_HOME=str(tmp_path), VN_KERNELS="eager")[1].strip())
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700)
    path.write_text("not a library")
    path.chmod(0o600)
    path.with_suffix(".json").write_text(json.dumps({"size": 13, "sha256": sha256(path)}))
    path.with_suffix(".json").chmod(0o600)
    code, out, err = python(USE, XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert err.count("UserWarning") == 1
    assert "invalid ELF header" in err or "file too short" in err
    assert "eager" in out


def test_a_compiler_with_arguments(tmp_path):
    _, _, err = python(USE, CXX="false -v", XDG_CACHE_HOME=str(tmp_path))
    assert "false -v could not compile them: exit code 1" in err


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "vector-neurons").write_text("a file where the folder should be")
    (tmp_path / "vector-neurons").chmod(0o600)
    code, out, err = python(USE, XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert "they cannot be written" in err
    assert "eager" in out


def test_of_many_that_start_together_one_builds(monkeypatch, tmp_path, stand_in_compiler, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: kernels.build(), range(4)))) == 1
    assert capfd.readouterr().err.count("building the native kernels") == 1
    assert len(stand_in_compiler.read_text().splitlines()) == len(UNITS) + 1  # and one call to link them


def test_every_source_is_compiled():
    compiled = sorted(source for unit in UNITS for source in unit)
    assert compiled == [source.name for source in SOURCES if source.suffix == ".cpp"]


def test_what_is_being_done_and_for_how_long(empty_cache, stand_in_compiler, capfd):
    kernels.build()
    begin, end = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"vector_neurons: building the native kernels, once, about \d+ s on .* \(VN_KERNELS=.*", begin)
    assert re.fullmatch(r"vector_neurons: built the native kernels in \d+ s, into .*/kernels", end)


def test_who_waits_says_for_whom(empty_cache, stand_in_compiler, capfd):
    lock, said = kernels.build().with_suffix(".lock"), ""
    capfd.readouterr()
    with ThreadPoolExecutor(1) as pool:
        with locked(lock):
            waiting = pool.submit(kernels.build, again=True)
            while not said and not waiting.done():
                time.sleep(0.01)
                said = capfd.readouterr().err
            assert re.fullmatch(
                rf"vector_neurons: waiting for the native kernels, locked by process {os.getpid()} on .*\n", said
            )
            assert not waiting.done()
        assert waiting.result() == kernels.built()


def test_environments_with_the_same_torch_share_a_library(monkeypatch, tmp_path):
    here = kernels.library()
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "elsewhere" / "torch" / "__init__.py"))
    assert kernels.library() == here
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert kernels.library() != here


@pytest.mark.skipif("-g" in flags(), reason="what sanitizers report names the sources")
def test_a_library_does_not_know_where_it_was_built():
    content = kernels.build().read_bytes()
    for path in (Path(torch.__file__).parent, CPU):
        assert bytes(path) not in content


def test_the_relative_floor_is_defined_once_and_part_of_the_key(monkeypatch):
    module, here = import_module("vector_neurons.kernels.build"), kernels.library()
    assert functional.RELATIVE_FLOOR == _constants.RELATIVE_FLOOR
    assert "-DVN_RELATIVE_FLOOR=0.001" in flags()
    monkeypatch.setattr(module, "RELATIVE_FLOOR", 2e-3)
    assert "-DVN_RELATIVE_FLOOR=0.002" in flags()
    assert kernels.library() != here


def test_sanitizers_have_a_library_of_their_own(monkeypatch):
    monkeypatch.delenv("VN_SANITIZE", raising=False)
    here = kernels.library()
    monkeypatch.setenv("VN_SANITIZE", "0")
    assert kernels.library() == here
    monkeypatch.setenv("VN_SANITIZE", "1")
    assert "-fsanitize=address,undefined" in flags()
    assert kernels.library() != here
