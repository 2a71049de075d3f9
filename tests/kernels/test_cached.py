"""The library in the user's cache: damaged, another user's, half written."""

import os
import stat
import time
from importlib import import_module
from pathlib import Path

import pytest
from elsewhere import python

from vector_neurons import kernels

pytestmark = pytest.mark.skipif("native" not in kernels.available(), reason="no C++ compiler here")

USE = """
    import torch, vector_neurons as vn
    from vector_neurons import kernels
    vn.Block(2, 3)(torch.randn(2, 4, 3, 2))
    print(kernels.available())
"""
BUILD = import_module("vector_neurons.kernels.build")  # the module: the package has a function of this name
NATIVE, EAGER = "('eager', 'native')\n", "('eager',)\n"


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def copying_compiler(monkeypatch, tmp_path):
    """A compiler that gives the library that is built already."""
    script = tmp_path / "copy"
    script.write_text(f'#!/bin/sh\nfor out; do :; done\ncp {kernels.build()} "$out"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


def shared(path):
    return {"library": path, "record": path.with_suffix(".json"), "folder": path.parent, "cache": path.parent.parent}


def truncate(path):
    os.truncate(path, 100_000)


def change(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "changed": change,
    "without-record": lambda path: path.with_suffix(".json").unlink(),
    "empty-record": lambda path: path.with_suffix(".json").write_text(""),
    "other-record": lambda path: path.with_suffix(".json").write_text("[1, 2]"),
    "folder-for-record": lambda path: (path.with_suffix(".json").unlink(), path.with_suffix(".json").mkdir(0o700)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_not_loaded(empty_cache, stand_in_compiler, damage):
    path = kernels.build()
    assert kernels.built() == path
    damage(path)
    assert kernels.built() is None


@pytest.mark.parametrize("damage", [truncate, DAMAGE["empty"]], ids=["truncated", "empty"])
def test_what_is_damaged_is_built_again(copying_compiler, empty_cache, damage):
    path = kernels.build()
    damage(path)
    code, out, err = python(USE)
    assert (code, out) == (0, NATIVE)
    assert err.count(f"{path} is damaged and will be replaced") == 1
    assert python(USE) == (0, NATIVE, "")


def test_the_files_are_the_users_alone_whatever_the_umask(empty_cache, stand_in_compiler):
    before = os.umask(0)
    try:
        path = kernels.build()
    finally:
        os.umask(before)
    assert kernels.built() == path
    modes = {name: oct(stat.S_IMODE(file.stat().st_mode)) for name, file in shared(path).items()}
    assert modes == {"library": "0o600", "record": "0o600", "folder": "0o700", "cache": "0o700"}


@pytest.mark.parametrize("mode", [0o770, 0o707], ids=["group", "all"])
@pytest.mark.parametrize("which", ["library", "record", "folder", "cache"])
def test_what_others_can_write_is_refused(empty_cache, stand_in_compiler, which, mode):
    path = shared(kernels.build())[which]
    path.chmod(mode)
    for ask in (kernels.built, kernels.build):
        with pytest.raises(kernels.BuildError, match=f"{path} can be written by other users"):
            ask()
    path.chmod(0o755)
    kernels.build()


@pytest.mark.parametrize("which", ["library", "record", "folder", "cache"])
def test_what_belongs_to_others_is_refused(empty_cache, stand_in_compiler, monkeypatch, which):
    path = shared(kernels.build())[which]
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        path = path if which == "cache" else empty_cache / "vector-neurons"  # the first that is looked at
    with pytest.raises(kernels.BuildError, match=f"{path} belongs to another user"):
        kernels.build()


def test_what_is_refused_is_one_warning_and_the_eager_backend(copying_compiler, empty_cache):
    kernels.build().parent.chmod(0o777)
    code, out, err = python(USE)
    assert (code, out) == (0, EAGER)
    assert err.count("Warning") == 1
    assert "kernels can be written by other users (run `chmod go-w " in err


def full(path):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "home", ["/proc/nothing", "/dev/null", "x" * 300, "/" + "y/" * 3000], ids=["none", "file", "name", "path"]
)
def test_a_cache_that_cannot_be(stand_in_compiler, monkeypatch, vn_command, home):
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    assert kernels.built() is None
    with pytest.raises(kernels.BuildError, match=r"^they cannot be written: [^\n]+$"):
        kernels.build()
    assert vn_command("kernels")[0] == 0
    code, _, err = vn_command("kernels", "build")
    assert (code, err.count("\n")) == (2, 1)


def test_no_home(stand_in_compiler, monkeypatch, vn_command):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home.")))
    with pytest.raises(kernels.BuildError, match="there is no home folder"):
        kernels.build()
    assert "no: there is no home folder" in vn_command("kernels")[1]


def test_a_full_disk(empty_cache, stand_in_compiler, monkeypatch):
    monkeypatch.setattr(BUILD, "flush", full)
    with pytest.raises(kernels.BuildError, match=r"^they cannot be written: No space left on device$"):
        kernels.build()
    assert not list((empty_cache / "vector-neurons" / "kernels").iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("no program", "could not be started: Exec format error"),
        ("#!/bin/sh\nprintf 'error \\377' >&2; exit 1\n", "could not compile them: error �"),
        ("#!/bin/sh\n", "they cannot be written: .*No such file"),
    ],
    ids=["no-program", "no-text", "no-file"],
)
def test_a_compiler_that_fails(empty_cache, monkeypatch, content, said):
    script = empty_cache / "compiler"
    script.write_text(content)
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(kernels.BuildError, match=said):
        kernels.build()


def test_half_a_quotation(empty_cache, monkeypatch):
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(kernels.BuildError, match=r"no C\+\+ compiler was found"):
        kernels.build()


def test_a_killed_compilation_leaves_nothing_that_matters(empty_cache, stand_in_compiler, monkeypatch):
    killer = empty_cache / "killer"
    killer.write_text("#!/bin/sh\nfor out; do :; done\necho half > $out\nkill -9 $PPID\n")
    killer.chmod(0o755)
    code, *_ = python("from vector_neurons import kernels; kernels.build()", CXX=str(killer))
    assert code == -9
    assert kernels.built() is None
    folder = empty_cache / "vector-neurons" / "kernels"
    [left] = folder.glob("building-*")
    os.utime(left, (time.time() - 2 * BUILD.LEFTOVER,) * 2)
    path = kernels.build()  # nobody holds the lock
    assert sorted(folder.iterdir()) == [path.with_suffix(".json"), path]
