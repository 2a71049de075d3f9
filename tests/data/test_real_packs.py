"""The real packs, where they are (`VN_SHARED_DATA`): complete, upright, in the unit ball, labels right."""

from pathlib import Path

import numpy as np
import published
import pytest
import raycast
import torch

from vector_neurons.data import ModelNet40, Occupancy, ShapeNetPart, modelnet40, occupancy, shapenet_part
from vector_neurons.geometry.inside import inside
from vector_neurons.mesh import Mesh

pytestmark = [
    pytest.mark.skipif(not published.REAL.is_dir(), reason=f"no {published.REAL}: set VN_SHARED_DATA"),
    pytest.mark.xdist_group("packs"),  # converted once
]


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Packs of the two labeled sets, converted once for a run."""
    root = tmp_path_factory.mktemp("packs")
    modelnet40.convert(published.REAL, root)
    shapenet_part.convert(published.REAL, root)
    yield root
    for file in root.iterdir():
        file.unlink()  # some 400 MB


def every(data):
    return data.batch(torch.arange(len(data))).points


def assert_unit_ball(points):
    torch.testing.assert_close(points.mean(1), torch.zeros(len(points), 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(points.norm(dim=-1).amax(1), torch.ones(len(points)), atol=1e-5, rtol=0)


def assert_tables_stand(points):
    """A table's top is most of its points, and it is above the middle of its height."""
    z = points[..., 2]
    height = (z - z.amin(1, keepdim=True)) / (z.amax(1, keepdim=True) - z.amin(1, keepdim=True))
    upper = (height > 0.5).float().mean(1)
    assert (upper > 0.5).float().mean() > 0.8
    assert upper.mean() > 0.6
    for axis in (0, 1):  # along the other axes, tables are balanced
        x = points[..., axis]
        width = (x - x.amin(1, keepdim=True)) / (x.amax(1, keepdim=True) - x.amin(1, keepdim=True))
        assert ((width > 0.5).float().mean(1).mean() - 0.5).abs() < 0.05


def test_modelnet40_is_complete(root):
    source = np.load(published.REAL / "modelnet40.npz")
    train, test, whole = (ModelNet40(split, root) for split in ("train", "test", "train+val"))
    assert (len(whole), len(test)) == (9843, 2468)
    assert len(train) + len(ModelNet40("val", root)) == 9843
    assert whole.classes == tuple(source["names"].tolist())
    for data, split in ((whole, "train"), (test, "test")):
        assert torch.bincount(data.labels).tolist() == np.bincount(source[f"y_{split}"]).tolist()
        assert data.pack.about["ids"][split] == source[f"id_{split}"].tolist()
    points = every(test)
    assert_unit_ball(points)
    assert_tables_stand(points[test.labels == test.classes.index("table")])
    # Distances inside a shape are those of the source: nothing was mirrored or stretched.
    raw = torch.from_numpy(source["x_test"][7].astype(np.float32))
    ratio = torch.pdist(raw)[:1000] / torch.pdist(points[7])[:1000]
    torch.testing.assert_close(ratio, ratio.mean().expand(1000), rtol=1e-3, atol=0)
    assert (
        torch.linalg.det((raw[:4] - raw[3])[:3]).sign() == torch.linalg.det((points[7][:4] - points[7][3])[:3]).sign()
    )


def test_shapenet_part_is_complete(root):
    source = np.load(published.REAL / "shapenet_part.npz")
    sets = {split: ShapeNetPart(split, root) for split in ("train", "val", "test")}
    assert [len(data) for data in sets.values()] == [12137, 1870, 2874]
    for split, data in sets.items():
        assert torch.bincount(data.labels).tolist() == np.bincount(source[f"y_{split}"]).tolist()
    assert sets["train"].classes == tuple(source["names"].tolist())
    assert tuple(source["synset"].tolist()) == shapenet_part.SYNSETS
    assert len(sets["train"].pack.about["overlap"]["train and test"]) == 23
    test = sets["test"]
    batch = test.batch(torch.arange(len(test)))
    assert_unit_ball(batch.points)
    assert_tables_stand(batch.points[test.labels == test.classes.index("Table")])
    assert torch.equal(batch.parts, torch.from_numpy(source["pid_test"].astype(np.int64)))
    # Every category has the parts it should have, and over the whole set all of them.
    found = torch.zeros_like(test.parts_of)
    for data in sets.values():
        stored = data.pack.arrays["parts"][data.rows].long()
        found[data.labels[:, None].expand_as(stored), stored] = True
    assert torch.equal(found, test.parts_of)


def test_overlap_of_shapenet_part_can_be_removed(tmp_path):
    shapenet_part.convert(published.REAL, tmp_path, points=8, drop_overlap=True)
    sets = {split: ShapeNetPart(split, tmp_path, points=8) for split in ("train", "val", "test")}
    ids = {split: set(data.pack.about["ids"][split]) for split, data in sets.items()}
    assert not ids["train"] & ids["test"]
    assert not ids["train"] & ids["val"]
    assert not ids["val"] & ids["test"]
    assert len(sets["test"]) == 2874
    assert 12137 - 32 <= len(sets["train"]) <= 12137 - 23
    assert len(sets["val"]) == 1867


@pytest.mark.slow
def test_scanned_objects_are_complete(tmp_path):
    occupancy.convert(published.REAL / "scanned_objects.npz", tmp_path, points=64, queries=16, near=0)
    sets = {split: Occupancy(split, tmp_path, points=64, queries=16) for split in ("train", "val", "test")}
    assert [len(data) for data in sets.values()] == [736, 59, 136]
    assert sets["train"].pack.arrays["watertight"].all()
    points = every(sets["test"])
    torch.testing.assert_close(points.norm(dim=-1).amax(1), torch.ones(136), atol=1e-5, rtol=0)
    torch.testing.assert_close(points.mean(1), torch.zeros(136, 3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [0, 311, 620, 930])
def test_occupancy_of_scanned_objects_agrees_with_ray_casting(number):
    vertices, faces, v_end, f_end, _ = occupancy._load_scans(Path(published.REAL / "scanned_objects.npz"))
    v, f = (slice(ends[number - 1] if number else 0, ends[number]) for ends in (v_end, f_end))
    mesh = Mesh(torch.from_numpy(vertices[v]), torch.from_numpy(faces[f]))
    queries = np.random.default_rng(number).uniform(-0.55, 0.55, (10_000, 3))
    crossings = raycast.inside(queries, vertices[v], faces[f], seed=number)
    ours = inside(torch.from_numpy(queries), mesh.vertices, mesh.faces).numpy()
    assert (ours == crossings).mean() >= 0.999
    assert crossings.any()
