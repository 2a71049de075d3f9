"""Losses and reports against slow transcriptions, and counts that add up in any order."""

import math
import random

import pytest
import torch

from vector_neurons.data import Cloud, Shapes
from vector_neurons.tasks import Classification, Segmentation, add
from vector_neurons.tasks.task import FIXED_POINT_MAX, from_fixed_point, to_fixed_point

CLASSES = ("cup", "axe", "hat", "owl")  # the last one never occurs
PARTS_OF = [[0, 1], [2, 3, 4], [5], [6, 7]]


def classified(n=60):
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(3, (n,), generator=generator)
    return torch.randn(n, 4, generator=generator), Cloud(torch.zeros(n, 2, 3), label=label)


def segmented(n=30, points=12):
    generator = torch.Generator().manual_seed(2)
    label = torch.randint(3, (n,), generator=generator)
    parts = torch.tensor(
        [[random.Random(31 * i + j).choice(PARTS_OF[c]) for j in range(points)] for i, c in enumerate(label.tolist())]
    )
    parts[0] = PARTS_OF[int(label[0])][0]  # a shape of one part only
    logits = torch.randn(n, points, 8, generator=generator)
    logits[0].fill_(0)  # nothing tells the parts apart: the first is taken
    return logits, Cloud(torch.zeros(n, points, 3), label=label, parts=parts)


def segmentation():
    allowed = torch.tensor([[part in parts for part in range(8)] for parts in PARTS_OF])
    return Segmentation([f"part {i}" for i in range(8)], allowed)


def smooth_cross_entropy(logits, truth, smoothing):
    total = math.log(sum(math.exp(x) for x in logits))
    share = smoothing / len(logits)
    return -sum((share + (1 - smoothing) * (i == truth)) * (x - total) for i, x in enumerate(logits))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses(smoothing):
    logits, cloud = classified()
    slow = [smooth_cross_entropy(x, y, smoothing) for x, y in zip(logits.tolist(), cloud.label.tolist(), strict=True)]
    assert Classification(CLASSES).loss(logits, cloud, smoothing).item() == pytest.approx(sum(slow) / len(slow))
    logits, cloud = segmented(4)
    pairs = zip(logits.flatten(0, 1).tolist(), cloud.parts.flatten().tolist(), strict=True)
    slow = [smooth_cross_entropy(x, y, smoothing) for x, y in pairs]
    assert segmentation().loss(logits, cloud, smoothing).item() == pytest.approx(sum(slow) / len(slow))


def test_accuracies():
    logits, cloud = classified()
    task = Classification(CLASSES)
    report = task.report(task.count(logits, cloud))
    said = [max(range(4), key=row.__getitem__) for row in logits.tolist()]
    truth = cloud.label.tolist()
    right = [a == b for a, b in zip(said, truth, strict=True)]
    each = []
    for label in set(truth):
        own = [r for r, t in zip(right, truth, strict=True) if t == label]
        each.append(sum(own) / len(own))
    assert report["accuracy"] == pytest.approx(100 * sum(right) / len(right))
    assert report["class_accuracy"] == pytest.approx(100 * sum(each) / len(each))
    assert task.count(logits, cloud)["confusion"].sum() == len(truth)


def test_mean_ious():
    """Point by point, in sets."""
    logits, cloud = segmented()
    by_category = {}
    right = 0
    for said, truth, label in zip(logits.tolist(), cloud.parts.tolist(), cloud.label.tolist(), strict=True):
        own = PARTS_OF[label]
        predicted = [max(own, key=row.__getitem__) for row in said]
        right += sum(a == b for a, b in zip(predicted, truth, strict=True))
        ious = []
        for part in own:
            a = {i for i, x in enumerate(predicted) if x == part}
            b = {i for i, x in enumerate(truth) if x == part}
            ious.append(len(a & b) / len(a | b) if a | b else 1.0)
        by_category.setdefault(label, []).append(sum(ious) / len(ious))
    every = [iou for ious in by_category.values() for iou in ious]
    means = [sum(ious) / len(ious) for ious in by_category.values()]
    task = segmentation()
    report = task.report(task.count(logits, cloud))
    assert report["instance_miou"] == pytest.approx(100 * sum(every) / len(every), abs=1e-5)
    assert report["category_miou"] == pytest.approx(100 * sum(means) / len(means), abs=1e-5)
    assert report["accuracy"] == pytest.approx(100 * right / cloud.parts.numel())
    assert by_category[int(cloud.label[0])][0] == 1.0  # its absent parts were not predicted either


@pytest.mark.parametrize(("task", "batch"), [(Classification(CLASSES), classified()), (segmentation(), segmented())])
def test_counts_add_up_however_the_set_is_cut(task, batch):
    logits, cloud = batch
    whole = task.report(task.count(logits, cloud))
    for size in (1, 7):
        counts = None
        for start in reversed(range(0, len(logits), size)):
            here = slice(start, start + size)
            counts = add(counts, task.count(logits[here], cloud.map(lambda x, here=here: x[here])))
        assert task.report(counts) == whole  # to the last bit


def test_a_perfect_prediction_of_shapes():
    data = Shapes("test", size=21, points=64)
    cloud = data.batch(torch.arange(21))
    task = Segmentation(data.parts, data.parts_of)
    report = task.report(task.count(torch.nn.functional.one_hot(cloud.parts, len(data.parts)).float(), cloud))
    assert report == {"instance_miou": 100, "category_miou": 100, "accuracy": 100}


def test_numbers_in_fixed_point():
    x = torch.tensor([0.0, 0.3, -2.5, float("nan"), float("inf")])
    expected = [0, 0.3, -2.5, FIXED_POINT_MAX, FIXED_POINT_MAX]
    assert from_fixed_point(to_fixed_point(x)).tolist() == pytest.approx(expected, abs=1e-7)
