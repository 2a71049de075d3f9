"""One clear line for each kind of damage, and nothing half-written."""

import json
import os
import shutil

import numpy as np
import published
import pytest


def text(damage):
    def source(folder):
        published.modelnet_text(folder)
        damage(folder)
        return folder

    return source


def edit(name, change):
    def damage(folder):
        (folder / name).write_text(change((folder / name).read_text()))

    return damage


def line_30(new):
    return lambda text: "\n".join([*text.splitlines()[:29], new, *text.splitlines()[30:]]) + "\n"


CHAIR = "chair/chair_0001.txt"
DAMAGED_TEXT = {
    "missing": (text(lambda f: (f / CHAIR).unlink()), "chair_0001.txt is missing"),
    "truncated": (
        text(edit(CHAIR, lambda t: "\n".join(t.splitlines()[:5123]) + "\n")),
        "chair_0001.txt is truncated: 5,123 lines instead of 10,000",
    ),
    "cut inside a line": (
        text(edit(CHAIR, lambda t: t[: len(t) // 2].rpartition(",")[0])),
        "where the file is truncated: 5 columns instead of 6",
    ),
    "columns": (
        text(edit(CHAIR, lambda t: "\n".join(row.rpartition(",")[0] for row in t.splitlines()))),
        "chair_0001.txt, line 1: 5 columns instead of 6",
    ),
    "NaN": (
        text(edit(CHAIR, line_30("nan,0,0,0,0,1"))),
        "chair_0001.txt: 1 of 2,048 points have coordinates that are NaN",
    ),
    "no numbers": (text(edit(CHAIR, line_30("a,b,c,d,e,f"))), "chair_0001.txt: could not convert string"),
    "binary": (
        text(lambda f: (f / CHAIR).write_bytes(os.urandom(3000))),
        "chair_0001.txt is not a text file of numbers",
    ),
    "empty": (text(edit(CHAIR, lambda t: "")), "chair_0001.txt is empty"),
}


@pytest.mark.parametrize("kind", DAMAGED_TEXT)
def test_damaged_files_are_named_and_nothing_is_written(convert, tmp_path, kind):
    make, words = DAMAGED_TEXT[kind]
    source = make(tmp_path / "text")
    code, out, err = convert("modelnet40", source)
    assert code == 2
    assert not out
    assert len(err) == 2
    assert words in err[0]
    assert err[1].startswith("vn data: 1 of 4 shapes are missing or damaged, no pack was written")
    assert not convert.packs()
    if kind == "missing":
        code, out, err = convert("modelnet40", source, "--skip-damaged")
        assert code == 0
        assert "train     2 shapes" in out
        assert words in out


def hdf5_source(name, **arrays):
    def source(folder):
        published.modelnet_hdf5(folder)
        good = {"data": np.zeros((2, 2048, 3)), "label": [0, 1]}
        published.hdf5(folder / name, **good | arrays)
        return folder

    return source


def cut_hdf5(folder):
    file = published.modelnet_hdf5(folder) / "ply_data_train2.h5"
    file.write_bytes(file.read_bytes()[:5000])
    return folder


def cut_npz(folder):
    folder.mkdir()
    file = published.modelnet_npz(folder / "modelnet40.npz")
    file.write_bytes(file.read_bytes()[:2000])
    return file


def npz(**changes):
    def source(folder):
        folder.mkdir()
        return published.modelnet_npz(folder / "modelnet40.npz", **changes)

    return source


def missing_hdf5(folder):
    published.modelnet_hdf5(folder)
    (folder / "ply_data_train3.h5").unlink()
    (folder / "ply_data_test1.h5").unlink()
    return folder


def wrong_folder(folder):
    folder.mkdir()
    (folder / "holiday.jpg").write_text("")
    return folder


def off_with(name):
    def source(folder):
        published.modelnet_off(folder)
        (folder / name).mkdir()
        return folder

    return source


def off_without(*names):
    def source(folder):
        published.modelnet_off(folder)
        for name in names:
            shutil.rmtree(folder / name)
        return folder

    return source


def nan_hdf5(folder):
    data = np.stack([published.cloud(0, 2048), published.cloud(1, 2048)])
    data[1, 7, 0] = np.nan
    return hdf5_source("ply_data_train2.h5", data=data, normal=np.zeros((2, 2048, 3), dtype=np.float32))(folder)


REFUSED = {
    "nowhere": (lambda folder: folder, "there is no "),
    "wrong folder": (wrong_folder, "does not hold ModelNet40: looked there and one folder below for modelnet40.npz"),
    "list missing": (text(lambda f: (f / "modelnet40_test.txt").unlink()), "modelnet40_test.txt is missing"),
    "class missing": (
        text(edit("modelnet40_shape_names.txt", lambda t: t.replace("sofa\n", ""))),
        "modelnet40_shape_names.txt: the class list does not match ModelNet40's 40 classes (sofa)",
    ),
    "class order": (
        text(edit("modelnet40_shape_names.txt", lambda t: "\n".join(sorted(t.split(), reverse=True)))),
        "its order differs",
    ),
    "class unknown": (
        text(edit("modelnet40_train.txt", lambda t: t + "spaceship_0001\n")),
        "the class list does not match, 'spaceship_0001' is of none of its classes",
    ),
    "class folder": (off_with("spaceship"), "the class list does not match ModelNet40's 40 classes (spaceship)"),
    "HDF5 missing": (missing_hdf5, "is incomplete: missing ply_data_train3.h5, ply_data_test1.h5"),
    "HDF5 truncated": (cut_hdf5, "ply_data_train2.h5 is truncated or damaged"),
    "HDF5 columns": (
        hdf5_source("ply_data_train2.h5", data=np.zeros((2, 2048, 4))),
        "ply_data_train2.h5: 4 columns in 'data' instead of 3",
    ),
    "HDF5 labels": (hdf5_source("ply_data_train2.h5", label=[0, 40]), "labels go up to 40 for 40 classes"),
    "HDF5 lengths": (hdf5_source("ply_data_train2.h5", label=[0, 1, 2]), "its data sets differ in length"),
    "HDF5 NaN": (nan_hdf5, "1 of 14 shapes are missing or damaged"),
    "HDF5 axes": (hdf5_source("ply_data_train2.h5", data=np.zeros((2, 3))), "must be an array (shapes, points, 3)"),
    "HDF5 coincide": (
        hdf5_source("ply_data_train2.h5", normal=np.zeros((2, 2048, 3))),
        "2 of 14 shapes are missing or damaged",
    ),
    "HDF5 of parts": (published.shapenet_hdf5, "this is ShapeNet-Part: use `vn data shapenet-part`"),
    "HDF5 with parts": (
        hdf5_source("ply_data_train2.h5", pid=np.zeros((2, 2048))),
        "ply_data_train2.h5: this is ShapeNet-Part: use `vn data shapenet-part`",
    ),
    "npz truncated": (cut_npz, "modelnet40.npz is truncated, damaged or not an .npz file"),
    "npz without": (npz(scale=None), "modelnet40.npz has no array 'scale'"),
    "npz columns": (npz(x_train=np.zeros((2, 1024, 6))), "6 columns in 'x_train' instead of 3"),
    "npz classes": (npz(names=np.array(["a", "b"])), "the class list does not match"),
    "npz few labels": (npz(y_train=np.array([8])), "labels (1,) do not fit its clouds (2, 1024, 3)"),
    "npz few names": (npz(id_train=np.array(["chair_train"])), "names (1,) do not fit its clouds (2, 1024, 3)"),
    "npz unforeseen": (npz(scale=np.ones(7)), "modelnet40.npz is damaged: operands could not be broadcast"),
    "npz without a split": (
        npz(x_test=np.zeros((0, 1024, 3)), y_test=np.zeros(0, dtype=int), id_test=np.zeros(0, dtype=str)),
        "the array pack is incomplete: its test set has no shapes",
    ),
    "class list binary": (
        text(lambda f: (f / "modelnet40_shape_names.txt").write_bytes(b"chair\xff\xfe")),
        "modelnet40_shape_names.txt is damaged: it is not a text file",
    ),
    "meshes without a split": (off_without("chair/test", "sofa/train"), "no .off files in chair/test, sofa/train"),
    "npz labels": (npz(y_test=np.array([1, 99])), "labels go up to 99 for 40 classes"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_sources_that_cannot_be_used_get_one_line(convert, tmp_path, kind):
    make, words = REFUSED[kind]
    code, out, err = convert("modelnet40", make(tmp_path / "source"))
    assert code == 2
    assert not out
    assert words in err[-1]
    assert err[-1].startswith("vn data: ")
    assert len(err) == {"HDF5 NaN": 2, "HDF5 coincide": 3}.get(kind, 1)
    if "coincide" in kind:
        assert err[0].endswith("all points coincide")
    assert not convert.packs()


def part_source(name, change):
    def source(folder):
        published.shapenet_text(folder)
        edit(name, change)(folder)
        return folder

    return source


def short_parts(rows, columns):
    def source(folder):
        published.shapenet_hdf5(folder)
        data = np.stack([published.cloud(i, 2048) for i in range(4)])
        published.hdf5(folder / "ply_data_val0.h5", data, [4] * 4, pid=np.full((rows, columns), 12))
        return folder

    return source


def last_column(row, value):
    return " ".join([*row.split()[:-1], value])


REFUSED_PARTS = {
    "wrong folder": (published.modelnet_off, "does not hold ShapeNet-Part"),
    "categories": (
        part_source("synsetoffset2category.txt", lambda t: t.replace("Bag\t02773838", "Bag\t02773839")),
        "the class list does not match ShapeNet-Part's 16 categories (Bag)",
    ),
    "list": (
        part_source("train_test_split/shuffled_val_file_list.json", lambda t: t[:-3]),
        "shuffled_val_file_list.json is truncated or damaged",
    ),
    "listed": (
        part_source("train_test_split/shuffled_val_file_list.json", lambda t: json.dumps(["shape_data/123/x"])),
        "'123/x' is of none of its categories",
    ),
    "columns": (
        part_source("03001627/aa.txt", lambda t: "\n".join(row.rpartition(" ")[0] for row in t.splitlines())),
        "aa.txt, line 1: 6 columns instead of 7",
    ),
    "truncated": (
        part_source("03001627/aa.txt", lambda t: t[: len(t) // 2].rpartition(" ")[0]),
        "where the file is truncated",
    ),
    "NaN": (
        part_source("03001627/aa.txt", lambda t: "nan" + t.partition(" ")[1] + t.partition(" ")[2]),
        "NaN or infinite",
    ),
    "parts of fewer shapes": (short_parts(3, 2048), "ply_data_val0.h5: its data sets differ in length"),
    "parts of fewer points": (short_parts(4, 1024), "'pid' (4, 1024) and 4 labels do not fit its clouds (4, 2048, 3)"),
    "parts": (
        part_source("03001627/aa.txt", lambda t: "\n".join(last_column(row, "3") for row in t.splitlines())),
        "a point of Chair has part 3, which it does not have",
    ),
}


@pytest.mark.parametrize("kind", REFUSED_PARTS)
def test_shapenet_sources_that_cannot_be_used(convert, tmp_path, kind):
    make, words = REFUSED_PARTS[kind]
    code, out, err = convert("shapenet-part", make(tmp_path / "source"))
    assert code == 2
    assert not out
    assert any(words in line for line in err)
    assert len(err) <= 2
    assert not convert.packs()


def occ_source(name, **changes):
    def source(folder):
        file = published.occnet(folder) / "03001627" / "b" / name
        arrays = dict(np.load(file)) | changes
        np.savez(file, **arrays)
        return folder

    return source


def occ_without(folder):
    (published.occnet(folder) / "03001627" / "b" / "pointcloud.npz").unlink()
    return folder


def occ_empty(folder):
    for file in published.occnet(folder).glob("*/test.lst"):
        file.write_text("")
    return folder


REFUSED_OCCUPANCY = {
    "missing": (occ_without, "pointcloud.npz is missing"),
    "bits": (occ_source("points.npz", occupancies=np.zeros(10, dtype=np.uint8)), "10 occupancies for 2,501 points"),
    "columns": (occ_source("points.npz", points=np.zeros((2501, 2))), "2 columns in 'points' instead of 3"),
    "normals": (occ_source("pointcloud.npz", normals=np.ones((3000, 2))), "'normals' must have 3 columns"),
    "NaN normals": (occ_source("pointcloud.npz", normals=np.full((3000, 3), np.nan)), "pointcloud.npz, normals: 3,000"),
    "no test set": (occ_empty, "the OccNet format is incomplete: its test set has no shapes"),
    "NaN": (occ_source("pointcloud.npz", points=np.full((3000, 3), np.nan)), "3,000 of 3,000 points"),
    "few": (occ_source("pointcloud.npz", points=np.ones((5, 3)), normals=np.ones((5, 3))), "fewer than 1,000: lower"),
    "wrong folder": (wrong_folder, "has no files to read"),
}


@pytest.mark.parametrize("kind", REFUSED_OCCUPANCY)
def test_occupancy_sources_that_cannot_be_used(convert, tmp_path, kind):
    make, words = REFUSED_OCCUPANCY[kind]
    code, out, err = convert("occupancy", make(tmp_path / "source"), "--points", "1000", "--queries", "1000")
    assert code == 2
    assert not out
    assert any(words in line for line in err)
    assert len(err) <= 2
    assert not convert.packs()


def test_a_shape_that_was_repaired_in_place_is_read_again(convert, tmp_path):
    source = published.occnet(tmp_path / "source")
    file = source / "03001627" / "b" / "points.npz"
    good, before = file.read_bytes(), file.stat()
    for damage in (good[:1000], b"x" * len(good)):
        file.write_bytes(damage)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert convert("occupancy", source, "--points", "1000", "--queries", "1000")[0] == 2
    file.write_bytes(good)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # not even the time tells
    code, out, _ = convert("occupancy", source, "--points", "1000", "--queries", "1000")
    assert code == 0
    assert "damaged   none" in out
