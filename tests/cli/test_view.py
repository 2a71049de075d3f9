import sys


def test_view_draws_every_family(vn_command, tmp_path):
    file = tmp_path / "gallery.png"
    code, out, _ = vn_command(
        "view", "shapes", "--png", file, "--each", 1, "--points", 200, "--split", "val", "--seed", 4
    )
    assert code == 0
    assert out == f"{file}: 23 clouds of shapes\n"
    assert file.read_bytes().startswith(b"\x89PNG")


def test_view_says_in_one_line_what_is_wrong(vn_command, tmp_path, monkeypatch):
    file = tmp_path / "gallery.png"

    def wrong(*arguments):
        code, out, err = vn_command("view", "shapes", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "there is no folder" in wrong("--png", tmp_path / "nowhere" / "a.png")
    assert "cannot write a picture" in wrong("--png", tmp_path / "a.foo")
    (tmp_path / "folder.png").mkdir()
    assert "cannot write" in wrong("--png", tmp_path / "folder.png", "--each", 1, "--points", 9)
    assert "--each takes 1 or more" in wrong("--png", file, "--each", 0)
    assert "up to 32" in wrong("--png", file, "--each", 100_000)
    assert "--points takes at most" in wrong("--png", file, "--points", 10**9)
    assert "points >= 1" in wrong("--png", file, "--points", 0)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert 'pip install "vector-neurons[viz]"' in wrong("--png", file, "--points", 9)
    code, _, err = vn_command("view", "chapes", "--png", file)
    assert code == 2
    assert "shapes" in err
