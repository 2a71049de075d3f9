"""Your own files, and occupancy from any mesh."""

import os

import numpy as np
import published
import pytest
import raycast
import torch
import trimesh

from vector_neurons.data import DataError, Folder, Occupancy, folder, occupancy
from vector_neurons.data.pack import open_pack
from vector_neurons.data.queries import sample_occupancy
from vector_neurons.mesh import Mesh, read, write


@pytest.fixture
def own(tmp_path):
    """Cups of every mesh format, plates of every cloud format."""
    source = tmp_path / "own"
    for number, suffix in enumerate(("ply", "obj", "stl", "off", "glb")):
        box = trimesh.creation.box([1 + number / 10, 2, 3])
        (source / "cup").mkdir(parents=True, exist_ok=True)
        write(
            Mesh(torch.from_numpy(box.vertices), torch.from_numpy(box.faces).long()),
            source / "cup" / f"{number}.{suffix}",
        )
    (source / "plate" / "deep").mkdir(parents=True)
    cloud = published.cloud(3, 300)
    np.savetxt(source / "plate" / "a.xyz", cloud)
    np.save(source / "plate" / "b.npy", cloud)
    np.savez(source / "plate" / "deep" / "c.npz", points=cloud)
    np.save(source / "plate" / "d.npy", published.cloud(4, 5000))
    (source / "plate" / "readme.txt").write_text("not a shape")
    (source / "plate" / ".hidden.npy").write_text("not a shape")
    return source


def test_a_folder_of_classes(own, tmp_path):
    data = Folder(own, "all", tmp_path)
    assert data.classes == ("cup", "plate")
    assert data.labels.tolist() == [0] * 5 + [1] * 4
    counts = data.pack.arrays["count"].tolist()
    assert counts == [2048] * 5 + [300, 300, 2048, 300]
    # A cloud is taken as it is: its own points, in the unit ball.
    cloud = torch.from_numpy(published.cloud(3, 300))
    back = Folder(own, "all", tmp_path, points=300)[5].points.double()
    scale = torch.cdist(back, back).max() / torch.cdist(cloud, cloud).max()
    assert len(back.unique(dim=0)) == 300
    torch.testing.assert_close(
        torch.cdist(back, back).sum(1).sort().values,
        (torch.cdist(cloud, cloud) * scale).sum(1).sort().values,
        rtol=1e-4,
        atol=0,
    )
    assert {s: len(Folder(own, s, tmp_path)) for s in ("train", "val", "test")} == {"train": 5, "val": 2, "test": 2}
    assert len(list(tmp_path.glob("folder-own-*.safetensors"))) == 1  # read once
    np.save(own / "plate" / "e.npy", published.cloud(5, 100))
    assert len(Folder(own, "all", tmp_path)) == 10


def test_meshes_have_normals_and_the_axis_can_be_told(own, tmp_path):
    for file in (own / "plate").rglob("*.*"):
        file.unlink()
    data = Folder(own, "all", tmp_path, normals=True, up="x")
    extent = data[0].points.amax(0) - data[0].points.amin(0)
    assert (extent[2] < extent[1]) and (extent[1] < extent[0])  # noqa: PT018
    assert torch.equal(data[0].normals.abs().amax(-1), torch.ones(1024))


def test_splits_of_the_folder_itself(own, tmp_path):
    split = tmp_path / "split"
    for name in ("train", "test"):
        (split / name).mkdir(parents=True)
    os.rename(own / "cup", split / "train" / "cup")
    os.rename(own / "plate", split / "test" / "plate")
    assert Folder(split, "train+val", tmp_path).labels.tolist() == [0] * 5
    assert Folder(split, "test", tmp_path).labels.tolist() == [1] * 4


def test_unreadable_files_are_listed_unless_they_are_the_majority(own, tmp_path):
    for name in "abc":
        (own / "cup" / f"{name}.ply").write_text("nonsense")
    damaged = open_pack(folder.convert(own, tmp_path, points=64)).about["damaged"]
    assert [line.partition(": ")[0] for line in damaged] == [f"{own / 'cup' / name}.ply is damaged" for name in "abc"]
    for name in "defghijklmno":
        (own / "cup" / f"{name}.ply").write_text("nonsense")
    with pytest.raises(DataError, match=r"15 of 24 shapes are missing or damaged, no pack was written: repair them$"):
        folder.convert(own, tmp_path, points=64)


def test_folders_that_are_no_sets(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        Folder(tmp_path / "nowhere", "all", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"has no files to read: expected class/name.\{ply,obj,stl,off,glb,xyz,npy,npz,pcd,csv,pts\}"
    ):
        Folder(tmp_path / "empty", "all", tmp_path)
    published.off(tmp_path / "mixed" / "cup" / "a.off")
    published.off(tmp_path / "mixed" / "b.off")
    with pytest.raises(DataError, match=r"some files are in class folders and some in none: .*b\.off"):
        Folder(tmp_path / "mixed", "all", tmp_path)


@pytest.fixture
def meshes(tmp_path):
    source = tmp_path / "meshes"
    published.off(source / "closed.off")
    published.off(source / "open.off", faces=published.BOX_FACES[1:])
    ball = trimesh.creation.icosphere(subdivisions=3)
    write(Mesh(torch.from_numpy(ball.vertices), torch.from_numpy(ball.faces).long()), source / "ball.ply")
    (source / "damaged.ply").write_text("nonsense")
    return source


def test_occupancy_of_meshes(meshes, tmp_path):
    occupancy.convert(meshes, tmp_path, to="mine", points=500, queries=3000, near=1000)
    data = Occupancy("all", tmp_path, pack="mine", points=500, queries=4000, near=0.25, normals=True, frame="unit_cube")
    assert data.classes == ("object",)
    assert data.pack.about["ids"] == {"all": ["ball.ply", "closed.off", "open.off"]}
    assert data.pack.arrays["watertight"].tolist() == [True, True, False]
    assert "damaged.ply" in data.pack.about["damaged"][0]
    ball, box, holed = data
    inside = ball.queries.norm(dim=-1) < 0.5
    assert (inside == ball.occupied).float().mean() > 0.97  # the ball is a polyhedron
    torch.testing.assert_close(ball.points.norm(dim=-1), torch.full((500,), 0.5), atol=0.01, rtol=0)
    assert (ball.queries[3000:].norm(dim=-1) - 0.5).abs().mean() < 0.03  # near the surface
    assert ball.queries[:3000].abs().amax() > 0.54
    half = torch.tensor([1 / 6, 2 / 6, 3 / 6])
    inside = (box.queries.abs() < half).all(-1)
    assert (inside == box.occupied).float().mean() > 0.999
    inside = (holed.queries.abs() < half).all(-1)
    assert (inside == holed.occupied).float().mean() > 0.9
    assert 0.15 < box.occupied[:3000].float().mean() < 0.22  # 6/27 of the cube, which has a margin
    in_ball = Occupancy("all", tmp_path, pack="mine", points=500)
    assert torch.stack([cloud.points.norm(dim=-1).max() for cloud in in_ball]).max() <= 1 + 1e-6  # type: ignore[attr-defined]


def test_what_is_drawn_depends_on_seed_and_shape(meshes, tmp_path):
    occupancy.convert(meshes, tmp_path, points=500, queries=3000, near=0)
    data = Occupancy("all", tmp_path, points=100, queries=200)
    first = data.batch(torch.tensor([0, 1]))
    assert torch.equal(first.queries[1], data[1].queries)
    data.seed = 1
    assert not torch.equal(first.queries[1], data[1].queries)
    assert not torch.equal(first.points[1], data[1].points)


def test_processes_give_what_one_process_gives(meshes, tmp_path):
    one = occupancy.convert(meshes, tmp_path / "one", points=50, queries=60, near=70)
    two = occupancy.convert(meshes, tmp_path / "two", points=50, queries=60, near=70, workers=2)
    assert one.read_bytes() == two.read_bytes()


def test_clouds_have_no_inside(tmp_path):
    (tmp_path / "c").mkdir()
    np.savez(tmp_path / "c" / "a.npz", points=published.cloud(0, 100))
    with pytest.raises(DataError, match="1 of 1 shapes") as error:
        occupancy.convert(tmp_path / "c", tmp_path)
    assert "a cloud, and occupancy needs triangles" in error.value.lines[0]  # type: ignore[attr-defined]


def test_labels_of_a_mesh_agree_with_ray_casting(meshes):
    mesh = read(meshes / "ball.ply")
    cloud = sample_occupancy(mesh, 10, 5000, 5000, generator=torch.Generator().manual_seed(0))
    crossings = raycast.inside(cloud.queries.numpy(), mesh.vertices.numpy(), mesh.faces.numpy())
    assert (cloud.occupied.numpy() == crossings).mean() >= 0.999


def test_overlap_goes_by_content_not_by_name(tmp_path):
    source = tmp_path / "own"
    for number, name in enumerate(("train/cup/a", "test/cup/a", "train/cup/b", "validation/cup/c")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(source / f"{name}.npy", published.cloud(number, 50))
    np.save(source / "test" / "cup" / "copy.npy", published.cloud(2, 50))
    data = Folder(source, "train", tmp_path, points=50)
    assert data.pack.about["overlap"] == {"train and test": ["cup/b.npy"]}
    assert data.pack.splits == {"train": 2, "val": 1, "test": 2}


def test_what_stands_beside_the_splits_is_refused_by_name(tmp_path):
    for name in ("train/cup/a.off", "test/cup/b.off", "holdout/cup/c.off"):
        published.off(tmp_path / "own" / name)
    with pytest.raises(DataError, match=r"own has holdout beside train, test: move it into one of them, or away"):
        Folder(tmp_path / "own", "train", tmp_path)


def test_a_class_may_be_called_object(tmp_path):
    for name in ("object/a.off", "other/b.off"):
        published.off(tmp_path / "own" / name)
    assert Folder(tmp_path / "own", "all", tmp_path).classes == ("object", "other")


def test_glb_is_y_up_unless_told_otherwise(tmp_path):
    box = Mesh(torch.from_numpy(published.BOX), torch.from_numpy(published.BOX_FACES))
    for suffix in ("ply", "glb"):
        (tmp_path / suffix).mkdir()
        write(box, tmp_path / suffix / f"box.{suffix}")

    def height(suffix, **options):
        points = Folder(tmp_path / suffix, "all", tmp_path, **options)[0].points
        extent = points.amax(0) - points.amin(0)
        return float(extent[2] / extent[0])

    # The box is 1 × 2 × 3.
    assert height("ply") == pytest.approx(3, abs=0.1)
    assert height("glb") == pytest.approx(2, abs=0.1)
    assert height("glb", up="z") == pytest.approx(3, abs=0.1)
    occupancy.convert(tmp_path / "glb", tmp_path, points=500, queries=10, near=0)
    points = Occupancy("all", tmp_path, points=500, queries=10)[0].points
    extent = points.amax(0) - points.amin(0)
    assert float(extent[2] / extent[0]) == pytest.approx(2, abs=0.2)
    with pytest.raises(Exception, match=r"(?s)'ball'.*unit_ball.*unit_cube"):  # the hook may be the first to say so
        Occupancy("all", tmp_path, frame="ball")


def test_what_a_folder_lacks_is_said(own, tmp_path):
    (own / "cup" / "broken.ply").write_text("nonsense")
    np.save(own / "plate" / "flat.npy", np.ones((9, 3)))
    with pytest.warns(
        UserWarning, match=r"2 files of .*own could not be read and are left out: .*broken\.ply is damaged"
    ):
        data = Folder(own, "all", tmp_path)
    assert data.pack.about["damaged"][1].endswith("flat.npy: all points coincide")
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(DataError, match=r"not all files had normals, the first without is plate/a\.xyz"),
    ):
        Folder(own, "all", tmp_path, normals=True)
