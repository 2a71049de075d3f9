"""Schedules, averages, poses: what the loop is made of."""

import math
from dataclasses import replace

import pytest
import torch
from tiny import tiny
from torch import nn

from vector_neurons.data import DataError, Shapes
from vector_neurons.geometry import rotations
from vector_neurons.training import RecipeConfig, batches, evaluation, factory, fit, optimize


def test_schedules():
    cycle = RecipeConfig(epochs=10, lr=1.0, schedule="one-cycle", warmup=0.3)
    rates = [optimize.learning_rate(cycle, e / 10) for e in range(101)]
    assert rates[0] == pytest.approx(1 / 25)
    assert max(rates) == rates[30] == 1
    assert rates[-1] == pytest.approx(0)
    assert rates[:31] == sorted(rates[:31])
    assert rates[30:] == sorted(rates[30:], reverse=True)
    paper = RecipeConfig(epochs=250, lr=0.1, schedule="cosine", warmup=0.0, final_lr=1e-3)
    assert optimize.learning_rate(paper, 100.0) == pytest.approx(1e-3 + 0.099 * (1 + math.cos(math.pi * 0.4)) / 2)
    step = RecipeConfig(epochs=200, lr=1e-3, schedule="step", warmup=0.0, step_size=20, gamma=0.7)
    assert [optimize.learning_rate(step, e) for e in (0.0, 19.9, 20.0, 41.0)] == pytest.approx(
        [1e-3, 1e-3, 7e-4, 4.9e-4]
    )
    warm = RecipeConfig(epochs=10, lr=1.0, schedule="constant", warmup=0.2)
    assert [optimize.learning_rate(warm, e) for e in (0.0, 1.0, 2.0, 9.0)] == [0, 0.5, 1, 1]


def test_adamw_does_not_pull_norms_to_zero():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    groups = optimize.optimizer(model, RecipeConfig(optimizer="adamw", weight_decay=0.1)).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (3, 0.0)]


def test_the_average_of_weights():
    model, averaged = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    slow = averaged.weight.item()
    for step in range(50):
        with torch.no_grad():
            model.weight.fill_(step)
        model.num_batches_tracked.fill_(step)
        optimize.average(averaged, model, 0.9, step)
        decay = min(0.9, (1 + step) / (10 + step))
        slow = decay * slow + (1 - decay) * step
    assert averaged.weight.item() == pytest.approx(slow, rel=1e-5)
    assert averaged.num_batches_tracked == 49


def test_a_test_pose_belongs_to_its_cloud():
    config = tiny()
    data = factory.open_dataset(config.data, "test")
    together = batches.evaluation_batch(data, torch.arange(8), config.data, "SO3", seed=0)
    alone = batches.evaluation_batch(data, torch.tensor([5]), config.data, "SO3", seed=0)
    assert torch.equal(together.points[5], alone.points[0])
    again, other, turned = (
        batches.evaluation_batch(data, torch.tensor([5]), config.data, "SO3", seed=seed, trial=trial).points
        for seed, trial in ((0, 0), (1, 0), (0, 1))
    )
    assert torch.equal(again, alone.points)
    assert not torch.allclose(other, again)
    assert not torch.allclose(turned, again)
    # The same points in every pose: what a network says can differ by the pose only.
    distances = [torch.cdist(x.double(), x.double()) for x in (again, turned)]
    torch.testing.assert_close(*distances, atol=1e-4, rtol=1e-4)


def test_rare_classes_are_drawn_more_often():
    labels = torch.tensor([0] * 900 + [1] * 90 + [2] * 10)

    def shares(balance):
        draws = [batches.training_order(labels, balance, torch.Generator().manual_seed(i)) % 1000 for i in range(20)]
        return torch.stack([labels[draw].bincount(minlength=3) / 1000 for draw in draws]).mean(0)

    assert shares(0.0).tolist() == pytest.approx([0.9, 0.09, 0.01])
    root = torch.tensor([900.0, 90.0, 10.0]).sqrt()
    torch.testing.assert_close(shares(0.5), root / root.sum(), atol=0.02, rtol=0)
    torch.testing.assert_close(shares(1.0), torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    once = batches.training_order(labels, 0.0, torch.Generator().manual_seed(0))
    assert torch.equal(once.sort().values, torch.arange(1000))
    drawn = batches.training_order(labels, 1.0, torch.Generator().manual_seed(0))
    assert len(drawn.unique()) == 1000  # a cloud that comes again has another number, the next one ...
    for index in range(1000):
        assert (drawn[drawn % 1000 == index] // 1000).tolist() == list(range(int((drawn % 1000 == index).sum())))


def test_a_cloud_that_comes_again_is_augmented_anew():
    config = tiny()
    data = factory.open_dataset(config.data, "train")
    both = batches.training_batch(data, torch.tensor([3, 3 + len(data)]), config, epoch=0)
    assert both.label.tolist() == [int(data.labels[3])] * 2
    assert not torch.allclose(*both.points)


def test_training_clouds_do_not_depend_on_their_batch():
    config = tiny()
    data = factory.open_dataset(config.data, "train")
    together = batches.training_batch(data, torch.arange(6), config, epoch=3)
    halves = [batches.training_batch(data, i, config, epoch=3) for i in torch.arange(6).tensor_split(2)]
    assert torch.equal(together.points, torch.cat([half.points for half in halves]))
    assert not torch.allclose(together.points, batches.training_batch(data, torch.arange(6), config, epoch=4).points)


@pytest.mark.parametrize(("kind", "upright"), [("I", True), ("z", True), ("SO3", False)])
def test_training_poses_follow_the_protocol(kind, upright):
    plain = {"anisotropic_scale": 1.0, "shift": 0.0, "stored_points": 64}
    config, as_is = (tiny(train_rotations=k, **plain) for k in (kind, "I"))
    data = factory.open_dataset(config.data, "train")
    turned, unturned = (batches.training_batch(data, torch.arange(12), s, epoch=0).points for s in (config, as_is))
    assert torch.allclose(turned[..., 2], unturned[..., 2], atol=1e-6) == upright
    assert torch.equal(turned, unturned) == (kind == "I")
    torch.testing.assert_close(turned.norm(dim=-1), unturned.norm(dim=-1))
    assert rotations.draw(kind, 1).shape == (1, 3, 3)


def test_fewer_points_early():
    config = tiny(epochs=4, early_points=16, early_fraction=0.5)
    assert [batches.points_at(config, epoch) for epoch in range(4)] == [16, 16, 64, 64]


def test_validation_has_the_points_of_training_and_the_best_model_those_of_testing(tmp_path, monkeypatch):
    seen = []

    def measure(model, task, data, config, *_, **__):
        seen.append(config.data.points)
        score = 90 if config.data.points == 16 else 40 + len(seen)  # fewer points, and yet higher scores
        return {"score": score}

    monkeypatch.setattr(evaluation, "measure", measure)
    monkeypatch.setattr(evaluation, "compute_metrics", lambda task, counts: {"loss": 1.0, "accuracy": counts["score"]})
    progress = fit(tiny(epochs=4, early_points=16, early_fraction=0.5), tmp_path / "run")
    assert seen == [16, 16, 64, 64]
    assert (progress.best_epoch, progress.best) == (4, 44)


def test_a_subset_of_the_training_clouds_is_part_of_a_larger_one():
    whole = Shapes("train", size=42, points=32)
    few, more = (factory.RandomSubset(whole, size) for size in (7, 20))
    kept = torch.arange(7)
    assert len(few) == 7
    assert few.rows.tolist() == more.rows[:7].tolist() != list(range(7))
    assert torch.equal(few.batch(kept).points, more.batch(kept).points)
    assert torch.equal(few.batch(kept).label, few.labels)
    assert few.classes == whole.classes  # also those that none of its clouds has
    with pytest.raises(DataError, match=r"has 42 training clouds, fewer than --size 50"):
        factory.RandomSubset(whole, 50)


def test_the_number_of_points_and_normals_are_drawn_for_each_batch():
    config = tiny(points=64, stored_points=64, fewest_points=16)
    config = replace(config, data=replace(config.data, normals=0.5))
    data, indices = factory.open_dataset(config.data, "train"), torch.arange(4)
    made = [batches.training_batch(data, indices, config, epoch=1, step=step) for step in range(40)]
    numbers = [cloud.points.shape[1] for cloud in made]
    assert 16 <= min(numbers) < 24
    assert 48 < max(numbers) <= 64
    assert sum(number < 32 for number in numbers) == pytest.approx(20, abs=7)  # each doubling is as likely
    assert 10 <= sum(cloud.normals is not None for cloud in made) <= 30
    again = batches.training_batch(data, indices[:2], config, epoch=1, step=7)
    assert torch.equal(again.points, made[7].points[:2])  # whatever shares the batch
    assert [batches.training_batch(data, indices, config, epoch=2, step=7).points.shape[1]] != numbers[7:8]
    assert batches.evaluation_batch(data, indices, config.data, "I", seed=0).points.shape[1] == 64


def test_noise_and_outliers_are_drawn_for_each_cloud():
    plain = {"points": 64, "stored_points": 64, "noise": 0.1, "anisotropic_scale": 1.0, "shift": 0.0}
    still = tiny(**{**plain, "noise": 0.0, "train_rotations": "I"})
    data, indices = factory.open_dataset(still.data, "train"), torch.arange(40)
    clean = batches.training_batch(data, indices, still, epoch=0).points
    # Subsets are drawn first and are the same: the points differ by the noise alone.
    noisy = tiny(**{**plain, "train_rotations": "I", "vary_noise": True})
    sizes = (batches.training_batch(data, indices, noisy, epoch=0).points - clean).std(dim=(1, 2))
    assert sizes.min() < 0.03
    assert 0.15 < sizes.max() < 0.23
    outliers = tiny(**{**plain, "noise": 0.0, "train_rotations": "I", "outliers": 0.25})
    moved = (batches.training_batch(data, indices, outliers, epoch=0).points != clean).any(-1).sum(1)
    assert 0 <= moved.min() <= 3
    assert 10 < moved.max() <= 16
