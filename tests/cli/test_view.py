import sys

import trimesh


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


def test_view_writes_a_page(vn_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = vn_command("view", "shapes")
    assert (code, err) == (0, "")
    assert out.startswith("view.html: 1.")
    assert (tmp_path / "view.html").read_text().startswith("<!doctype html>")
    trimesh.creation.box().export("box.off")
    code, out, err = vn_command("view", "box.off", "--poses", 2, "-o", "box.html", "--threads", 1)
    assert (code, err) == (0, "ran 2 of 2 poses\n")
    assert '"FrameNet, vector neurons"' in (tmp_path / "box.html").read_text()


def test_pages_that_cannot_be_written(vn_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trimesh.creation.box().export("box.off")

    def wrong(*arguments):
        code, out, err = vn_command("view", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "there is no file or folder chapes: give a mesh" in wrong("chapes")
    assert "cannot write a page to a.pdf: only .html" in wrong("shapes", "-o", "a.pdf")
    assert "--poses takes 1 to 5,000" in wrong("box.off", "--poses", 0)
    assert "--shapes takes 1 to 40" in wrong("box.off", "--shapes", 100)
    assert "--threads takes 1" in wrong("box.off", "--threads", 0)
    assert "holds no run" in wrong(tmp_path)
    assert "no pretrained model of this name" in wrong("box.off", "--model", "nothing")
    assert "a category is for part segmentation" in wrong("box.off", "--category", "chair")
    assert "vn view shapes --png a.png" in wrong("box.off", "--png", "a.png")
    assert not list(tmp_path.glob("*.html"))
