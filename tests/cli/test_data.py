"""`vn data`: what it prints, where packs are, and what happens when something fails."""

from pathlib import Path

import published
import pytest

from vector_neurons.cli import data
from vector_neurons.data import modelnet40, pack


def test_it_says_what_it_found(convert, vn_command, tmp_path):
    code, out, err = convert("modelnet40", published.modelnet_text(tmp_path / "text"), "--check")
    assert code == 0
    assert not err
    assert "from the text release: 4 shapes, z up, in the unit ball" in out
    assert "train     3 shapes (published: 9,843)" in out
    assert "chair 1/1" in out
    assert "damaged   none" in out
    assert "normals 2048×3" in out
    assert "checksum  sha256 " in out
    assert convert.packs() == ["modelnet40.safetensors"]
    assert sorted(file.name for file in convert.root.iterdir()) == ["modelnet40.safetensors"]  # no leftovers
    again = vn_command("data", "modelnet40", "--data-root", convert.root)
    assert again[0] == 0
    assert out.startswith(again[1].rstrip())


def test_overlap_is_reported_and_removable(convert, tmp_path):
    source = published.shapenet_text(tmp_path / "text")
    _, out, _ = convert("shapenet-part", source)
    assert "overlap   1 shapes are in both train and test (--drop-overlap leaves them out): 03001627/cc" in out
    code, out, _ = convert("shapenet-part", source, "--drop-overlap")
    assert code == 0
    assert "train     2 shapes" in out
    assert "left out of the former" in out


def test_an_older_pack_survives_a_conversion_that_fails(convert, tmp_path):
    assert convert("modelnet40", published.modelnet_npz(tmp_path / "modelnet40.npz"))[0] == 0
    before = (convert.root / "modelnet40.safetensors").read_bytes()
    source = published.modelnet_text(tmp_path / "text")
    (source / "chair" / "chair_0001.txt").unlink()
    assert convert("modelnet40", source)[0] == 2
    assert (convert.root / "modelnet40.safetensors").read_bytes() == before


def test_stopping_says_how_to_go_on(convert, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(modelnet40, "_read_npz", stop)
    code, _, err = convert("modelnet40", published.modelnet_npz(tmp_path / "modelnet40.npz"))
    assert code == 2
    assert err == ["vn data: stopped; the same command goes on where it was"]
    assert not list(convert.root.iterdir())


def test_a_damaged_pack_is_noticed(convert, vn_command, tmp_path):
    convert("modelnet40", published.modelnet_npz(tmp_path / "modelnet40.npz"))
    file = convert.root / "modelnet40.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    code, _, err = vn_command("data", "modelnet40", "--data-root", convert.root, "--check")
    assert code == 2
    assert "does not fit its checksum; make it again" in err
    file.write_bytes(content[:-100])
    code, _, err = vn_command("data", "modelnet40", "--data-root", convert.root)
    assert code == 2
    assert "damaged" in err
    assert "make it again with `vn data modelnet40 --from PATH`" in err
    assert err.count("\n") == 1


def test_the_environment_says_where_packs_are(vn_command, monkeypatch, tmp_path):
    monkeypatch.setenv("VN_DATA", str(tmp_path / "here"))
    code, _, err = vn_command("data", "shapenet-part")
    assert code == 2
    assert f"there is no pack {tmp_path / 'here' / 'shapenet-part.safetensors'}: make it with `vn data shapenet" in err
    assert pack.data_root("there") == Path("there")
    monkeypatch.delenv("VN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert pack.data_root() == tmp_path / "vector-neurons"


@pytest.mark.parametrize(("name", "option"), [("modelnet40", "points"), ("occupancy", "queries"), ("folder", "points")])
def test_numbers_that_make_no_sense(convert, tmp_path, name, option):
    published.off(tmp_path / "own" / "a.off")
    code, _, err = convert(name, tmp_path / "own", f"--{option}", "0")
    assert code == 2
    assert err == [f"vn data: --{option} must be at least 1, got 0"]


def test_folder_and_help(convert, vn_command, tmp_path):
    for name in ("cup/a.off", "cup/b.off", "plate/c.off", "plate/d.off"):
        published.off(tmp_path / "own" / name)
    (tmp_path / "own" / "plate" / "e.off").write_text("nonsense")
    code, out, _ = convert("folder", tmp_path / "own", "--points", "64")
    assert code == 0
    assert "classes   2: cup 2, plate 2" in out
    assert "damaged   1 files left out" in out
    assert "e.off" in out
    assert "which folder?" in vn_command("data", "folder")[2]
    out = vn_command("data", "--help")[1]
    assert all(word in out for word in ("modelnet40", "shapenet-part", "occupancy", "folder"))


def test_what_is_missing_is_said_in_one_line(monkeypatch, convert, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    published_folder = tmp_path / "hdf5"
    published_folder.mkdir()
    for split, count in modelnet40.HDF5_FILES.items():
        for number in range(count):
            (published_folder / f"ply_data_{split}{number}.h5").write_bytes(b"")
    code, _, err = convert("modelnet40", published_folder)
    assert code == 2
    assert "reading .h5 files needs h5py: pip install 'vector-neurons[data]'" in err[0]


def test_overlap_names_the_flag_only_where_there_is_one_and_a_set_that_is_missing_is_shown(convert, tmp_path):
    for name in ("train/cup/a.off", "test/cup/b.off"):
        published.off(tmp_path / "own" / name)
    _, out, _ = convert("folder", tmp_path / "own", "--points", "64", "--to", "own")
    assert "overlap   1 shapes are in both train and test: cup/a.off" in out
    opened = pack.open_pack("own", convert.root)
    opened.about["published"] = {"val": 7}
    assert "val       0 shapes (published: 7)" in data.describe(opened)
