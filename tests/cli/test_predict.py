"""`vn predict`: files, folders, formats of the answer, and files that cannot be used."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import objects
import pytest
import torch
import trimesh

import vector_neurons as vn
from vector_neurons.models import FrameNet, FrameNetSegmenter, Metadata

RUN = Path(__file__).parents[2] / "results" / "modelnet40-framenet-z"


@pytest.fixture
def files(tmp_path):
    """Three meshes and a cloud by trimesh, in a folder with a note that is none."""
    folder = tmp_path / "files"
    folder.mkdir()
    shapes = objects.known()
    for name, suffix in (("table", "stl"), ("chair", "obj"), ("bowl", "glb")):
        shapes[name].apply_scale(40).export(folder / f"{name}.{suffix}")
    np.save(folder / "bottle.npy", trimesh.sample.sample_surface(shapes["bottle"], 3000, seed=0)[0])
    (folder / "notes.txt").write_text("not a shape")
    return folder


def test_one_file_in_any_pose(files, vn_command):
    code, out, err = vn_command("predict", files / "chair.obj", "--model", RUN, "--poses", 4)
    assert code == 0, err
    first, *lines = out.splitlines()
    assert first.endswith("chair.obj: chair")
    assert len([line for line in lines if line.endswith(" %")]) == 5
    assert "of known shapes look less typical of their class" in out
    assert "4 random poses: the same answer" in out
    assert not err


def test_a_folder_is_a_table_that_fits_the_terminal(files, vn_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = vn_command("predict", files, "--model", RUN, "--batch-size", 3)
    assert code == 0, err
    assert all(len(line) <= 60 for line in out.splitlines())
    answers = {line.split()[0].rpartition("/")[2]: line.split()[1] for line in out.splitlines()[1:]}
    assert answers == {"bottle.npy": "bottle", "bowl.glb": "bowl", "chair.obj": "chair", "table.stl": "table"}
    assert "of 4 shapes" in err


def test_json_and_csv(files, vn_command):
    good, bad = files / "table.stl", files / "notes.txt"
    code, out, _ = vn_command("predict", good, bad, "--model", RUN, "--json", "--top", 2)
    assert code == 2
    table, note = json.loads(out)
    assert table["label"] == "table"
    assert table["top"][0][1] > 0.9
    assert len(table["top"]) == 2
    assert 0.05 < table["known"] <= 1
    assert "cannot read .txt" in note["error"]
    code, out, _ = vn_command("predict", good, bad, "--model", RUN, "--csv")
    assert code == 2
    table, note = csv.DictReader(io.StringIO(out))
    assert table["name_1"] == "table"
    assert float(table["probability_5"]) < 0.05
    assert "cannot read .txt" in note["error"]


@pytest.mark.filterwarnings("default::vector_neurons.mesh.MeshWarning")
def test_files_that_cannot_be_used_get_a_line_each(files, tmp_path, vn_command):
    (tmp_path / "empty.ply").write_bytes(b"")
    (tmp_path / "cut.stl").write_bytes((files / "table.stl").read_bytes()[:300])
    flat = trimesh.Trimesh([[0, 0, 0], [1, 1, 1], [2, 2, 2]], [[0, 1, 2]], process=False)
    flat.export(tmp_path / "flat.off")
    np.save(tmp_path / "five.npy", np.random.default_rng(0).normal(size=(5, 3)))
    holes = np.random.default_rng(0).normal(size=(900, 3))
    holes[7] = np.nan
    np.save(tmp_path / "holes.npy", holes)
    expected = {
        "empty.ply": "is empty",
        "cut.stl": "cut.stl",
        "flat.off": "has no area",
        "five.npy": "a cloud of 5 points is too small",
        "holes.npy": "NaN",
        "none.obj": "there is no file",
        "part.step": "cannot read .step",
    }
    names = [tmp_path / name for name in expected]
    code, out, err = vn_command("predict", *names, files / "bowl.glb", "--model", RUN)
    assert code == 2
    assert "bowl" in out
    lines = err.splitlines()
    assert len(lines) == len(expected)
    for line, (name, words) in zip(lines, expected.items(), strict=True):
        assert name in line
        assert words in line
    code, _, err = vn_command("predict", tmp_path / "holes.npy", "--model", RUN, "--drop-nan", "--poses", 1)
    assert code == 0
    assert err == f"vn predict: {tmp_path / 'holes.npy'}: 1 of 900 points are NaN or infinite and left out\n"


def test_a_model_without_calibration_says_so(files, tmp_path, vn_command):
    network = FrameNet(2, k=8, width=16)
    vn.save(network, tmp_path / "model", Metadata(classes=("a", "b"), points=64))
    code, out, err = vn_command("predict", files / "chair.obj", "--model", tmp_path / "model")
    assert code == 0
    assert "typical" not in out
    assert err.count("\n") == 1
    assert "is not calibrated" in err


@pytest.fixture
def parts_model(tmp_path):
    torch.manual_seed(0)
    network = FrameNetSegmenter(4, 2, k=8, width=16)
    vn.save(network, tmp_path / "parts-model", Metadata(classes=tuple("abcd"), categories=("Mug", "Lamp"), points=64))
    return tmp_path / "parts-model"


def test_parts_are_written(files, parts_model, tmp_path, vn_command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--model", parts_model, "--category", "lamp"]
    code, out, err = vn_command("predict", files / "chair.obj", *asked)
    assert code == 0, err
    assert "parts.ply: written" in out
    assert len(objects.load(tmp_path / "parts.ply").faces) == len(objects.known()["chair"].faces)
    (files / "table.obj").write_bytes((files / "chair.obj").read_bytes())
    code, out, err = vn_command("predict", files, *asked, "-o", tmp_path / "colored", "--csv")
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    written = sorted(path.name for path in (tmp_path / "colored").iterdir())
    assert written == ["4-table.obj.ply", "5-table.stl.ply", "bottle.ply", "bowl.ply", "chair.ply"]
    assert len(objects.load(rows[0]["written"]).vertices) == 3000


def test_mistakes_are_one_line(files, parts_model, tmp_path, vn_command):
    chair, empty = files / "chair.obj", tmp_path / "empty"
    empty.mkdir()
    cases = [
        ([], "which files?"),
        ([empty, "--model", RUN], "no files to read"),
        ([chair, "--model", "nothing"], "no pretrained model of this name"),
        ([chair, "--model", tmp_path], "is not a saved model"),
        ([chair, "--model", "reconstruction"], "vn reconstruct"),
        ([chair, "--model", parts_model], "needs the category of the shape: choose Mug, Lamp"),
        ([chair, "--model", parts_model, "--category", "mug", "-o", tmp_path / "no" / "a.ply"], "there is no folder"),
        ([files, "--model", parts_model, "--category", "mug", "-o", chair], "give a folder"),
        ([chair, "--model", RUN, "--category", "mug"], "this model classifies"),
        ([chair, "--model", RUN, "--json", "--csv"], "choose --json or --csv"),
        ([chair, "--model", RUN, "--top", 0], "--top takes 1 or more"),
        ([chair, "--model", RUN, "--poses", -1], "--poses takes 0 to"),
        ([chair, "--model", RUN, "--batch-size", 0], "--batch-size takes 1 or more"),
        ([chair, "--model", RUN, "--threads", 0], "--threads takes 1 to"),
    ]
    for arguments, words in cases:
        code, _, err = vn_command("predict", *arguments)
        assert code == 2, arguments
        assert words in err
        assert len(err.strip().splitlines()) == 1
