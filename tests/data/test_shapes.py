import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from vector_neurons.data import Cloud, shapes
from vector_neurons.data.families import FAMILIES, Sampler
from vector_neurons.data.shapes import Shapes
from vector_neurons.data.solids import Assembly
from vector_neurons.geometry.sampling import unit_ball

ALL = Shapes(size=4 * len(FAMILIES), points=400, queries=200, mirrors=True)


@pytest.fixture(scope="module")
def clouds() -> Cloud:
    """Four of each family, twins included."""
    return ALL.batch(torch.arange(len(ALL)))


def digest(cloud: Cloud) -> str:
    hashed = hashlib.sha256()
    cloud.map(lambda x: (hashed.update(x.contiguous().numpy().tobytes()), x)[1])
    return hashed.hexdigest()


def test_what_a_batch_holds(clouds):
    count = len(ALL)
    assert clouds.points.shape == clouds.normals.shape == (count, 400, 3)
    assert clouds.parts.shape == (count, 400)
    assert clouds.queries.shape == (count, 200, 3)
    assert clouds.occupied.shape == (count, 200)
    assert clouds.points.dtype == clouds.normals.dtype == clouds.queries.dtype == torch.float32
    assert clouds.label.dtype == clouds.parts.dtype == torch.int64
    assert all(torch.isfinite(x).all() for x in (clouds.points, clouds.normals, clouds.queries))
    torch.testing.assert_close(clouds.points, unit_ball(clouds.points), rtol=0, atol=1e-5)
    torch.testing.assert_close(clouds.normals.norm(dim=-1), torch.ones(count, 400))


def test_labels_are_balanced_and_parts_belong_to_their_class(clouds):
    assert torch.equal(clouds.label, ALL.labels)
    assert ALL.labels.bincount().tolist() == [4] * len(FAMILIES)
    assert 4 <= len(ALL.parts) <= 50
    assert len(set(ALL.parts)) == len(ALL.parts)
    assert ALL.parts_of.shape == (len(ALL.classes), len(ALL.parts))
    assert ALL.parts_of[clouds.label[:, None], clouds.parts].all()


def test_every_part_of_every_class_is_drawn():
    data = Shapes(size=30 * len(FAMILIES), points=300, mirrors=True)
    clouds = data.batch(torch.arange(len(data)))
    drawn = torch.zeros_like(data.parts_of)
    drawn[clouds.label[:, None], clouds.parts] = True
    assert torch.equal(drawn, data.parts_of)


def test_there_are_enough_families_and_twins_are_left_out_unless_asked_for():
    assert len(Shapes().classes) >= 16
    twins = {name for name, family in FAMILIES.items() if family.twin}
    assert twins == {"left hand", "left stair"}
    assert set(Shapes(mirrors=True).classes) - set(Shapes().classes) == twins
    assert Shapes(mirrors=True).parts == Shapes().parts


def test_points_lie_on_the_surface_and_normals_point_out(clouds):
    inner, outer = (clouds.points.double() + step * clouds.normals.double() for step in (-1e-4, 1e-4))
    for i in range(len(ALL)):
        assert ALL.inside(i, inner[i]).double().mean() >= 0.99, ALL.classes[ALL.labels[i]]
        assert ALL.inside(i, outer[i]).double().mean() <= 0.01, ALL.classes[ALL.labels[i]]


def test_occupancy_is_that_of_the_object_and_some_of_each(clouds):
    for i in range(0, len(ALL), 5):
        answer = ALL.inside(i, clouds.queries[i])
        assert (answer != clouds.occupied[i]).sum() <= 1  # a query may sit within float32 of the surface
    share = clouds.occupied.double().mean(1)
    assert share.min() > 0.01
    assert share.max() < 0.7
    anywhere, near = clouds.queries[:, :100], clouds.queries[:, 100:]
    assert torch.cdist(near, clouds.points).amin(-1).mean() < torch.cdist(anywhere, clouds.points).amin(-1).mean() / 3


def test_a_cloud_does_not_depend_on_its_batch_nor_on_threads(clouds):
    alone = [ALL[i] for i in (3, 40, 3)]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    mixed = ALL.batch(torch.tensor([40, 7, 3]))
    torch.set_num_threads(before)
    assert (
        digest(alone[0]) == digest(alone[2]) == digest(mixed.map(lambda x: x[2])) == digest(clouds.map(lambda x: x[3]))
    )
    assert digest(alone[1]) == digest(mixed.map(lambda x: x[0])) == digest(clouds.map(lambda x: x[40]))


@pytest.mark.parametrize("threads", ["1", "2"])
def test_another_process_makes_the_same_clouds(threads):
    code = (
        "import torch; from vector_neurons.data import shapes\n"
        "data = shapes.Shapes('test', size=42, points=128, queries=64, seed=5)\n"
        "cloud = data.batch(torch.arange(41, -1, -1))\n"
        "import hashlib; hashed = hashlib.sha256()\n"
        "cloud.map(lambda x: (hashed.update(x.flip(0).contiguous().numpy().tobytes()), x)[1])\n"
        "print(hashed.hexdigest())"
    )
    env = os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    data = Shapes("test", size=42, points=128, queries=64, seed=5)
    assert run.stdout.strip() == digest(data.batch(torch.arange(42)))


def test_size_and_queries_change_nothing_else():
    small, large = Shapes(size=30, points=64), Shapes(size=3000, points=64, queries=10)
    assert torch.equal(small[20].points, large[20].points)
    assert torch.equal(small[-1].points, large[29].points)
    few, many = (Shapes(size=30, points=points).batch(torch.arange(30)).points for points in (900, 2700))
    spread = torch.stack([x.std(1) for x in (few, many)])
    assert (spread[0] - spread[1]).abs().max() < 0.06  # the object is the same


def test_splits_and_seeds_share_no_cloud():
    sets = [Shapes(split, size=63, points=16, seed=seed) for split in ("train", "val", "test") for seed in (0, 1)]
    clouds = torch.cat([data.batch(torch.arange(63)).points for data in sets]).flatten(1)
    assert len(clouds.unique(dim=0)) == len(clouds)


def test_families_can_be_chosen():
    data = Shapes(size=5, points=32, families=["mug", "left hand"])
    assert data.classes == ("mug", "left hand")
    assert data.parts == ("mug body", "mug handle", "hand palm", "hand finger")
    assert data.labels.tolist() == [0, 1, 0, 1, 0]
    assert data.parts_of.tolist() == [[True, True, False, False], [False, False, True, True]]
    assert (data[1].parts >= 2).all()


@pytest.mark.parametrize("name", Shapes().classes)
def test_every_object_is_in_one_piece(name):
    for seed in range(4):
        union, rng = Assembly(FAMILIES[name].sample(Sampler(np.random.default_rng(seed)))), np.random.default_rng(seed)
        surfaces = [Assembly([solid]).sample(1500, rng)[0] for solid in union.solids]
        touch = np.stack([(union.levels(points) < 1e-6).any(axis=1) for points in surfaces])
        reached = np.linalg.matrix_power((touch | touch.T).astype(float), len(surfaces))
        assert (reached > 0).all()


@pytest.mark.parametrize("name", ["hand", "stair"])
def test_a_twin_is_the_mirror_image_of_its_sibling(name):
    right, left = (FAMILIES[f"{side} {name}"].sample(Sampler(np.random.default_rng(3))) for side in ("right", "left"))
    for one, other in zip(right, left, strict=True):
        assert one.sizes == other.sizes
        assert one.origin == (other.origin[0], -other.origin[1], other.origin[2])


def test_right_stairs_rise_as_a_right_handed_screw():
    for side, sign in (("right", 1), ("left", -1)):
        data = Shapes(size=3, points=3000, families=[f"{side} stair"])
        for i in range(3):
            step = data[i].parts == data.parts.index("stair step")
            x, y, z = data[i].points[step][data[i].points[step][:, 2].argsort()].T
            angle = np.unwrap(torch.atan2(y, x).numpy())
            assert sign * np.corrcoef(angle, z)[0, 1] > 0.5


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("table leg", "table top"),
        ("chair leg", "chair back"),
        ("car wheel", "car cabin"),
        ("plant pot", "plant leaf"),
        ("rocket fin", "rocket nose"),
        ("helicopter skid", "helicopter rotor"),
    ],
)
def test_objects_stand_upright(clouds, lower, higher):
    z = clouds.points[..., 2]
    below, above = (z[clouds.parts == ALL.parts.index(part)] for part in (lower, higher))
    assert below.mean() < above.mean()


def boxes(data: Shapes) -> torch.Tensor:
    """Extents and eigenvalues of the covariance: what the proportions of a cloud tell."""
    points = data.batch(torch.arange(len(data))).points.double()
    extents = points.amax(1) - points.amin(1)
    eigenvalues = torch.linalg.eigvalsh(points.mT @ points / points.shape[1])
    return torch.cat([F.normalize(extents, dim=1), F.normalize(eigenvalues, p=1, dim=1)], dim=1)


def test_proportions_alone_do_not_tell_the_families():
    train, test = Shapes(size=1260, points=256), Shapes("test", size=630, points=256)
    x, held_out = boxes(train), boxes(test)
    mean, spread = x.mean(0), x.std(0)
    model = torch.nn.Linear(x.shape[1], len(train.classes), dtype=torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(model((x - mean) / spread), train.labels)
        value.backward()
        return value

    optimizer.step(loss)
    accuracy = (model((held_out - mean) / spread).argmax(1) == test.labels).double().mean()
    assert 2 / len(train.classes) < accuracy < 0.6


def test_what_cannot_be_made_is_said_in_one_line(unchecked):
    for words, options in {
        "splits train, val, test, got 'all'": {"split": "all"},
        "points >= 1, got 0": {"points": 0},
        "size >= 1, got 0": {"size": 0},
        "queries >= 0, got -1": {"queries": -1},
        "seed >= 0, got -3": {"seed": -3},
        "no family 'tabel'; it has table, stool": {"families": ["tabel"]},
        "different families, got cup, cup": {"families": ["cup", "cup"]},
        "different families, got none": {"families": []},
    }.items():
        with pytest.raises(ValueError, match=words):
            Shapes(**options)
    data = Shapes(size=3, points=8)
    with pytest.raises(IndexError, match="index 3 is out of range: shapes has 3 clouds"):
        data[3]
    with pytest.raises(IndexError, match="index 5 is out of range: shapes has 3 clouds"):
        data.batch(torch.tensor([0, 5]))


def test_one_point_is_a_cloud():
    cloud = Shapes(size=1, points=1, queries=1)[0]
    assert cloud.points.tolist() == [[0, 0, 0]]
    assert cloud.queries.shape == (1, 3)
    assert math.isfinite(cloud.queries.sum())
    assert shapes.Shapes is Shapes
