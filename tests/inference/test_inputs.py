"""Clouds from whatever holds a shape: the same ones in every format, pose and unit."""

import numpy as np
import objects
import pytest
import torch
import trimesh

from vector_neurons import mesh
from vector_neurons.geometry import rotations
from vector_neurons.inference import read_cloud, read_mesh, sample_clouds
from vector_neurons.mesh import MeshError


def test_every_mesh_format_of_another_program_gives_the_same_cloud(tmp_path):
    table = objects.known()["table"]
    expected = read_cloud(table, 200)
    assert expected.shape == (200, 3)
    assert expected.norm(dim=-1).max() == pytest.approx(1)
    for suffix in ("stl", "obj", "ply", "off"):
        table.export(tmp_path / f"table.{suffix}")
        assert torch.allclose(read_cloud(tmp_path / f"table.{suffix}", 200), expected, atol=1e-5)
    # A .glb file is y up: trimesh writes coordinates as they are, so they are taken to be lying.
    table.export(tmp_path / "table.glb")
    x, y, z = expected.unbind(-1)
    assert torch.allclose(read_cloud(tmp_path / "table.glb", 200), torch.stack([x, -z, y], -1), atol=1e-5)
    assert torch.equal(read_cloud(trimesh.Scene([table]), 200), expected)


def test_every_form_of_a_cloud_gives_the_same_cloud(tmp_path):
    points = np.random.default_rng(0).normal(size=(500, 3))
    expected = read_cloud(points, 100)
    np.save(tmp_path / "a.npy", points)
    np.savetxt(tmp_path / "a.xyz", points, fmt="%.12f")
    header = (
        "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 500\nHEIGHT 1\nPOINTS 500\nDATA ascii"
    )
    np.savetxt(tmp_path / "a.pcd", points, header=header, comments="", fmt="%.9f")
    trimesh.PointCloud(points).export(tmp_path / "a.ply")
    sources = [tmp_path / "a.npy", str(tmp_path / "a.xyz"), tmp_path / "a.pcd", tmp_path / "a.ply"]
    for source in (*sources, torch.tensor(points), trimesh.PointCloud(points), mesh.read(tmp_path / "a.npy")):
        assert torch.allclose(read_cloud(source, 100), expected, atol=1e-5)


def test_poses_units_and_places_do_not_change_the_sample():
    chair = read_mesh(objects.known()["chair"])
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(1))[0].double()
    moved = mesh.Mesh(250 * chair.vertices @ R.mT + 1000, chair.faces)
    one, other = (sample_clouds(x, 128, count=2, dtype=torch.float64) for x in (chair, moved))
    assert torch.allclose(other.clouds, one.clouds @ R.mT, atol=1e-9)
    back = other.clouds[0] * other.size + other.center
    assert torch.allclose(back, 250 * (one.clouds[0] * one.size + one.center) @ R.mT + 1000, atol=1e-6)


def test_samples_differ_by_seed_and_do_not_share_points():
    table = read_mesh(objects.known()["table"])
    assert torch.equal(sample_clouds(table, 64, seed=3).clouds, sample_clouds(table, 64, seed=3).clouds)
    assert not torch.equal(sample_clouds(table, 64, seed=3).clouds, sample_clouds(table, 64, seed=4).clouds)
    cloud = torch.rand(128, 3, dtype=torch.float64)
    halves = sample_clouds(read_mesh(cloud), 64, count=2).clouds.flatten(0, 1)
    assert len(torch.unique(halves, dim=0)) == 128


def test_a_cloud_with_too_few_points_repeats_some_or_is_refused():
    cloud = torch.rand(60, 3)
    assert len(torch.unique(read_cloud(cloud, 100), dim=0)) == 60
    with pytest.raises(MeshError, match=r"^a cloud of 49 points is too small.*trained on 100, and needs 50 or more$"):
        read_cloud(cloud[:49], 100)


def test_a_cloud_is_taken_as_it_is_where_the_training_had_such_small_ones():
    cloud = read_mesh(torch.rand(60, 3))
    assert sample_clouds(cloud, 100, fewest=60, count=2).clouds.shape == (2, 60, 3)
    assert len(torch.unique(sample_clouds(cloud, 100, fewest=30).clouds[0], dim=0)) == 60
    assert sample_clouds(cloud, 40, fewest=30).clouds.shape == (1, 40, 3)
    with pytest.raises(MeshError, match=r"60 points is too small.*trained on 61 to 100, and needs 61 or more$"):
        sample_clouds(cloud, 100, fewest=61)


def test_normalizations():
    cloud = torch.rand(100, 3) * torch.tensor([4.0, 2.0, 1.0]) + 7
    assert read_cloud(cloud, 100, normalization="none").min() > 7
    cube = read_cloud(cloud, 100, normalization="unit_cube")
    assert (cube.amax(0) - cube.amin(0)).max() == pytest.approx(1)
    with pytest.raises(MeshError, match="normalization 'unit_egg' is unknown"):
        read_cloud(cloud, 100, normalization="unit_egg")


def test_nan_is_refused_or_dropped():
    cloud = torch.rand(100, 3)
    cloud[3, 1] = torch.nan
    with pytest.raises(MeshError, match="1 of 100 points have coordinates that are NaN"):
        read_cloud(cloud, 50)
    assert read_cloud(cloud, 50, drop_nan=True).isfinite().all()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.zeros((100, 3)), "all points of the scan coincide"),
        (np.outer(np.arange(100.0), [1, 2, 3]), "are on a line"),
        (np.zeros((100, 2)), "an array of points"),
        (np.zeros((0, 3)), "it has no points"),
        (object(), "cannot read a object"),
        (trimesh.Trimesh(np.zeros((3, 3)), [[0, 1, 2]], process=False), "has no area"),
    ],
)
def test_what_has_no_shape_is_refused(source, words):
    with pytest.raises(MeshError, match=words):
        read_cloud(source, 50)


def test_errors_name_the_file_once(tmp_path):
    (tmp_path / "empty.stl").write_bytes(b"")
    np.save(tmp_path / "few.npy", np.eye(3))
    for name in ("empty.stl", "few.npy", "none.ply", "part.step"):
        with pytest.raises(MeshError) as caught:
            read_cloud(tmp_path / name, 50)
        assert str(caught.value).count(name) == 1
        assert "\n" not in str(caught.value)
