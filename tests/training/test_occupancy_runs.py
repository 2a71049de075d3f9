"""Reconstruction trained and tested: what its batches are, what its runs leave behind."""

from dataclasses import replace

import pytest
import torch
from pebble import pebble
from tiny import metrics, tiny

from vector_neurons.data import Cloud, DataError, Dataset, Shapes, occupancy
from vector_neurons.data.augment import UnitBall
from vector_neurons.mesh import Mesh, extract, write
from vector_neurons.models import store
from vector_neurons.training import (
    ConfigError,
    DataConfig,
    TrainingError,
    batches,
    check,
    checkpoint,
    evaluate,
    evaluation,
    factory,
    fit,
    loop,
    mesh_metrics,
    read_config,
    results,
)
from vector_neurons.training.config import NetworkConfig, default_config
from vector_neurons.training.presets import TABLES, presets

NETWORK = NetworkConfig("pointnet", k=8, code=24, encoder_width=24, decoder_width=16)


def little(**changes):
    start = {"task": "reconstruction", "network": NETWORK, "size": 42, "points": 60, "stored_points": 80, "queries": 64}
    start |= {"noise": 0.01, "label_smoothing": 0.0, "anisotropic_scale": 1.0, "shift": 0.0, "train_rotations": "I"}
    return tiny(**(start | {"test_rotations": ("I", "SO3"), "fixed_poses": True, "epochs": 2} | changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(little(), folder)
    return folder


def test_the_threshold_is_chosen_on_validation_and_kept(run):
    lines = metrics(run)
    best = max(lines, key=lambda line: line["val"]["iou"])
    model = store.load(run / "best")
    assert model.metadata.threshold == best["val"]["threshold"]
    assert model.metadata.points == 60
    task, counts = evaluate(run, ["I"])
    assert task.threshold == model.metadata.threshold  # type: ignore[attr-defined]
    assert task.report(counts["I"][0])["threshold"] == model.metadata.threshold


@pytest.fixture(scope="module")
def seeing(run, tmp_path_factory):
    """A run whose network sees pebbles: what a few steps have taught sees all or nothing."""
    folder = tmp_path_factory.mktemp("runs") / "seeing"
    loop.create(folder, read_config(run))
    checkpoint.write(folder / "best", pebble(), pebble().metadata)
    return folder


def test_the_reported_iou_is_that_of_every_shape_counted_once(seeing):
    """Recounted shape by shape, at uniform queries of the test set."""
    config = little()
    task, counts = evaluate(seeing, ["SO3"])
    model, data = store.load(seeing / "best"), factory.open_dataset(config.data, "test")
    assert data.clouds.queries.shape[1] == factory.SHAPES_QUERIES["test"]  # type: ignore[attr-defined]
    total, share = 0.0, []
    for index in range(len(data)):
        cloud = batches.evaluation_batch(data, torch.tensor([index]), config.data, "SO3", config.runtime.seed)
        inside = model(cloud.points, cloud.queries).sigmoid() > model.metadata.threshold
        share.append(inside.float().mean().item())
        both, either = (inside & cloud.occupied).sum(), (inside | cloud.occupied).sum()
        total += (both / either).item() if either else 1.0
    assert task.report(counts["SO3"][0])["iou"] == pytest.approx(100 * total / len(data), abs=0.01)
    assert 0.05 < min(share) < max(share) < 0.95


def test_vector_neurons_do_not_mind_the_pose(seeing):
    task, counts = evaluate(seeing, ["I", "SO3"])
    upright, turned = (task.report(counts[kind][0])["iou"] for kind in ("I", "SO3"))
    assert abs(upright - turned) < 0.05
    assert 5 < upright < 60


def test_the_test_set_never_chooses_a_threshold(seeing, tmp_path):
    loop.create(tmp_path, read_config(seeing))
    checkpoint.write(tmp_path / "best", pebble(), store.Metadata(points=60))
    with pytest.raises(TrainingError, match="must not choose"):
        evaluate(tmp_path, ["I"])


def test_batches_are_scans_in_the_ball_of_their_own_points():
    config = little()
    data = factory.open_dataset(config.data, "train")
    for cloud in (
        batches.training_batch(data, torch.arange(5), config, epoch=0),
        batches.evaluation_batch(data, torch.arange(5), config.data, "SO3", 0),
    ):
        assert torch.allclose(cloud.points.mean(1), torch.zeros(5, 3), atol=1e-6)
        assert torch.allclose(cloud.points.norm(dim=-1).amax(1), torch.ones(5), atol=1e-6)
    assert batches.training_batch(data, torch.arange(5), config, epoch=0).queries.shape == (5, 64, 3)


def test_queries_move_with_their_points():
    """Whatever is done to a cloud, its queries stay inside or outside: asked of the shape itself."""
    data = Shapes("test", size=21, points=500, queries=200)
    generator = torch.Generator().manual_seed(0)
    for index in range(6):
        cloud = data[index]
        moved = UnitBall()(cloud, generator)
        center = cloud.points.mean(0)
        radius = (cloud.points - center).norm(dim=-1).amax()
        assert torch.equal(data.inside(index, moved.queries * radius + center), cloud.occupied)


def test_fixed_poses_are_one_for_each_cloud():
    fixed, free = (little(train_rotations="SO3", fixed_poses=x, noise=0.0, points=80) for x in (True, False))
    data = factory.open_dataset(fixed.data, "train")

    def poses(config, epoch):
        cloud = batches.training_batch(data, torch.arange(8), config, epoch)
        return cloud.points.sort(dim=1).values  # the points come in another order every time

    assert torch.allclose(poses(fixed, 0), poses(fixed, 7), atol=1e-5)
    assert not torch.allclose(poses(free, 0), poses(free, 7), atol=1e-2)
    upright = batches.training_batch(data, torch.arange(8), little(noise=0.0, points=80), 0).points.sort(dim=1).values
    assert ((poses(fixed, 0) - upright).abs().amax((1, 2)) > 1e-2).all()


def test_the_threshold_is_chosen_on_the_kinds_of_scans_that_were_trained_on(tmp_path, monkeypatch):
    asked = []
    measured = evaluation.measure
    monkeypatch.setattr(
        evaluation, "measure", lambda *args, **kw: asked.append(kw.get("occlude")) or measured(*args, **kw)
    )
    fit(little(occlude=0.5, epochs=1), tmp_path / "run")
    assert asked == [0.5]


def test_meshes_are_compared_with_surfaces(seeing):
    found = mesh_metrics.measure(seeing, ["I", "SO3"], 2)
    assert found.keys() == {"I", "SO3"}
    assert not (seeing / mesh_metrics.MESHES).exists()
    upright, turned = found["I"][0], found["SO3"][0]
    assert (upright["empty"], upright["shapes"]) == (0, 2)
    assert upright["chamfer_l1"] == pytest.approx(turned["chamfer_l1"], rel=0.02)
    assert "chamfer_l1" in results.format_results(found)


def test_the_true_surface_scores_nearly_everything():
    """A mesh of the shape itself, from its exact occupancy."""
    data = mesh_metrics.open_surfaces(little().data)
    for index in range(2):
        shape = extract(lambda x, i=index: data.inside(i, x).float() - 0.5, low=-1.1, high=1.1, resolution=128)  # type: ignore[attr-defined]
        found = mesh_metrics.compare_with_truth(shape, data[index])
        assert found.f_score > 0.97
        assert found.chamfer_l1 < 0.02
    assert mesh_metrics.compare_with_truth(Mesh(torch.zeros(0, 3), torch.zeros(0, 3).long()), data[0]) is None


def test_only_a_reconstruction_has_meshes(tmp_path):
    loop.create(tmp_path, tiny())
    with pytest.raises(TrainingError, match="only reconstruction has meshes"):
        mesh_metrics.measure(tmp_path, ["I"], 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": "modelnet40", "size": None}, "has no occupancy to learn from"),
        ({"queries": 0}, "needs --queries"),
        ({"network": NetworkConfig("pointnet", decoder="plain")}, "vector neurons go with the invariant one"),
        ({"network": NetworkConfig("pointnet", code=25)}, "multiple of 3"),
        ({"network": NetworkConfig("pointnet", k=8, local=70)}, "--local 70 points are more"),
        ({"network": NetworkConfig("pointnet"), "points": 15}, "--k 20 neighbors"),
        ({"shift": 0.1}, "--shift and --scale do nothing"),
        ({"network": NetworkConfig("pointnet", hidden=(5,))}, "OccupancyNetwork does not take --hidden"),
        ({"near_fraction": 1.5}, "--near-fraction"),
        ({"add_shapes": 10}, "--add-shapes belongs to --data occupancy"),
        ({"normals": 0.5}, "--model pointnet takes no --normals"),
        ({"network": NetworkConfig("framenet", neurons="scalar")}, "framenet has vector neurons"),
        ({"network": NetworkConfig("framenet", local=4)}, "FrameNetOccupancy does not take --local"),
        ({"fewest_points": 61}, "--fewest-points 61 are more than the 60 of a cloud"),
        ({"network": NetworkConfig("framenet"), "fewest_points": 15}, "--k 16 neighbors are more than the 15 points"),
        ({"task": "classification", "queries": 0, "normals": 1.0}, "--normals are for reconstruction"),
        ({"noise": -1.0}, "--noise"),
        ({"task": "classification"}, "--queries are for reconstruction"),
        ({"task": "classification", "queries": 0}, "PointNet does not take --code, --encoder-width, --decoder-width"),
        ({"task": "segmentation", "data": "occupancy", "size": None, "queries": 0}, "is for reconstruction, not seg"),
    ],
)
def test_what_cannot_work_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        check(little(**changes))


def test_the_table_has_the_papers_three_methods_and_ours():
    table = TABLES["reconstruction"]
    assert [row.paper for row in table.rows] == [(71.4, 30.9, 58.2), (72.0, 31.0, 59.4), (69.3, 69.3, 68.8)]
    assert [(row.name, row.paper) for row in TABLES["local"].rows][1] == ("vn-pointnet-local", ())
    found = presets("reconstruction")
    for config in found.values():
        check(config)
    assert {"paper-vn-pointnet-SO3", "fast-pointnet-invariant-I", "fast-pointnet-I"} <= set(found)
    paper = found["paper-vn-pointnet-I"]
    assert (paper.data.points, paper.data.queries, paper.data.near_fraction) == (300, 2048, 0.0)
    assert (paper.recipe.optimizer, paper.recipe.lr, paper.recipe.batch_size) == ("adam", 1e-4, 64)
    assert paper.protocol.fixed_poses
    model = factory.build_network(paper, Shapes("test", size=1))
    assert model.to_code.weight.shape == (171, 342)
    check(default_config("reconstruction"))
    check(little(network=NetworkConfig("pointnet", "scalar", code=25)))


class Balls(Dataset):
    """Unit spheres, and queries of which those in the ball are inside."""

    name, split, classes = "balls", "train", ("ball",)
    labels = torch.zeros(12, dtype=torch.long)

    def batch(self, indices):
        points, queries = torch.randn(2, len(indices), 600, 3, generator=torch.Generator().manual_seed(0))
        points = torch.nn.functional.normalize(points, dim=-1)
        return Cloud(points, queries=queries, occupied=queries.norm(dim=-1) < 1)


def sphere_through(points):
    """Center and radius of the sphere on which these points lie: |p|² = 2 ⟨p, c⟩ + (r² - |c|²), by least squares."""
    points = points.double()
    rows = torch.cat([2 * points, torch.ones(len(points), 1)], dim=1)
    *center, rest = torch.linalg.lstsq(rows, points.square().sum(-1, keepdim=True)).solution[:, 0]
    center = torch.stack(center)
    return center, (rest + center.square().sum()).sqrt()


@pytest.mark.parametrize("validating", [False, True])
def test_a_share_of_the_clouds_is_seen_from_one_side(validating):
    seen = {}
    for share in (0.0, 0.5, 1.0):
        config = little(points=100, stored_points=600, queries=300, noise=0.0, occlude=share)
        if validating:
            cloud = batches.evaluation_batch(Balls(), torch.arange(12), config.data, "I", 0, occlude=share)
        else:
            cloud = batches.training_batch(Balls(), torch.arange(12), config, epoch=0)
        spread = torch.linalg.svdvals(cloud.points - cloud.points.mean(1, keepdim=True))
        one_sided = spread[:, 2] < 0.7 * spread[:, 0]  # a cap is flat, a sphere is not
        seen[share] = int(one_sided.sum())
        # Points and queries are moved and scaled alike: what is inside still fills a ball whose surface the points are.
        for points, queries, inside in zip(cloud.points, cloud.queries, cloud.occupied, strict=True):
            middle, radius = sphere_through(points)
            assert torch.equal((queries - middle).norm(dim=-1) < radius, inside)
    assert (seen[0.0], seen[1.0]) == (0, 12)
    assert 0 < seen[0.5] < 12
    with pytest.raises(ConfigError, match="--occlude takes 0 to 1, got"):
        check(little(occlude=1.5))


def test_a_pack_without_near_queries_gives_uniform_ones(tmp_path):
    ball = extract(lambda x: 1 - x.norm(dim=-1), low=-1.2, high=1.2, start=16, resolution=16)
    for name in ("a", "b", "c", "d", "e", "f"):
        write(ball, tmp_path / f"{name}.off")
    occupancy.convert(tmp_path, tmp_path, points=500, queries=300, near=0)
    clouds = DataConfig(
        data="occupancy", data_root=str(tmp_path), points=60, stored_points=400, queries=100, near_fraction=0.5
    )
    assert factory.open_dataset(clouds, "train").clouds.queries.shape[1] == 300  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="fewer than --queries 2,048"):
        factory.open_dataset(replace(clouds, queries=2048), "train")
    assert mesh_metrics.open_surfaces(clouds)[0].points.shape == (500, 3)


def test_shapes_are_added_to_a_pack_and_framenet_learns_from_both(tmp_path):
    for name, radius in (("a", 0.5), ("b", 0.7), ("c", 0.9), ("d", 1.0)):
        ball = extract(lambda x, r=radius: r - x.norm(dim=-1), low=-1.2, high=1.2, start=16, resolution=16)
        for split in ("train", "val", "test"):
            (tmp_path / split / "ball").mkdir(parents=True, exist_ok=True)
            write(ball, tmp_path / split / "ball" / f"{name}.off")
    occupancy.convert(tmp_path, tmp_path, points=128, queries=300, near=300)
    network = NetworkConfig("framenet", k=6, embedding=8, decoder_width=8)
    where = {"data": "occupancy", "data_root": str(tmp_path), "size": None, "stored_points": 128, "network": network}
    config = little(**where, add_shapes=40, normals=0.5, fewest_points=20, batch_size=4, epochs=1)
    train, val, test = (factory.open_dataset(config.data, split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (44, 6, 4)
    both = train.batch(torch.tensor([0, 43]))
    own = Shapes("train", size=40, points=128, queries=600, near=0.5)[39]
    assert torch.equal(both.points[1], own.points)
    assert torch.equal(both.occupied[1], own.occupied)
    assert both.normals.norm(dim=-1).allclose(torch.ones(2, 128), atol=1e-4)
    fit(config, tmp_path / "run")
    assert metrics(tmp_path / "run")[0]["val"]["iou"] >= 0
    task, counts = evaluate(tmp_path / "run", ["I", "SO3"])
    upright, turned = (task.report(counts[kind][0])["iou"] for kind in ("I", "SO3"))
    assert upright == pytest.approx(turned, abs=0.05)
