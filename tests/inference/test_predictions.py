"""`vn.predict`: names of shapes, parts, and "none of these"."""

from pathlib import Path

import numpy as np
import objects
import pytest
import torch
import trimesh

import vector_neurons as vn
from vector_neurons import mesh
from vector_neurons.inference import Parts, PredictError, Prediction, pose_spread, predict_each
from vector_neurons.inference.predict import NONE_OF_THESE
from vector_neurons.models import DGCNN, FrameNet, FrameNetSegmenter, Inputs, Metadata

RUN = Path(__file__).parents[2] / "results" / "modelnet40-framenet-z"


@pytest.fixture(scope="module")
def model():
    return vn.load(RUN)


def segmenter():
    """A network that sees nothing but the height: the upper half is one part, the lower half another."""

    class ByHeight(vn.models.Model):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(10.0))

        def forward(self, points, category):
            up = self.scale * points[..., 2]
            foreign = torch.full_like(up, 99.0)  # a part of the other category, which is never chosen
            return torch.stack([up, -up, foreign], dim=-1)

    network = ByHeight().eval()
    network.metadata = Metadata(classes=("Table 1", "Table 2", "Lamp 1"), categories=("Table", "Lamp"), points=256)
    return network


def test_trimesh_shapes_are_named(model):
    shapes = objects.known()
    found = vn.predict(model, list(shapes.values()))
    assert [one.label for one in found] == list(shapes)
    assert all(one.top(1)[0][1] > 0.9 for one in found)
    assert found[0].probabilities.sum().item() == pytest.approx(1)
    assert len(found[0].top()) == 5


def test_what_is_none_of_the_classes_is_not_named(model):
    found = vn.predict(model, objects.jack())
    assert found.label == NONE_OF_THESE
    assert found.known < 0.05


def test_the_pose_does_not_change_the_answer(model):
    same, change = pose_spread(model, objects.known()["chair"], 8)
    assert same
    assert change < 1e-6


def test_files_in_single_precision_in_other_poses_and_units(model, tmp_path):
    chair = objects.known()["chair"]
    before = vn.predict(model, chair)
    turned = chair.copy()
    turned.apply_transform(trimesh.transformations.random_rotation_matrix(np.array([0.1, 0.6, 0.9])))
    turned.apply_scale(25.4)
    turned.apply_translation([100, -40, 7])
    turned.export(tmp_path / "chair.stl")
    after = vn.predict(str(RUN), tmp_path / "chair.stl")
    assert after.label == "chair"
    assert torch.allclose(after.probabilities, before.probabilities, atol=1e-3)


def test_clouds_of_several_sizes_in_one_batch_are_those_of_one_at_a_time():
    torch.manual_seed(0)
    network = FrameNet(3, k=8, width=16).eval()
    network.metadata = Metadata(classes=list("abc"), points=256, fewest_points=64)
    clouds = [torch.rand(n, 3) for n in (100, 300, 40, 64, 100)]
    found = list(predict_each(network, clouds))
    assert "40 points is too small" in str(found[2])
    for cloud, one in zip(clouds, found, strict=True):
        if len(cloud) != 40:
            assert torch.allclose(one.probabilities, vn.predict(network, cloud).probabilities, atol=1e-9)
    whole = clouds[0].double() - clouds[0].double().mean(0)
    expected = network.double()(whole.unsqueeze(0) / whole.norm(dim=-1).max()).softmax(-1)[0]
    assert torch.allclose(found[0].probabilities, expected, atol=1e-9)  # all points, each once


def test_a_cloud_and_a_mesh_of_it_are_the_same_kind(model):
    points, _ = trimesh.sample.sample_surface(objects.known()["table"], 5000, seed=0)
    for cloud in (np.asarray(points), torch.tensor(points, dtype=torch.float32), trimesh.PointCloud(points)):
        assert vn.predict(model, cloud).label == "table"


def test_the_model_is_not_changed(model):
    before = {name: x.clone() for name, x in model.state_dict().items()}
    vn.predict(model, torch.rand(600, 3))
    assert next(model.parameters()).dtype == torch.float16
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_batches_do_not_change_the_answers(model):
    shapes = list(objects.known().values())[:3]
    one, three = (vn.predict(model, shapes, batch_size=size) for size in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert torch.allclose(a.probabilities, b.probabilities, atol=1e-9)


def test_bad_sources_do_not_stop_the_others(model):
    sources = [torch.zeros(600, 3), objects.known()["bowl"], torch.rand(5, 3)]
    bad, good, few = predict_each(model, sources, batch_size=2)
    assert isinstance(bad, mesh.MeshError)
    assert good.label == "bowl"
    assert "a cloud of 5 points is too small" in str(few)
    with pytest.raises(mesh.MeshError, match="coincide"):
        vn.predict(model, sources)


def test_a_model_without_calibration_always_answers():
    network = FrameNet(3, k=8, width=16)
    found = vn.predict(network, objects.jack())
    assert found.known is None
    assert found.label in found.names == ("class 0", "class 1", "class 2")


def test_known_is_compared_with_the_least_typical_validation_shapes():
    answer = (("cup", "vase"), torch.tensor([0.1, 0.9]))
    assert Prediction(*answer, known=0.049).label == NONE_OF_THESE
    assert Prediction(*answer, known=0.05).label == "vase"
    assert Prediction(*answer).top(9) == [("vase", pytest.approx(0.9)), ("cup", pytest.approx(0.1))]


def test_parts_of_a_mesh_are_written_in_color(tmp_path):
    table = objects.known()["table"].subdivide_to_size(0.2)
    table.apply_scale(100)
    found = vn.predict(segmenter(), table, category="table")
    assert isinstance(found, Parts)
    assert found.category == "Table"
    assert {name for name, _ in found.top()} == {"Table 1", "Table 2"}
    assert sum(share for _, share in found.top()) == pytest.approx(1)
    middle = found.cloud.mean(0)[2]
    assert torch.equal(found.parts, (found.cloud[:, 2] < middle).long())
    found.write(tmp_path / "parts.ply")
    written = objects.load(tmp_path / "parts.ply")
    assert written.faces.tolist() == table.faces.tolist()
    assert np.allclose(written.vertices, table.vertices)
    colors, high = written.visual.vertex_colors[:, :3], table.vertices[:, 2] > middle.item()
    assert len(np.unique(colors[high], axis=0)) == len(np.unique(colors[~high], axis=0)) == 1
    assert not np.array_equal(colors[high][0], colors[~high][0])


def test_parts_of_a_cloud_are_those_of_all_its_points(tmp_path):
    cloud = np.random.default_rng(0).normal(size=(3000, 3))
    found = vn.predict(segmenter(), cloud, category="Table")
    found.write(tmp_path / "parts.ply")
    written = objects.load(tmp_path / "parts.ply")
    assert np.allclose(written.vertices, cloud)
    high, colors = cloud[:, 2] > 0.5, written.visual.vertex_colors[:, :3]
    low = cloud[:, 2] < -0.5
    assert (colors[high] == colors[high][0]).mean() > 0.97
    assert (colors[low] == colors[low][0]).mean() > 0.97
    assert mesh.read(tmp_path / "parts.ply").is_cloud


def test_parts_do_not_depend_on_the_pose():
    torch.manual_seed(0)
    network = FrameNetSegmenter(4, 2, k=8, width=16)
    network.metadata = Metadata(classes=tuple("abcd"), categories=("mug", "lamp"), points=128)
    assert pose_spread(network, objects.known()["bowl"], 2, category="lamp") == (True, 0.0)


@pytest.mark.parametrize(
    ("network", "options", "words"),
    [
        (lambda: vn.pretrained("reconstruction"), {}, "use it by `vn reconstruct`"),
        (lambda: DGCNN(3, widths=(12,), inputs=Inputs(vectors=1)), {}, "needs normals"),
        (lambda: FrameNet(3, k=8, width=16), {"category": "Mug"}, "this model classifies"),
        (segmenter, {}, "needs the category of the shape: choose Table, Lamp"),
        (segmenter, {"category": "Mug"}, "unknown category 'Mug'"),
        (lambda: "no-such-model", {}, "there is no folder no-such-model, and no pretrained model"),
        (lambda: "no/such/model", {}, "there is no folder no/such/model"),
    ],
)
def test_models_that_cannot_be_used(network, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        vn.predict(network(), torch.rand(600, 3), **options)
    assert isinstance(caught.value, PredictError | vn.models.store.StoreError)
