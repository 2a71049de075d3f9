"""Where the native kernels cannot be built or loaded, and who chooses."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elsewhere import python

from vector_neurons import kernels
from vector_neurons.kernels.build import SOURCES, UNITS

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")


USE = """
    import torch, vector_neurons as vn
    from vector_neurons import kernels
    for _ in range(2):
        y = vn.Block(2, 3)(torch.randn(2, 4, 3, 2))
    print(kernels.available(), tuple(y.shape))
"""


def test_without_a_compiler_there_is_one_warning_and_the_plain_body(tmp_path):
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
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    code, out, err = python(USE, XDG_CACHE_HOME=str(tmp_path))
    assert code == 0
    assert err.count("UserWarning") == 1
    assert "eager" in out


def test_a_compiler_with_arguments(tmp_path):
    _, _, err = python(USE, CXX="false -v", XDG_CACHE_HOME=str(tmp_path))
    assert "false -v could not compile them: exit code 1" in err


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "vector-neurons").write_text("a file where the folder should be")
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


def test_the_environment_chooses():
    asks = "from vector_neurons import kernels; import torch; print(kernels.native(torch.zeros(1)))"
    assert python(asks, VN_KERNELS="eager")[1] == "False\n"
    assert python(asks, VN_KERNELS="native")[1] == "True\n"
    code, _, err = python(asks, VN_KERNELS="fast")
    assert code == 1
    assert "VN_KERNELS is 'fast': choose one of auto, eager, native" in err


def test_native_by_name_fails_where_it_cannot_be_built(tmp_path):
    ask = "from vector_neurons import kernels; kernels.use('native')"
    code, _, err = python(ask, CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert code == 1
    assert "BuildError: no C++ compiler was found" in err


def test_unknown_bodies_are_refused(unchecked):
    with pytest.raises(ValueError, match="unknown kernels 'quick': choose one of auto, eager, native"):
        kernels.use("quick")
