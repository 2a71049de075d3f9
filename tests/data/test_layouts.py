"""Every published layout is read, from a small folder that is written in it."""

import numpy as np
import published
import pytest
import torch

from vector_neurons.data import DataError, ModelNet40, Occupancy, ShapeNetPart, modelnet40, occupancy, shapenet_part
from vector_neurons.data.pack import open_pack
from vector_neurons.geometry.sampling import unit_ball


def upright(points):
    """y-up to z-up, spelled out."""
    x, y, z = np.moveaxis(np.asarray(points, dtype=np.float64), -1, 0)
    return torch.from_numpy(np.stack([x, -z, y], axis=-1))


def assert_same_cloud(found, source, atol=1e-5):
    torch.testing.assert_close(found.double(), unit_ball(upright(source)), atol=atol, rtol=0)


def test_modelnet_text(tmp_path):
    source = published.modelnet_text(tmp_path / "from" / "modelnet40_normal_resampled")
    modelnet40.convert(source, tmp_path, points=1500)
    train = ModelNet40("train+val", tmp_path, normals=True)
    assert [train.classes[i] for i in train.labels] == ["chair", "table", "night_stand"]
    rows = published.cloud(1, 10_000, 6)[:1024]
    assert_same_cloud(train[1].points, rows[:, :3])
    torch.testing.assert_close(train[1].normals.double(), upright(rows[:, 3:]), atol=1e-5, rtol=0)
    assert len(ModelNet40("test", tmp_path)) == 1
    assert open_pack("modelnet40", tmp_path).arrays["points"].shape == (4, 1500, 3)
    modelnet40.convert(source.parent, tmp_path, points=1024)  # the folder above is as good


def test_modelnet_hdf5(tmp_path):
    modelnet40.convert(published.modelnet_hdf5(tmp_path / "modelnet40_ply_hdf5_2048"), tmp_path)
    train, test = (ModelNet40(split, tmp_path, points=2048, normals=True) for split in ("train+val", "test"))
    assert train.labels.tolist() == [8, 0, 8, 1, 8, 2, 8, 3, 8, 4]
    assert test.labels.tolist() == [8, 0, 8, 1]
    assert_same_cloud(test[3].points, published.cloud(111, 2048))
    assert train[0].normals.shape == (2048, 3)


def test_modelnet_meshes(tmp_path):
    modelnet40.convert(published.modelnet_off(tmp_path / "ModelNet40"), tmp_path, points=512)
    test = ModelNet40("test", tmp_path, points=512, normals=True)
    assert test.labels.tolist() == list(range(40))
    box = test[5]
    extent = box.points.amax(0) - box.points.amin(0)
    torch.testing.assert_close(extent / extent[2], torch.tensor([1.0, 2.0, 3.0]) / 3, atol=0.02, rtol=0)  # z stays up
    assert torch.equal(box.normals.abs().sum(-1), torch.ones(512))
    assert not torch.equal(test[5].points, test[6].points)  # each file has its own draw
    again = modelnet40.convert(tmp_path / "ModelNet40", tmp_path / "again", points=512)
    assert torch.equal(open_pack(again).arrays["points"], test.pack.arrays["points"])


def test_modelnet_array_pack(tmp_path):
    modelnet40.convert(published.modelnet_npz(tmp_path / "modelnet40.npz"), tmp_path)
    test = ModelNet40("test", tmp_path)
    assert test.labels.tolist() == [8, 33]
    assert_same_cloud(test[1].points, published.cloud(1, 1024), atol=3e-4)
    with pytest.raises(DataError, match=r"has no normals: its source, the array pack, had none"):
        ModelNet40("test", tmp_path, normals=True)
    with pytest.raises(DataError, match=r"points=2,048 is out of range: .* has 1,024 points of each shape"):
        ModelNet40("test", tmp_path, points=2048)


def test_shapenet_text(tmp_path):
    name = "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    shapenet_part.convert(published.shapenet_text(tmp_path / name), tmp_path)
    train = ShapeNetPart("train", tmp_path, normals=True, points=2048)
    assert [train.classes[i] for i in train.labels] == ["Chair", "Airplane", "Chair"]
    chair, plane = train[0], train[1]
    # Parts go with their points: in the source the upper half of y is the second part, and y became z.
    assert set(chair.parts.tolist()) == {12, 13}
    assert chair.points[chair.parts == 13, 2].min() > chair.points[chair.parts == 12, 2].max()
    assert (chair.points[:512, 2] > 0.5).any() and (chair.points[:512, 2] < 0).any()  # noqa: PT018
    torch.testing.assert_close(chair.normals.norm(dim=-1), torch.ones(2048), atol=1e-4, rtol=0)
    # 700 points repeat to fill 2,048: every one of them is there, and the first 700 are all different.
    assert len(plane.points.unique(dim=0)) == len(plane.points[:700].unique(dim=0)) == 700
    assert train.pack.arrays["count"][train.rows].tolist() == [2048, 700, 2048]
    few = ShapeNetPart("train", tmp_path, points=700, subset="random")[1]
    assert len(few.points.unique(dim=0)) == 700
    assert train.parts_of.sum(1).tolist() == [4, 2, 2, 4, 4, 3, 3, 2, 4, 2, 6, 2, 3, 3, 3, 3]
    assert [len(ShapeNetPart(s, tmp_path)) for s in ("train", "val", "test", "train+val", "all")] == [3, 1, 2, 4, 6]


def test_shapenet_hdf5(tmp_path):
    shapenet_part.convert(published.shapenet_hdf5(tmp_path / "hdf5_data"), tmp_path, drop_overlap=False)
    train = ShapeNetPart("train", tmp_path, points=2048)
    assert train.labels.tolist() == [4, 15] * 6
    assert_same_cloud(train[3].points, published.cloud(7, 2048))
    assert set(train[3].parts.tolist()) == {47, 48}
    # Shapes have no names in this layout: the same points make the same shape.
    assert {pair: len(names) for pair, names in train.pack.about["overlap"].items()} == {
        "train and val": 1,
        "train and test": 1,
        "val and test": 1,
    }


def test_overlap_is_recorded_and_can_be_dropped(tmp_path):
    source = published.shapenet_text(tmp_path / "text")
    shapenet_part.convert(source, tmp_path)
    assert open_pack("shapenet-part", tmp_path).about["overlap"] == {"train and test": ["03001627/cc"]}
    shapenet_part.convert(source, tmp_path, drop_overlap=True)
    dropped = open_pack("shapenet-part", tmp_path)
    assert dropped.splits == {"train": 2, "val": 1, "test": 2}
    assert dropped.about["ids"]["train"] == ["03001627/aa", "02691156/bb"]
    assert len(dropped.arrays["parts"]) == 5


def test_occnet(tmp_path):
    occupancy.convert(published.occnet(tmp_path / "ShapeNet"), tmp_path, points=2048, queries=2000)
    train = Occupancy("train", tmp_path, queries=2000, normals=True)
    assert train.classes == ("02691156", "03001627")
    assert train.labels.tolist() == [0, 0, 1, 1]
    shape = train[1]
    assert shape.points.norm(dim=-1).max() <= 1 + 1e-5
    assert shape.points.abs().amax(0).argmax() == 2  # the longest axis was y and is z
    cube = Occupancy("train", tmp_path, queries=2000, frame="unit_cube")[1]
    axes = torch.tensor([0.2, 0.3, 0.5])
    right = ((cube.queries / axes).square().sum(-1) < 1) == cube.occupied
    assert right.float().mean() > 0.995  # type: ignore[attr-defined]  # but for rounding to half
    torch.testing.assert_close((shape.normals * shape.points).sum(-1) > 0, torch.ones(1024, dtype=torch.bool))
    assert [len(Occupancy(s, tmp_path, queries=9)) for s in ("val", "test")] == [2, 2]
    again = published.occnet(tmp_path / "unpacked")
    for file in again.rglob("points.npz"):  # one byte for each answer in place of one bit
        arrays = dict(np.load(file))
        np.savez(file, **arrays | {"occupancies": np.unpackbits(arrays["occupancies"])[:2501]})
    occupancy.convert(again, tmp_path, to="unpacked", points=2048, queries=2000)
    for name, array in open_pack("unpacked", tmp_path).arrays.items():
        assert torch.equal(array, train.pack.arrays[name])
    with pytest.raises(
        DataError, match=r"2,000 uniform queries and 0 near the surface .* 1,024, 1,024 and 1,024 are too many"
    ):
        Occupancy("train", tmp_path, near=0.5)
