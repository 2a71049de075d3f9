"""`vn data`: what it prints, where packs are, and what happens when something fails."""

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import published
import pytest

from vector_neurons.cli import data
from vector_neurons.data import Folder, modelnet40, pack


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


def test_an_interrupt_says_how_to_resume(convert, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(modelnet40, "_read_npz", stop)
    code, _, err = convert("modelnet40", published.modelnet_npz(tmp_path / "modelnet40.npz"))
    assert code == 2
    assert err == ["vn data: interrupted; run the same command to resume"]
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


@contextmanager
def small_disk(size):
    """A disk on which no file can be larger than so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def meshes(folder):
    for name in ("cup/a.off", "cup/b.off", "plate/c.off"):
        published.off(folder / name)
    return folder


CONVERSIONS = {
    "modelnet40": lambda folder: published.modelnet_text(folder),
    "shapenet-part": lambda folder: published.shapenet_text(folder),
    "occupancy": meshes,
    "folder": meshes,
}


@pytest.mark.parametrize("size", [100, 20_000])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_full_disk_is_one_line_and_the_next_run_ends_as_if_nothing_had_been(convert, tmp_path, name, size):
    source, to = CONVERSIONS[name](tmp_path / "source"), ["--to", "mine"] if name in ("occupancy", "folder") else []
    assert convert(name, source, *to)[0] == 0
    (pack_file,) = convert.packs()
    whole = (convert.root / pack_file).read_bytes()
    assert len(whole) > size
    (convert.root / pack_file).unlink()
    with small_disk(size):
        code, out, err = convert(name, source, *to)
    assert code == 2
    assert not out
    assert len(err) == 1
    assert "File too large" in err[0]
    assert not convert.packs()
    assert not [file for file in convert.root.rglob("*") if file.name.endswith(".part")]
    assert convert(name, source, *to)[0] == 0
    assert (convert.root / pack_file).read_bytes() == whole
    assert [file.name for file in convert.root.iterdir()] == [pack_file]


@pytest.mark.parametrize("name", CONVERSIONS)
def test_places_where_no_pack_can_be(vn_command, tmp_path, name):
    source = CONVERSIONS[name](tmp_path / "source")
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent" / "deep")
    (tmp_path / "taken" / f"{name}.safetensors").mkdir(parents=True)
    roots = {
        tmp_path / "file": "File exists",
        tmp_path / "file" / "inside": "Not a directory",
        tmp_path / "dangling": "File exists",
        tmp_path / ("n" * 300): "File name too long",
        Path("/proc/nowhere"): "No such file or directory",
    }
    if name in ("modelnet40", "shapenet-part"):
        roots[tmp_path / "taken"] = "is a folder: a pack needs another name"
    for root, words in roots.items():
        code, out, err = vn_command("data", name, "--from", source, "--data-root", root, "--workers", "1", *TO[name])
        assert (code, out) == (2, "")
        assert words in err
        assert len([line for line in err.splitlines() if not line.startswith("read ")]) == 1
        assert "Traceback" not in err


TO = {"modelnet40": [], "shapenet-part": [], "occupancy": ["--to", "mine"], "folder": ["--to", "mine"]}


@pytest.mark.parametrize("name", CONVERSIONS)
@pytest.mark.parametrize("length", [230, 245, 300])
def test_names_that_are_too_long(convert, vn_command, tmp_path, name, length):
    for source in (tmp_path / ("n" * 300), tmp_path / ("n" * 300 + ".npz")):
        code, out, err = convert(name, source)
        assert (code, out, len(err)) == (2, "", 1)
    if TO[name]:
        code, out, err = convert(name, meshes(tmp_path / "source"), "--to", "n" * length)
        assert code == (0 if length == 230 else 2)
        assert len(err) == (0 if length == 230 else 1)
        code, _, err = vn_command("data", name, "--to", "m" * length, "--data-root", convert.root)
        assert code == 2
        assert err.count("\n") == 1


def test_a_folder_that_cannot_be_written(convert, tmp_path, monkeypatch):
    source = meshes(tmp_path / "source")

    def denied(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    with monkeypatch.context() as locked:
        locked.setattr(Path, "mkdir", denied)
        code, out, err = convert("folder", source)
    assert (code, out, len(err)) == (2, "", 1)
    assert "Permission denied: " in err[0]
    assert "Errno" not in err[0]


def test_it_says_which_splits_training_sees(convert, vn_command, tmp_path):
    for number in range(10):
        for name in ("cup", "plate"):
            published.off(tmp_path / "own" / name / f"{number}.off", vertices=published.BOX + number)
    _, out, _ = convert("folder", tmp_path / "own", "--points", "64", "--to", "mine")
    assert "training  train 14, val 2, test 4 (train and val and test drawn by split_seed)" in out
    seen = {s: len(Folder(pack="mine", split=s, root=convert.root, points=64)) for s in ("train", "val", "test")}
    assert seen == {"train": 14, "val": 2, "test": 4}
    _, out, _ = convert("modelnet40", published.modelnet_text(tmp_path / "text"))
    assert "training  train 3, val 0, test 1 (val drawn by split_seed)" in out


def test_points_that_are_nan_are_dropped_and_counted(convert, tmp_path):
    cloud = published.cloud(0, 50)
    cloud[:5] = np.nan
    for name in ("a", "b", "c"):
        (tmp_path / "own" / "cup").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "own" / "cup" / f"{name}.npy", cloud + ord(name))
    code, _, err = convert("folder", tmp_path / "own")
    assert code == 2
    assert "--drop-nan" in err[0]
    code, out, err = convert("folder", tmp_path / "own", "--drop-nan")
    assert (code, err) == (0, [])
    assert "notes     3 files were not used in full" in out
    assert "a.npy: 5 of 50 points are NaN or infinite and left out" in out


def test_names_of_files_that_are_no_text(convert, tmp_path):
    for name in (b"a\xff.off", b"b\xff.off", b"c.off"):
        published.off(tmp_path / "own" / "cup" / os.fsdecode(name))
    (tmp_path / "own" / "cup" / os.fsdecode(b"bad\xff.off")).write_text("nonsense")
    code, out, err = convert("folder", tmp_path / "own", "--points", "64")
    assert (code, err) == (0, [])
    assert "classes   1: cup 3" in out
    assert "bad\\udcff.off is damaged" in out


def test_who_has_seen_enough_of_the_output_is_no_error(convert, tmp_path, monkeypatch):
    assert convert("folder", meshes(tmp_path / "source"), "--to", "mine", "--points", "64")[0] == 0

    def closed(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("builtins.print", closed)
    with pytest.raises(BrokenPipeError):  # which `vn` itself takes as the end
        data.run(data.FolderOptions(to="mine", data_root=convert.root))
