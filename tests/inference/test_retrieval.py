"""Descriptors do not depend on the pose, the search is exact, and an index is never used with anything else."""

import json

import numpy as np
import pytest
import torch
import trimesh
from safetensors.torch import save_file
from small_classifier import bracket, small_classifier

import vector_neurons as vn
from vector_neurons._files import write_checksums
from vector_neurons.inference import Index, RetrievalError, embed, embed_each, load_index, similar
from vector_neurons.inference.retrieval import DESCRIPTORS, FILES, describe, find_classifier, weights_checksum
from vector_neurons.mesh import MeshError


def shapes():
    """Shapes as trimesh makes them."""
    return [
        bracket(),
        trimesh.creation.box((1, 2, 3)),
        trimesh.creation.capsule(3.0, 0.5),
        trimesh.creation.annulus(1.0, 2.0, 0.5),
        trimesh.creation.cone(1.0, 3.0),
    ]


@pytest.fixture(scope="module")
def model():
    return small_classifier()


@pytest.fixture(scope="module")
def index(model):
    found = torch.stack(list(embed_each(model, shapes())))
    return Index(found, [f"{i}.ply" for i in range(len(found))], "small", weights_checksum(model))


def test_a_shape_is_found_in_any_pose_units_and_place(model, index):
    for i, shape in enumerate(shapes()):
        shape.apply_transform(trimesh.transformations.random_rotation_matrix(np.array([0.1 * i, 0.6, 0.3])))
        shape.apply_scale(25.4)
        shape.apply_translation((300, -20, 7))
        best, second = similar(shape, index, model=model, top=2)
        assert best.file == f"{i}.ply"
        assert best.similarity == pytest.approx(1, abs=1e-5)
        assert second.similarity < best.similarity - 1e-6


def test_a_descriptor_is_made_of_the_outputs_of_the_network(model):
    cloud = torch.randn(1, 128, 3)
    (found,) = describe(model, cloud)
    probabilities, hidden = (2**0.5 * found).split([3, 32])
    assert torch.allclose(probabilities.square(), model(cloud).softmax(-1)[0], atol=1e-6)
    assert hidden.norm().item() == pytest.approx(1, abs=1e-5)
    again = model.head.logits(model.head.hidden(model.encode(cloud).descriptor))
    assert torch.equal(again, model(cloud))


def test_the_search_is_exact():
    descriptors = torch.nn.functional.normalize(torch.randn(500, 24), dim=-1)
    index = Index(descriptors, [str(i) for i in range(500)], "", "")
    query = torch.nn.functional.normalize(torch.randn(24), dim=-1)
    angles = [torch.dot(x.double(), query.double()).acos().item() for x in descriptors]
    expected = sorted(range(500), key=angles.__getitem__)[:7]
    assert [int(match.file) for match in index.search(query, 7)] == expected
    assert len(index.search(query, 1000)) == 500


def test_an_index_survives_its_folder(index, tmp_path):
    index.save(tmp_path / "index")
    index.save(tmp_path / "index")  # once more, over the first
    loaded = load_index(tmp_path / "index")
    assert torch.equal(loaded.descriptors, index.descriptors)
    assert (list(loaded.files), loaded.model, loaded.weights) == (list(index.files), index.model, index.weights)
    assert sorted(x.name for x in (tmp_path / "index").iterdir()) == ["checksums.json", DESCRIPTORS, FILES]


def test_other_weights_are_refused(index):
    other = small_classifier(seed=1)
    with pytest.raises(RetrievalError, match="other weights than those of FrameNet"):
        similar(bracket(), index, model=other)


def test_half_precision_on_disk_is_the_same_model(model, tmp_path):
    vn.save(small_classifier().half(), tmp_path / "half")
    first, second = (find_classifier(tmp_path / "half") for _ in range(2))
    assert weights_checksum(first) == weights_checksum(second) != weights_checksum(model)


def truncate(folder):
    content = (folder / DESCRIPTORS).read_bytes()
    (folder / DESCRIPTORS).write_bytes(content[:-50])


def replace_files(**change):
    def replace(folder):
        about = json.loads((folder / FILES).read_text()) | change
        (folder / FILES).write_text(json.dumps(about))
        write_checksums(folder, (DESCRIPTORS, FILES))

    return replace


def half_precision(folder):
    save_file({"descriptors": torch.ones(5, 4).half()}, folder / DESCRIPTORS)
    write_checksums(folder, (DESCRIPTORS, FILES))


def not_safetensors(folder):
    (folder / DESCRIPTORS).write_bytes(b"\xff" * 100)
    write_checksums(folder, (DESCRIPTORS, FILES))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncate, "changed after it was written"),
        (lambda folder: (folder / FILES).unlink(), "make one by `vn embed`"),
        (lambda folder: (folder / DESCRIPTORS).unlink(), "descriptors.safetensors is missing"),
        (lambda folder: (folder / "checksums.json").write_text("{"), "damaged"),
        (replace_files(format=7), "another format"),
        (replace_files(files=["one"]), "make it again"),
        (replace_files(files=3), "make it again"),
        (replace_files(files=[]), "make it again"),
        (half_precision, "make it again"),
        (not_safetensors, "make it again"),
    ],
)
def test_a_damaged_index_gives_one_line(index, tmp_path, damage, said):
    folder = tmp_path / "index"
    index.save(folder)
    damage(folder)
    with pytest.raises(RetrievalError, match=said) as error:
        load_index(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_bad_sources_do_not_stop_the_others(model, tmp_path):
    (tmp_path / "damaged.stl").write_bytes(b"solid\n")
    first, second, third = embed_each(model, [tmp_path / "damaged.stl", bracket(), torch.zeros(500, 3)])
    assert isinstance(first, MeshError)
    assert "damaged.stl" in str(first)
    assert second.norm().item() == pytest.approx(1, abs=1e-5)
    assert isinstance(third, MeshError)
    with pytest.raises(MeshError, match="NaN"):
        embed(model, torch.full((500, 3), torch.nan))


def test_a_network_without_classes_is_refused():
    with pytest.raises(RetrievalError, match="FrameNetOccupancy has no descriptors"):
        embed("reconstruction", torch.rand(500, 3))
    with pytest.raises(ValueError, match="needs normals"):
        find_classifier(small_classifier(inputs={"vectors": 1}))
