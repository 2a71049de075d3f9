import dataclasses

import pytest
import torch

from vector_neurons.data import Cloud, Dataset
from vector_neurons.geometry import rotations


def cloud(seed: int = 0, points: int = 10) -> Cloud:
    generator = torch.Generator().manual_seed(seed)
    return Cloud(
        points=torch.randn(points, 3, generator=generator),
        normals=torch.randn(points, 3, generator=generator),
        label=torch.tensor(seed),
        parts=torch.randint(4, (points,), generator=generator),
        queries=torch.randn(7, 3, generator=generator),
        occupied=torch.rand(7, generator=generator) > 0.5,
    )


class Pair(Dataset):
    name = "pair"
    split = "train"
    classes = ("a", "b")
    labels = torch.tensor([0, 1])

    def batch(self, indices):
        return Cloud.stack([cloud(int(i)) for i in indices])


def test_rotate_turns_points_normals_and_queries_and_nothing_else():
    before, R = cloud(), rotations.draw("SO3", 1)[0]
    after = before.rotate(R)
    for name in ("points", "normals", "queries"):
        expected = torch.stack([R @ x for x in getattr(before, name)])
        torch.testing.assert_close(getattr(after, name), expected)
    for name in ("label", "parts", "occupied"):
        assert getattr(after, name) is getattr(before, name)


def test_a_batch_turns_each_cloud_by_its_own_rotation():
    R = rotations.draw("SO3", 2)
    turned = Cloud.stack([cloud(0), cloud(1)]).rotate(R)
    for i in range(2):
        torch.testing.assert_close(turned.queries[i], cloud(i).rotate(R[i]).queries)


def test_unknown_stays_unknown():
    bare = Cloud(torch.randn(5, 3)).rotate(torch.eye(3))
    assert all(getattr(bare, field.name) is None for field in dataclasses.fields(bare) if field.name != "points")


def test_to_changes_coordinates_but_not_labels():
    double = cloud().to(torch.float64)
    assert double.points.dtype == double.queries.dtype == torch.float64
    assert double.label.dtype == double.parts.dtype == torch.int64
    assert double.occupied.dtype == torch.bool
    away = cloud().to("meta", non_blocking=True)
    assert away.parts.device.type == "meta"
    half = away.to(torch.float16)  # a type alone moves nothing
    assert {x.device.type for x in vars(half).values()} == {"meta"}
    assert half.points.dtype == torch.float16


def test_stack_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="at least one"):
        Cloud.stack([])
    with pytest.raises(ValueError, match="1 of 2 clouds have normals"):
        Cloud.stack([cloud(), dataclasses.replace(cloud(), normals=None)])
    with pytest.raises(ValueError, match=r"one shape, got \(10, 3\), \(9, 3\)"):
        Cloud.stack([cloud(), cloud(points=9)])


def test_a_set_gives_single_clouds_from_its_batches():
    pair = Pair()
    assert len(pair) == 2
    torch.testing.assert_close(pair[-1].points, cloud(1).points)
    assert pair[1].label.shape == ()
    with pytest.raises(IndexError, match="index 2 is out of range: pair has 2 clouds"):
        pair[2]
    assert len(list(pair)) == 2
