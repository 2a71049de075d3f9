"""`vn embed`, `vn similar` and `vn align` on files that trimesh wrote."""

import json

import numpy as np
import pytest
import torch
import trimesh
from small_classifier import bracket, small_classifier

import vector_neurons as vn
from vector_neurons import mesh


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    vn.save(small_classifier(), folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "shapes"
    (folder / "cones").mkdir(parents=True)
    bracket().export(folder / "bracket.ply")
    trimesh.creation.box((1, 2, 3)).export(folder / "box.stl")
    trimesh.creation.cone(1.0, 3.0).export(folder / "cones" / "cone.obj")
    return folder


@pytest.fixture
def index(folder, network, tmp_path, vn_command):
    code, out, err = vn_command("embed", folder, "-o", tmp_path / "index", "--model", network)
    assert code == 0, err
    assert "3 shapes" in out
    return tmp_path / "index"


@pytest.fixture
def rotated(tmp_path):
    """The bracket in inches, in another pose."""
    shape = bracket().apply_transform(trimesh.transformations.random_rotation_matrix(np.array([0.3, 0.6, 0.2])))
    file = tmp_path / "rotated.off"
    shape.apply_scale(25.4).export(file)
    return file


def test_a_rotated_copy_is_found(index, rotated, vn_command):
    code, out, err = vn_command("similar", rotated, "--index", index)
    assert code == 0, err
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0] == "1.000  bracket.ply"
    assert any(line.endswith("cones/cone.obj") for line in lines)


def test_json(index, rotated, vn_command):
    code, out, err = vn_command("similar", rotated, "--index", index, "--top", 1, "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert found["file"] == "bracket.ply"
    assert found["similarity"] == pytest.approx(1, abs=1e-4)


def test_files_that_cannot_be_read_are_named_and_skipped(folder, network, tmp_path, vn_command):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "damaged.stl").write_bytes((folder / "box.stl").read_bytes()[:200])
    (bad / "good.stl").write_bytes((folder / "box.stl").read_bytes())
    code, out, err = vn_command("embed", bad, "-o", tmp_path / "index", "--model", network)
    assert code == 2
    assert "1 shapes, 1 could not be read" in out
    said = [line for line in err.splitlines() if not line.startswith("read ")]
    assert len(said) == 1
    assert "damaged.stl" in said[0]
    assert (tmp_path / "index" / "files.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("embed", "nowhere", "-o", "index"), "there is no folder nowhere"),
        (("embed", "empty", "-o", "index"), "no files to read in empty"),
        (("embed", "empty", "-o", "file"), "it is a file"),
        (("embed", "empty", "-o", "index", "--batch-size", 0), "--batch-size takes 1"),
        (("embed", "empty", "-o", "index", "--model", "no/model"), "no/model"),
        (("similar", "file", "--index", "nowhere"), "there is no folder nowhere"),
        (("similar", "file", "--index", "empty"), "not an index"),
        (("similar", "file", "--index", "empty", "--top", 0), "--top takes 1"),
        (("align", "triangle.ply", "triangle.ply", "-o", "out.txt"), "cannot write a mesh to out.txt"),
        (("align", "triangle.ply", "triangle.ply", "--overlap", 0), "overlap is a fraction"),
        (("align", "a.ply", "b.ply"), "there is no file a.ply"),
    ],
)
def test_mistakes_give_one_line(arguments, said, network, tmp_path, monkeypatch, vn_command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    mesh.write(mesh.Mesh(torch.eye(3), torch.tensor([[0, 1, 2]])), tmp_path / "triangle.ply")
    model = [] if "--model" in arguments or arguments[0] == "similar" else ["--model", network]
    code, _, err = vn_command(*arguments, *model)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "index").exists()


def test_an_index_of_another_model_is_refused(index, rotated, tmp_path, vn_command):
    vn.save(small_classifier(seed=1), tmp_path / "other")
    code, _, err = vn_command("similar", rotated, "--index", index, "--model", tmp_path / "other")
    assert code == 2
    assert "other weights" in err
    assert len(err.splitlines()) == 1


def test_align_moves_a_mesh_and_keeps_its_faces(folder, network, rotated, tmp_path, vn_command):
    out = tmp_path / "aligned.ply"
    code, said, err = vn_command("align", folder / "bracket.ply", rotated, "-o", out, "--scale", "--model", network)
    assert code == 0, err
    assert "rotation by " in said
    assert "scale 25." in said
    assert "ambiguous" not in said
    assert "badly" not in said
    moved, wanted = mesh.read(out), mesh.read(rotated)
    assert torch.equal(moved.faces, wanted.faces)
    assert torch.allclose(moved.vertices, wanted.vertices, atol=1.0)  # of 100


def test_align_says_that_units_differ(folder, network, rotated, vn_command):
    code, said, err = vn_command("align", folder / "bracket.ply", rotated, "--model", network)
    assert code == 0, err
    assert "try --scale" in said


def test_align_says_that_a_cone_has_no_single_pose(folder, network, tmp_path, vn_command):
    cone = folder / "cones" / "cone.obj"
    code, said, err = vn_command("align", cone, cone, "--model", network)
    assert code == 0, err
    assert "ambiguous" in said
    assert "any angle about" in said


def test_a_cloud_is_not_written_as_a_mesh(network, tmp_path, vn_command):
    np.save(tmp_path / "cloud.npy", np.random.default_rng(0).normal(size=(400, 3)))
    arguments = ("align", tmp_path / "cloud.npy", tmp_path / "cloud.npy", "--model", network)
    code, _, err = vn_command(*arguments, "-o", tmp_path / "out.stl")
    assert code == 2
    assert "cannot write a cloud to" in err
    code, _, err = vn_command(*arguments, "-o", tmp_path / "out.ply")
    assert code == 0, err
    assert len(mesh.read(tmp_path / "out.ply").vertices) == 400
