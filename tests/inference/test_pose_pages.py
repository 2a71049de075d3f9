"""What networks answer in every pose, and the pages that show it: inputs from files, runs and the embedded set."""

import numpy as np
import pytest
import torch
import trimesh
from pages import unpack
from tiny import tiny

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.geometry.rotations import draw, geodesic_distance, rotate
from vector_neurons.inference import PredictError, answer, pose_grid, view
from vector_neurons.mesh import MeshError
from vector_neurons.models import DGCNN, DGCNNSegmenter, FrameNet, Metadata, OccupancyNetwork
from vector_neurons.training import TrainingError, fit

POSES = 6


def small(neurons="vector", **metadata):
    """An untrained classifier with names of its classes."""
    network = DGCNN(3, neurons=neurons, k=6, widths=(6, 6), embedding=12, hidden=(8,)).eval()
    network.metadata = Metadata(classes=("cup", "mug", "vase"), points=64, **metadata)
    return network


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind of neurons, of one epoch."""
    folder = tmp_path_factory.mktemp("runs")
    for neurons in ("vector", "scalar"):
        fit(tiny(neurons=neurons, epochs=1, size=42), folder / neurons)
    return folder


@pytest.fixture
def box(tmp_path):
    """A mesh, written by another program."""
    file = tmp_path / "box.stl"
    trimesh.creation.box(extents=(300, 200, 100)).export(file)
    return file


def test_poses_start_at_the_identity_and_cover_all_rotations():
    grid = pose_grid(600)
    assert torch.equal(grid[0], torch.eye(3, dtype=torch.float64))
    assert (grid @ grid.mT - torch.eye(3)).abs().max() < 1e-12
    assert torch.linalg.det(grid).min() > 0.99
    assert torch.equal(grid[:24, 2, 2], torch.ones(24, dtype=torch.float64))  # upright
    random = draw("SO3", 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    nearest = torch.stack([geodesic_distance(R.expand_as(grid), grid).min() for R in random])
    assert nearest.max().rad2deg() < 35
    assert [len(pose_grid(n)) for n in (1, 24, 25)] == [1, 24, 25]


def test_answers_are_those_of_the_rotated_clouds():
    torch.manual_seed(0)
    network, cloud, grid = small("scalar"), torch.rand(64, 3), pose_grid(POSES)
    found = answer(network, cloud, grid)
    with torch.no_grad():
        expected = torch.stack([network(rotate(cloud, R)[None])[0] for R in grid.float()]).softmax(-1)
    torch.testing.assert_close(found.probabilities.float(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.change, (found.probabilities - found.probabilities[0]).abs().amax(1))
    assert found.network == "DGCNN, scalar neurons"
    assert answer(small(), cloud, grid, name="mine").change.max() < 1e-5


def test_parts_are_colored_in_every_pose():
    torch.manual_seed(0)
    networks = [
        DGCNNSegmenter(5, 2, neurons=neurons, k=6, widths=((6,), (6,)), embedding=12, hidden=(8,)).eval()
        for neurons in ("vector", "scalar")
    ]
    cloud, own = torch.rand(64, 3), torch.tensor([True, False, True, True, False])
    vector, scalar = (answer(network, cloud, pose_grid(POSES), category=1, own=own) for network in networks)
    assert vector.picture.parts.shape == (POSES, 64)
    assert vector.picture.parts.max() < 3  # numbered among the parts of the category
    torch.testing.assert_close(vector.probabilities.sum(1), torch.ones(POSES, dtype=torch.float64))
    assert vector.change.max() < 1e-4 < scalar.change.max()


def test_a_reconstruction_turns_with_the_input():
    torch.manual_seed(0)
    network = OccupancyNetwork(encoder="pointnet", hidden=6, decoder_hidden=6).eval()
    ball = torch.nn.functional.normalize(torch.randn(100, 3), dim=-1)
    found = answer(network, ball, pose_grid(POSES))
    assert found.probabilities is None
    assert found.change.max() < 1e-3


def test_a_file_in_its_own_units_and_pose(box):
    data = unpack(view(box, small(), small("scalar"), poses=POSES))
    (shown,) = data["exhibits"]
    assert shown["title"] == "box.stl"
    assert shown["picture"]["faces"].shape == (12, 3)
    size = np.ptp(shown["picture"]["points"], axis=0)
    np.testing.assert_allclose(size / size[2], [3, 2, 1], rtol=1e-4)
    assert shown["classes"] == ["cup", "mug", "vase"]
    vector, scalar = shown["answers"]
    assert np.ptp(vector["probabilities"].astype(int), axis=0).max() <= 1
    assert vector["change"].max() < 1e-5 < scalar["change"].max()


def test_large_meshes_are_shown_as_points():
    sphere = trimesh.creation.icosphere(subdivisions=6)
    assert len(sphere.faces) > 20_000
    (shown,) = unpack(view(sphere, small(), poses=1))["exhibits"]
    assert shown["picture"]["faces"] is None
    assert len(shown["picture"]["points"]) == 4000


def test_a_run_shows_its_test_shapes(runs):
    counts = []
    page = view(runs / "vector", compare=runs / "scalar", poses=POSES, shapes=3, progress=lambda *n: counts.append(n))
    data = unpack(page)
    assert "Test shapes of vector" in page
    assert counts[-1] == (3 * 2 * POSES, 3 * 2 * POSES)
    assert len(data["exhibits"]) == 3
    for shown in data["exhibits"]:
        assert shown["truth"] in shown["title"]
        assert shown["parts"]
        assert [one["network"] for one in shown["answers"]] == ["DGCNN, vector neurons", "DGCNN, scalar neurons"]
        cloud = torch.from_numpy(shown["picture"]["points"].copy())
        with torch.no_grad():
            p = vn.load(runs / "vector")(cloud[None])[0].softmax(-1)
        np.testing.assert_allclose(shown["answers"][0]["probabilities"][0] / data["levels"], p, atol=1e-4)
    assert "Test shapes of vector" in view(runs / "vector" / "best", poses=1, shapes=1)


def test_embedded_shapes_need_no_network():
    page = view("shapes", poses=POSES)
    data = unpack(page)
    assert [one["title"] for one in data["exhibits"]] == list(Shapes(size=1, points=1, mirrors=True).classes)
    cup = data["exhibits"][0]
    assert cup["picture"]["parts"].max() < len(cup["parts"])
    assert not cup["answers"]
    assert len(page) < 5e6


def test_embedded_shapes_with_a_network_that_knows_some():
    data = unpack(view("shapes", small(), poses=2))
    assert [one["truth"] for one in data["exhibits"]] == ["cup", "mug", "vase"]
    other = small()
    other.metadata = Metadata(classes=("a", "b", "c"), points=64)
    with pytest.raises(PredictError, match="knows none of the classes"):
        view("shapes", other)


def test_what_cannot_be_shown_is_refused(box, runs, tmp_path):
    with pytest.raises(PredictError, match="one is for other classes"):
        view(box, small(), runs / "vector", poses=1)
    with pytest.raises(PredictError, match="one is for reconstruction, the other for classification"):
        view(box, small(), "reconstruction", poses=1)
    with pytest.raises(PredictError, match="nothing to compare with"):
        view("shapes", None, small())
    with pytest.raises(PredictError, match="needs normals"):
        view(box, FrameNet(3, k=8, width=16, inputs=(1, 0)))
    with pytest.raises(TrainingError, match="holds no run"):
        view(tmp_path, poses=1)
    (tmp_path / "bad.ply").write_bytes(b"ply\nformat")
    with pytest.raises(MeshError, match=r"bad\.ply"):
        view(tmp_path / "bad.ply", small(), poses=1)
