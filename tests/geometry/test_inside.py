import pytest
import raycast
import torch
import trimesh

from vector_neurons.geometry import inside

MESHES = {
    "box": trimesh.creation.box([1, 2, 3]),
    "sphere": trimesh.creation.icosphere(subdivisions=3),
    "torus": trimesh.creation.torus(1.0, 0.3),
    "two": trimesh.util.concatenate(
        [trimesh.creation.box(), trimesh.creation.box(transform=trimesh.transformations.translation_matrix([2, 0, 0]))]
    ),
}


def tensors(mesh):
    return torch.from_numpy(mesh.vertices.copy()), torch.from_numpy(mesh.faces.copy()).long()


def queries(vertices, n=10_000):
    low, high = vertices.amin(0), vertices.amax(0)
    draws = torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return (low + high) / 2 + 1.2 * (draws - 0.5) * (high - low)


@pytest.mark.parametrize("name", MESHES)
def test_inside_agrees_with_counting_crossings(name):
    vertices, faces = tensors(MESHES[name])
    points = queries(vertices)
    crossings = raycast.inside(points.numpy(), vertices.numpy(), faces.numpy())
    ours = inside.inside(points, vertices, faces)
    assert (ours.numpy() == crossings).mean() >= 0.999
    assert 0.1 < crossings.mean() < 0.9


def test_winding_numbers_of_open_overlapping_and_inverted_meshes():
    vertices, faces = tensors(MESHES["sphere"])
    middle = torch.tensor([[0.0, 0.0, 0.1], [3.0, 0.0, 0.0]])
    torch.testing.assert_close(
        inside.winding_number(middle, vertices, faces), torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0
    )
    inverted = inside.winding_number(middle, vertices, faces.flip(1))
    torch.testing.assert_close(inverted, torch.tensor([-1.0, 0.0]), atol=1e-6, rtol=0)
    assert inside.inside(middle, vertices, faces.flip(1)).tolist() == [True, False]
    holes = faces[torch.rand(len(faces), generator=torch.Generator().manual_seed(0)) > 0.1]
    points = queries(vertices)
    right = inside.inside(points, vertices, holes) == (points.norm(dim=-1) < 1)
    assert right.float().mean() > 0.97  # a tenth of the surface is missing, and hardly an answer is wrong


def test_many_faces_are_summed_up_quickly():
    vertices, faces = tensors(trimesh.creation.icosphere(subdivisions=6))
    assert len(faces) > inside.EXACT_FACES
    points = queries(vertices)
    away = (points.norm(dim=-1) - 1).abs() > 0.01
    right = inside.inside(points, vertices, faces) == (points.norm(dim=-1) < 1)
    assert right[away].all()


def test_without_libigl_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "igl", None)
    with pytest.raises(ImportError, match=r"winding numbers need libigl: pip install 'vector-neurons\[mesh\]'"):
        inside.inside(torch.zeros(1, 3), *tensors(MESHES["box"]))
