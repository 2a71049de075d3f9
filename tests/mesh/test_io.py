import numpy as np
import published
import pytest
import torch
import trimesh

from vector_neurons.mesh import Mesh, MeshError, read, sample, watertight, write

BOX = Mesh(torch.from_numpy(published.BOX), torch.from_numpy(published.BOX_FACES))
CLOUD = published.cloud(0, 50, 6)


@pytest.mark.parametrize("suffix", ["ply", "obj", "stl", "off", "glb"])
def test_meshes_go_to_a_file_and_back(tmp_path, suffix):
    write(BOX, tmp_path / f"box.{suffix}")
    back = read(tmp_path / f"box.{suffix}")
    assert len(back.faces) == 12
    assert back.vertices.dtype == torch.float64
    # Vertices may be split or reordered; triangles stay where they are.
    torch.testing.assert_close(back.vertices[back.faces], BOX.vertices[BOX.faces], check_dtype=False)
    assert watertight(back)


def test_a_scene_is_one_mesh_with_every_part_in_its_place(tmp_path):
    scene = trimesh.Scene()
    scene.add_geometry(trimesh.creation.box())
    scene.add_geometry(trimesh.creation.box(), transform=trimesh.transformations.translation_matrix([10, 0, 0]))
    scene.export(tmp_path / "two.glb")
    both = read(tmp_path / "two.glb")
    assert len(both.faces) == 24
    assert both.vertices[:, 0].max() == 10.5


def test_clouds_of_every_kind(tmp_path):
    np.savetxt(tmp_path / "a.xyz", CLOUD)
    np.savetxt(tmp_path / "b.xyz", CLOUD[:, :3], delimiter=",")
    np.save(tmp_path / "c.npy", CLOUD[:, :3].astype(np.float32))
    np.savez(tmp_path / "d.npz", points=CLOUD[:, :3], normals=CLOUD[:, 3:])
    np.savez(tmp_path / "e.npz", CLOUD[:, :3])
    head = "ply\nformat ascii 1.0\nelement vertex 50\n"
    head += "".join(f"property float {name}\n" for name in ("x", "y", "z", "nx", "ny", "nz")) + "end_header\n"
    head = head.replace("end_header", "element face 0\nproperty list uchar int vertex_indices\nend_header")
    (tmp_path / "f.ply").write_text(head + "\n".join(" ".join(map(str, row)) for row in CLOUD) + "\n")
    for file in sorted(tmp_path.iterdir()):
        cloud = read(file)
        assert cloud.is_cloud
        assert not watertight(cloud)
        np.testing.assert_allclose(cloud.vertices.numpy(), CLOUD[:, :3], rtol=1e-6)
        assert (cloud.normals is not None) == (file.name[0] in "adf")
    np.testing.assert_allclose(read(tmp_path / "f.ply").normals.numpy(), CLOUD[:, 3:], rtol=1e-5)
    write(read(tmp_path / "a.xyz"), tmp_path / "g.ply")
    assert read(tmp_path / "g.ply").is_cloud
    np.savez(tmp_path / "mesh.npz", vertices=published.BOX, faces=published.BOX_FACES)
    assert torch.equal(read(tmp_path / "mesh.npz").faces, BOX.faces)


def damaged(folder):
    """Files that cannot be read, and what is said about them."""
    write(BOX, folder / "cut.stl")
    write(BOX, folder / "cut.ply")
    write(BOX, folder / "cut.glb")
    published.off(folder / "cut.off")
    np.savez(folder / "cut.npz", points=CLOUD[:, :3])
    for name in ("cut.stl", "cut.ply", "cut.glb", "cut.off", "cut.npz"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * 0.7)])
    whole = published.off(folder / "cut_face.off", glued=True)
    whole.write_text(whole.read_text().rstrip()[:-1])
    head = "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    head += "element face 2\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n0 1 0\n"
    (folder / "text.ply").write_text(head)
    (folder / "text_face.ply").write_text(f"{head}0 0 1\n3 0 1 2\n3 0 1\n")
    published.off(folder / "faces.off", faces=np.array([[0, 1, 99]]))
    published.off(folder / "nan.off", vertices=np.where(published.BOX == 3, np.nan, published.BOX))
    np.save(folder / "columns.npy", CLOUD[:, :4])
    np.save(folder / "nan.npy", np.full((5, 3), np.nan))
    np.save(folder / "normals.npy", np.where(np.arange(6) < 5, CLOUD, np.nan))
    np.save(folder / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez(folder / "unknown.npz", a=CLOUD, b=CLOUD)
    (folder / "words.xyz").write_text("no numbers\nat all\n")
    (folder / "empty.obj").write_text("")
    (folder / "nothing.obj").write_text("# nothing\n")
    (folder / "noise.glb").write_bytes(bytes(range(256)) * 4)
    (folder / "notes.txt").write_text("hello")
    return {
        "cut.stl": "is truncated: 478 bytes instead of 684",
        "cut.ply": "is truncated: 1 rows of face instead of 12",
        "text.ply": "is truncated: 3 lines instead of 6",
        "text_face.ply": "is truncated: 5 lines instead of 6",
        "cut.glb": "is truncated",
        "cut.off": "is truncated: 14 lines instead of 21",
        "cut_face.off": "is truncated: 20 lines instead of 21",
        "cut.npz": "is damaged: File is not a zip file",
        "faces.off": "its faces name vertices that do not exist",
        "nan.off": "4 of 8 points have coordinates that are NaN or infinite",
        "columns.npy": r"columns must be x y z or x y z nx ny nz, got an array \(50, 4\)",
        "nan.npy": "5 of 5 points",
        "normals.npy": "some of its normals are NaN or infinite",
        "objects.npy": "is damaged",
        "unknown.npz": "neither 'points' nor 'vertices' and 'faces': it has a, b",
        "words.xyz": "is damaged: could not convert",
        "empty.obj": "is empty",
        "nothing.obj": "has neither triangles nor points",
        "noise.glb": "is damaged",
        "notes.txt": "cannot read .txt, only .ply .obj",
        "absent.ply": "there is no file",
    }


def test_what_cannot_be_read_gets_one_line(tmp_path):
    for name, words in damaged(tmp_path).items():
        with pytest.raises(MeshError, match=words) as error:
            read(tmp_path / name)
        assert name in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(MeshError, match=r"cannot write a mesh as \.xyz, only \.ply"):
        write(BOX, tmp_path / "box.xyz")
    with pytest.raises(MeshError, match=r"cannot write a cloud as \.stl, only \.ply \.glb"):
        write(Mesh(BOX.vertices, BOX.faces[:0]), tmp_path / "cloud.stl")


def test_points_are_spread_by_area_and_know_their_side():
    points, normals = sample(BOX, 20_000, generator=torch.Generator().manual_seed(0))
    # The box is 1 × 2 × 3: sides of area 6, 3 and 2, twice each.
    share = normals.abs().mean(0)
    torch.testing.assert_close(share, torch.tensor([6, 3, 2], dtype=share.dtype) / 11, atol=0.01, rtol=0)
    on_side = torch.where(normals > 0, points - torch.tensor([1.0, 2.0, 3.0]), points)[normals != 0]
    assert on_side.abs().max() < 1e-12  # normals point outwards, and points lie on their side
    side = points[normals[:, 0] > 0][:, 1:] / torch.tensor([2.0, 3.0])
    counts = torch.histogramdd(side, [4, 4], range=[0.0, 1.0, 0.0, 1.0]).hist
    assert (counts / counts.mean() - 1).abs().max() < 0.2  # evenly inside a side
    again, _ = sample(BOX, 20_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(points, again)


def test_a_mesh_without_area_cannot_be_sampled():
    with pytest.raises(MeshError, match="12 faces has no area"):
        sample(Mesh(torch.zeros(8, 3, dtype=torch.float64), BOX.faces), 10)


def test_watertight():
    assert watertight(BOX)
    assert not watertight(Mesh(BOX.vertices, BOX.faces[1:]))
    flipped = torch.cat([BOX.faces[:1].flip(1), BOX.faces[1:]])
    assert not watertight(Mesh(BOX.vertices, flipped))
    soup = Mesh(BOX.vertices[BOX.faces].reshape(-1, 3), torch.arange(36).reshape(-1, 3))
    assert watertight(soup)
    two = Mesh(BOX.vertices.repeat(2, 1), torch.cat([BOX.faces, BOX.faces + 8]))
    assert watertight(two)  # edges of four triangles, in pairs
