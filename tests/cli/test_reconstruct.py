"""`vn train reconstruction` and `vn reconstruct`: from a scan to a file."""

import errno
import json
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
from pebble import pebble

from vector_neurons import mesh
from vector_neurons.cli import reconstruct
from vector_neurons.data import Shapes
from vector_neurons.data.augment import visible
from vector_neurons.mesh import writing
from vector_neurons.models import DGCNN, OccupancyNetwork, store
from vector_neurons.tasks import encode_scan
from vector_neurons.training import DataConfig, checkpoint, factory

FLAGS = ["--size", 21, "--epochs", 1, "--points", 80, "--stored-points", 128, "--queries", 128, "--k", 8]
FLAGS += ["--batch-size", 7, "--code", 24, "--encoder-width", 24, "--decoder-width", 16, "--model", "pointnet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A network as `vn train` leaves it behind."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    checkpoint.write(folder / "best", pebble(), pebble().metadata)
    return folder


@pytest.fixture
def scan(tmp_path):
    """A ball in millimeters, far from the origin."""
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(500, 3, generator=generator), dim=-1)
    file = tmp_path / "scan.npy"
    np.save(file, 250 * points.numpy() + [1000, 0, -3000])
    return file


def test_train_reconstruction(tmp_path, vn_command):
    code, out, err = vn_command("train", "reconstruction", "--data", "shapes", *FLAGS, "--out", tmp_path / "run")
    assert code == 0, err
    assert "iou_0.2" in out
    code, out, err = vn_command("evaluate", tmp_path / "run", "--rotations", "SO3", "--meshes", 1, "--save")
    assert code == 0, err
    assert "normal_consistency" in out
    (saved,) = json.loads((tmp_path / "run" / "meshes.json").read_text())["SO3"]
    assert saved["shapes"] == 1


@pytest.mark.parametrize("suffix", [".ply", ".obj", ".stl", ".glb"])
def test_a_scan_becomes_a_closed_mesh_where_it_was(run, scan, tmp_path, vn_command, suffix):
    out = tmp_path / f"out{suffix}"
    code, said, err = vn_command("reconstruct", scan, "-o", out, "--model", run, "--resolution", 32)
    assert code == 0, err
    assert "watertight" in said
    assert " s\n" in said
    made = mesh.read(out)
    assert mesh.watertight(made)
    low, high = made.vertices.amin(0), made.vertices.amax(0)
    assert torch.allclose((low + high) / 2, torch.tensor([1000.0, 0, -3000]).double(), atol=150)
    assert 100 < (high - low).max() < 700


def test_fewer_faces(run, scan, tmp_path, vn_command):
    out = tmp_path / "out.ply"
    asked = ["--model", run, "--resolution", 32, "--faces", 200]
    assert vn_command("reconstruct", scan, "-o", out, *asked)[0] == 0
    assert len(mesh.read(out).faces) <= 220


def test_a_mesh_is_sampled(run, tmp_path, vn_command):
    ball = mesh.extract(lambda x: 1 - x.norm(dim=-1), low=-1.2, high=1.2, start=16, resolution=16)
    mesh.write(ball, tmp_path / "ball.off")
    asked = ["--model", run, "--resolution", 32]
    code, out, err = vn_command("reconstruct", tmp_path / "ball.off", "-o", tmp_path / "out.ply", *asked)
    assert code == 0, err
    assert "from 80 of 10,000 points" in out


def test_mistakes_are_one_line(run, scan, tmp_path, vn_command):
    good = [scan, "-o", tmp_path / "out.ply", "--model", run]
    store.save(DGCNN(3, widths=(12,), embedding=24, hidden=(8,)), tmp_path / "other")
    few = tmp_path / "few.npy"
    np.save(few, np.eye(3))
    cases = [
        ([tmp_path / "none.ply", *good[1:]], "there is no file"),
        ([scan, "-o", tmp_path / "out.png", "--model", run], "cannot write a mesh"),
        ([scan, "-o", tmp_path / "no" / "out.ply", "--model", run], "there is no folder"),
        ([scan, "-o", tmp_path / "out.ply", "--model", tmp_path], "is not a saved model"),
        ([scan, "-o", tmp_path / "out.ply", "--model", tmp_path / "other"], "holds a DGCNN"),
        ([*good, "--resolution", 50], "--resolution takes 32, 64, 128, 256, 512, 1024, got 50"),
        ([*good, "--threshold", 2], "between 0 and 1"),
        ([*good, "--threshold", 0], "between 0 and 1"),
        ([*good, "--threads", 0], "--threads takes 1 to"),
        ([*good, "--resolution", 1048576], "--resolution takes 32, 64"),
        ([*good, "--refine", -1], "0 or more"),
        ([few, *good[1:]], "at least 20 of them"),
    ]
    for arguments, words in cases:
        code, _, err = vn_command("reconstruct", *arguments)
        assert code == 2, arguments
        assert words in err
        assert len(err.strip().splitlines()) == 1


def test_nothing_inside_is_said(run, scan, tmp_path, vn_command):
    asked = ["--model", run, "--threshold", 0.999999, "--resolution", 32]
    code, _, err = vn_command("reconstruct", scan, "-o", tmp_path / "out.ply", *asked)
    assert code == 1
    assert "the mesh is empty" in err
    assert not (tmp_path / "out.ply").exists()


def test_far_from_the_origin_a_warning_says_what_is_lost(run, scan, tmp_path, vn_command):
    np.save(tmp_path / "far.npy", np.load(scan) + 1e8)
    for suffix, warned in ((".stl", True), (".obj", False)):
        asked = ["-o", tmp_path / f"out{suffix}", "--model", run, "--resolution", 32]
        code, _, err = vn_command("reconstruct", tmp_path / "far.npy", *asked)
        assert code == 0
        assert ("keeps seven digits" in err) == warned


def test_an_authors_checkpoint_reconstructs_in_its_own_frame(scan, tmp_path, vn_command):
    """Theirs have a longest side of 1, where ours have a radius of 1."""
    from vector_neurons.tasks import reconstruct

    model = pebble()
    model.metadata = store.Metadata(normalization="unit_cube", points=80, threshold=0.5)
    points = torch.from_numpy(np.load(scan))
    cube, ball = reconstruct(model, points, resolution=32), reconstruct(pebble(), points, resolution=32)
    assert mesh.watertight(cube)
    sizes = [(m.vertices.amax(0) - m.vertices.amin(0)).max().item() for m in (cube, ball)]
    assert sizes[0] / sizes[1] == pytest.approx(2, rel=0.35)  # the same field in a frame of twice the units
    model.metadata = store.Metadata(normalization="none")
    with pytest.raises(ValueError, match="normalization 'none' of the model"):
        reconstruct(model, points)


def test_half_precision_weights_are_taken(scan, tmp_path, vn_command):
    store.save(pebble().half(), tmp_path / "half", pebble().metadata)
    asked = ["-o", tmp_path / "out.ply", "--model", tmp_path / "half", "--resolution", 32]
    assert vn_command("reconstruct", scan, *asked)[0] == 0
    assert next(OccupancyNetwork(code=24, hidden=24).parameters()).dtype == torch.float32


def test_shapes_are_asked_uniformly_in_a_test():
    """Near queries are within a few hundredths of the surface, uniform ones mostly are not."""
    clouds = DataConfig(size=21, points=60, stored_points=400, queries=64, near_fraction=1.0)
    share = {}
    for split in ("train", "test"):
        cloud = factory.open_dataset(clouds, split).clouds  # type: ignore[attr-defined]
        share[split] = (torch.cdist(cloud.queries, cloud.points).amin(-1) < 0.15).float().mean().item()
    assert share["train"] > 0.9
    assert share["test"] < 0.6
    with pytest.raises(ValueError, match="near between 0 and 1"):
        Shapes("test", size=2, near=2.0)


def test_the_network_of_the_package_rebuilds_a_ball(tmp_path, vn_command):
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(3000, 3, generator=generator), dim=-1)
    points = points + 0.01 * torch.randn(3000, 3, generator=generator)
    np.save(tmp_path / "scan.npy", 20 * points.numpy() + 5)
    asked = ["-o", tmp_path / "out.ply", "--resolution", 32]
    code, said, err = vn_command("reconstruct", tmp_path / "scan.npy", *asked)
    assert code == 0, err
    assert " watertight" in said
    ball = mesh.extract(lambda x: 20 - (x - 5).norm(dim=-1), low=-20.0, high=30.0, resolution=32)
    assert mesh.volume_iou(mesh.read(tmp_path / "out.ply"), ball, generator=generator) > 0.9


def test_the_network_of_the_package_rebuilds_what_one_camera_sees():
    """A third of the volume at least, on average over 14 kinds: the other side is a guess."""
    model, data, found = store.pretrained("reconstruction"), Shapes("test", size=14, points=8192), []
    for index in range(14):
        generator = torch.Generator().manual_seed(index)
        points = data[index].points
        camera = 3 * torch.nn.functional.normalize(torch.randn(1, 3, generator=generator), dim=-1)
        points = points[visible(points, camera)][:3000]
        points = points + 0.01 * torch.randn(points.shape, generator=generator)
        scan = encode_scan(model, points.double())
        queries = 2.2 * torch.rand(4000, 3, generator=generator) - 1.1
        with torch.no_grad():
            logits = model.decode(scan.code, ((queries - scan.center) / scan.size).float()[None])[0]
        inside = logits.sigmoid() > model.metadata.threshold
        found.append(mesh.iou(inside, data.inside(index, queries)).item())
    assert sum(found) / len(found) > 0.3


def test_a_model_that_the_package_does_not_have():
    with pytest.raises(store.StoreError, match="model 'chairs': choose classification or reconstruction"):
        store.pretrained("chairs")


def degenerate(name):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(300, 3, dtype=torch.float64, generator=generator)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))[0]
    return {
        "one-place": torch.full((300, 3), 7.0, dtype=torch.float64),
        "unresolved": 1e6 + 1e-9 * points,
        "few-points": points[:5].repeat(60, 1),
        "line": points[:, :1] * turn[0] + 100,
        "plane": points * torch.tensor([1.0, 1.0, 0.0]) @ turn + 3,
    }[name]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one-place", "all points of the scan coincide"),
        ("unresolved", "float64 cannot tell its points apart: move it to the origin"),
        ("few-points", "the scan has only 5 distinct points"),
        ("line", "all points of the scan are on a line"),
    ],
)
def test_scans_without_a_shape_are_refused(run, tmp_path, vn_command, name, words):
    np.save(tmp_path / "scan.npy", degenerate(name).numpy())
    code, said, err = vn_command("reconstruct", tmp_path / "scan.npy", "-o", tmp_path / "out.ply", "--model", run)
    assert (code, said) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.ply").exists()


def test_a_flat_scan_is_warned_of(run, tmp_path, vn_command):
    np.save(tmp_path / "scan.npy", degenerate("plane").numpy())
    asked = ["-o", tmp_path / "out.ply", "--model", run, "--resolution", 32]
    code, _, err = vn_command("reconstruct", tmp_path / "scan.npy", *asked)
    assert code == 0
    assert "vn reconstruct: all points of the scan lie in a plane: what is inside is a guess\n" in err


@pytest.fixture
def far(scan, tmp_path):
    """The ball, of size 1, a million away from the origin: float32 has sixteen places along its diameter."""
    file = tmp_path / "far.npy"
    np.save(file, (np.load(scan) - [1000, 0, -3000]) / 500 + 1e6)
    return file


def test_a_ply_far_from_the_origin_is_in_double_precision(run, far, tmp_path, vn_command):
    out = tmp_path / "out.ply"
    code, said, err = vn_command("reconstruct", far, "-o", out, "--model", run, "--resolution", 64)
    assert code == 0, err
    assert "digits" not in err
    made = mesh.read(out)
    assert " watertight" in said
    assert mesh.watertight(made)
    assert f"{len(torch.unique(made.vertices, dim=0)):,} vertices" in said
    assert b"property double x" in out.read_bytes()[:200]


@pytest.mark.parametrize("suffix", [".stl", ".glb"])
def test_a_file_that_would_lose_faces_is_refused(run, far, tmp_path, vn_command, suffix):
    before = sorted(tmp_path.iterdir())
    asked = ["-o", tmp_path / f"out{suffix}", "--model", run, "--resolution", 64]
    code, said, err = vn_command("reconstruct", far, *asked)
    assert (code, said) == (2, "")
    assert "write .ply" in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_small_numbers_with_few_decimals_are_refused(run, scan, tmp_path, vn_command):
    np.save(tmp_path / "tiny.npy", (np.load(scan) - [1000, 0, -3000]) * 1e-10)
    for suffix, expected in ((".obj", 2), (".ply", 0)):
        asked = ["-o", tmp_path / f"out{suffix}", "--model", run, "--resolution", 32]
        assert vn_command("reconstruct", tmp_path / "tiny.npy", *asked)[0] == expected


def test_files_that_cannot_be_written_to(run, scan, tmp_path, vn_command, monkeypatch):
    (tmp_path / "folder.ply").mkdir()
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path.name != "closed")
    cases = [
        (tmp_path / "folder.ply", "it is a folder"),
        (tmp_path / f"{300 * 'x'}.ply", "file names have at most 255 bytes"),
        (tmp_path / f"{100 * '长'}.ply", "file names have at most 255 bytes"),
        (tmp_path / (300 * "x") / "out.ply", "File name too long"),
        (tmp_path / "closed" / "out.ply", "no permission to write"),
    ]
    for out, words in cases:
        code, said, err = vn_command("reconstruct", scan, "-o", out, "--model", run)
        assert (code, said) == (2, "")
        assert words in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_is_full_leaves_the_old_file(run, scan, tmp_path, vn_command, monkeypatch, error):
    out = tmp_path / "out.ply"
    out.write_text("old")
    before = sorted(tmp_path.iterdir())

    def full(path, content):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(writing, "write_file", full)
    code, said, err = vn_command("reconstruct", scan, "-o", out, "--model", run, "--resolution", 32)
    assert (code, said, err) == (2, "", f"vn reconstruct: cannot write {out}: {os.strerror(error)}\n")
    assert out.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == before


def test_far_more_threads_than_processors_are_refused(run, scan, tmp_path, vn_command):
    before = torch.get_num_threads()
    for threads in (100_000, -1):
        asked = ["-o", tmp_path / "out.ply", "--model", run, "--threads", threads]
        code, _, err = vn_command("reconstruct", scan, *asked)
        assert code == 2
        assert "--threads takes 1 to 1,024" in err
    assert torch.get_num_threads() == before


def test_doubts_are_printed_and_strict_fails(run, scan, tmp_path, vn_command):
    """The pebble is smaller than the ball: its surface is far from all points."""
    asked = ["reconstruct", scan, "-o", tmp_path / "out.ply", "--model", run, "--resolution", 32]
    code, said, err = vn_command(*asked)
    assert code == 0
    assert "1 body, genus 0; 100.0% of the surface and 100.0% of the points are farther from the other" in said
    assert "100% of the surface is a guess" in err
    assert "100% of the points are farther than 5% of the size from the surface" in err
    assert vn_command(*asked, "--strict")[0] == 1
    assert (tmp_path / "out.ply").exists()


def test_bodies_and_thin_parts_are_doubtful():
    good = mesh.Quality(invented=0.0, missed=0.0, bodies=1, genus=0, thinnest=float("inf"))
    surface = mesh.Mesh(torch.eye(3), torch.tensor([[0, 1, 2]]))
    assert reconstruct._doubts(good, surface, torch.eye(3), 0.1) == []
    two, thin = (replace(good, **change) for change in ({"bodies": 2}, {"thinnest": 0.15}))
    assert reconstruct._doubts(two, surface, torch.eye(3), 0.1) == ["the mesh has 2 bodies: --keep largest keeps one"]
    (line,) = reconstruct._doubts(thin, surface, torch.eye(3), 0.1)
    assert line == "the thinnest part is 1.5 cells of the grid thick: raise --resolution"


def test_one_body_is_kept(run, scan, tmp_path, vn_command, monkeypatch):
    def two_bodies(*_, **__):
        ball = mesh.extract(lambda x: 1 - x.norm(dim=-1), low=-1.2, high=1.2, start=16, resolution=16)
        small = ball.vertices[ball.faces[:1].flatten()] + 9
        faces = torch.tensor([[0, 1, 2], [0, 2, 1]]) + len(ball.vertices)
        return mesh.Mesh(torch.cat([ball.vertices, small]), torch.cat([ball.faces, faces]))

    monkeypatch.setattr(reconstruct, "reconstruct", two_bodies)
    asked = ["reconstruct", scan, "-o", tmp_path / "out.ply", "--model", run]
    _, said, err = vn_command(*asked)
    assert "2 bodies" in said
    assert "the mesh has 2 bodies: --keep largest keeps one" in err
    _, said, err = vn_command(*asked, "--keep", "largest")
    assert "1 body" in said
    assert "bodies" not in err


def test_confidence_is_read_by_another_program(run, scan, tmp_path, vn_command):
    assert vn_command("reconstruct", scan, "-o", tmp_path / "out.ply", "--model", run, "--resolution", 32)[0] == 0
    ours = mesh.read(tmp_path / "out.ply")
    theirs: Any = trimesh.load(tmp_path / "out.ply", process=False)
    np.testing.assert_allclose(theirs.vertices, ours.vertices)
    assert np.array_equal(theirs.faces, ours.faces)
    found = theirs.metadata["_ply_raw"]["vertex"]["data"]["quality"]
    assert found.shape == (len(ours.vertices),)
    assert ((found >= 0) & (found <= 1)).all()
