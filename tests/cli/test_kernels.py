from pathlib import Path

import pytest


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_shows_whether_they_are_built(vn_command, elsewhere):
    code, out, _ = vn_command("kernels")
    assert code == 0
    assert "built   no: `vn kernels build`" in out
    assert "chosen" in out


def test_builds_once(vn_command, elsewhere, stand_in_compiler):
    code, out, err = vn_command("kernels", "build")
    assert code == 0
    assert out.strip().endswith(".so")
    assert err.count("building the native kernels") == 1
    assert len(list(elsewhere.rglob("*.so"))) == 1
    code, again, err = vn_command("kernels", "build")
    assert (code, again, err) == (0, out, "")
    assert str(elsewhere) in vn_command("kernels", "show")[1]
    code, _, err = vn_command("kernels", "build", "--again")
    assert (code, err.count("building the native kernels")) == (0, 1)


def test_what_is_damaged_or_not_ones_own_is_not_built(vn_command, elsewhere, stand_in_compiler):
    path = Path(vn_command("kernels", "build")[1].strip())
    path.chmod(0o666)
    assert f"built   no: {path} can be written by other users" in vn_command("kernels")[1]
    code, out, err = vn_command("kernels", "build")
    assert (code, out, err.count("\n")) == (2, "", 1)
    path.chmod(0o600)
    path.write_text("")
    assert "built   no: `vn kernels build`" in vn_command("kernels")[1]
    code, out, err = vn_command("kernels", "build")
    assert (code, out) == (0, f"{path}\n")
    assert f"{path} is damaged and will be replaced" in err


def test_says_in_one_line_why_not(vn_command, elsewhere, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, err = vn_command("kernels", "build")
    assert (code, out) == (2, "")
    assert err == (
        "vn kernels: cannot be built: no C++ compiler was found (install g++ or clang++, or name one in CXX)\n"
    )


def test_again_without_build(vn_command):
    code, _, err = vn_command("kernels", "--again")
    assert code == 2
    assert "belongs to `vn kernels build`" in err
