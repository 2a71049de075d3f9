import dataclasses

import pytest
import torch

from vector_neurons.data import Cloud
from vector_neurons.data.augment import Chain, Jitter, Occlude, Outliers, Scale, Shift, Subset, visible

ALL = [Scale(), Shift(), Jitter(), Subset(40, 5), Outliers(0.2), Occlude(), Chain(Scale(), Jitter(), Subset(10))]
SAME_POINTS = [Subset(40), Occlude()]  # these choose among points and move none


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch():
    generator = seeded(9)
    normals = torch.nn.functional.normalize(torch.randn(4, 100, 3, generator=generator), dim=-1)
    return Cloud(
        points=normals * torch.tensor([1.0, 0.7, 0.5]),
        normals=normals,
        label=torch.arange(4),
        parts=torch.arange(100).repeat(4, 1),
        queries=torch.randn(4, 7, 3, generator=generator),
        occupied=torch.rand(4, 7, generator=generator) > 0.5,
    )


@pytest.mark.parametrize("augment", ALL, ids=lambda a: type(a).__name__)
def test_seeded_fields_agree_and_the_cloud_itself_stays(batch, augment):
    before = batch.map(torch.clone)
    once, twice, other = augment(batch, seeded()), augment(batch, seeded()), augment(batch, seeded(1))
    for field in dataclasses.fields(Cloud):
        assert torch.equal(getattr(batch, field.name), getattr(before, field.name))
        assert torch.equal(getattr(once, field.name), getattr(twice, field.name))
    assert not torch.equal(once.points, other.points)
    n = once.points.shape[1]
    assert once.normals.shape == (4, n, 3)
    assert once.parts.shape == (4, n)
    assert once.queries.shape[:2] == once.occupied.shape
    assert torch.equal(once.label, batch.label)
    torch.testing.assert_close(once.normals.norm(dim=-1), torch.ones(4, n))


@pytest.mark.parametrize("augment", ALL, ids=lambda a: type(a).__name__)
def test_single_clouds_and_bare_ones(batch, augment):
    single = augment(batch.map(lambda x: x[0]), seeded())
    assert single.points.ndim == 2
    assert single.label.shape == ()
    bare = augment(Cloud(batch.points.double()), None)
    assert bare.points.dtype == torch.float64
    assert bare.normals is None


@pytest.mark.parametrize("augment", ALL, ids=lambda a: type(a).__name__)
def test_clouds_of_a_batch_differ(augment):
    same = Cloud(torch.randn(100, 3, generator=seeded(2)).expand(3, 100, 3))
    out = augment(same, seeded()).points
    assert not torch.equal(out[0], out[1])


@pytest.mark.parametrize("augment", SAME_POINTS, ids=lambda a: type(a).__name__)
def test_points_are_chosen_with_what_belongs_to_them(batch, augment):
    out = augment(batch, seeded())
    for i in range(4):
        assert torch.equal(out.points[i], batch.points[i][out.parts[i]])  # parts number the points here
        assert torch.equal(out.normals[i], batch.normals[i][out.parts[i]])


def test_scale_is_per_axis_and_normals_stay_perpendicular(batch):
    out = Scale(0.5, 2.0)(batch, seeded())
    factor = out.points / batch.points
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))
    assert 0.5 <= factor.min() < factor.max() <= 2
    torch.testing.assert_close(out.queries, batch.queries * factor[:, :1])
    tangent = torch.linalg.cross(batch.normals, torch.randn(4, 100, 3, generator=seeded(3)))
    torch.testing.assert_close((out.normals * (tangent * factor)).sum(-1), torch.zeros(4, 100), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="0 < low <= high"):
        Scale(2.0, 1.0)


def test_shift_moves_queries_too_and_jitter_does_not(batch):
    out = Shift(0.3)(batch, seeded())
    by = out.points - batch.points
    torch.testing.assert_close(by, by[:, :1].expand_as(by))
    assert 0 < by.abs().max() <= 0.3
    torch.testing.assert_close(out.queries - batch.queries, by[:, :7])
    out = Jitter(0.1, clip=0.15)(batch, seeded())
    assert out.queries is batch.queries
    moved = out.points - batch.points
    assert moved.abs().max() <= 0.15 + 1e-6
    assert 0.08 < moved.std() < 0.1


def test_subset_takes_no_point_twice(batch):
    out = Subset(60, 4)(batch, seeded())
    assert all(len(set(row.tolist())) == 60 for row in out.parts)
    for i in range(4):
        places = [torch.nonzero((batch.queries[i] == q).all(-1)).item() for q in out.queries[i]]
        assert torch.equal(out.occupied[i], batch.occupied[i][places])
    with pytest.raises(ValueError, match="cannot choose a subset of 101 out of 100 points"):
        Subset(101)(batch, seeded())


def test_outliers_fill_the_ball(batch):
    out = Outliers(0.3)(batch, seeded())
    moved = (out.points != batch.points).any(-1)
    assert moved.sum(1).tolist() == [30] * 4
    assert torch.equal(out.parts, batch.parts)
    many = Outliers(1.0)(Cloud(torch.randn(2, 5000, 3, generator=seeded(4))), seeded()).points
    radius = (many - many.mean(1, keepdim=True)).norm(dim=-1)
    share = (radius < radius.amax(1, keepdim=True) / 2).float().mean()
    torch.testing.assert_close(share, torch.tensor(1 / 8), atol=0.02, rtol=0)  # half the radius, an eighth of all
    assert Outliers(0.0)(batch, seeded()) is batch
    with pytest.raises(ValueError, match="fraction between 0 and 1"):
        Outliers(2.0)


@pytest.mark.parametrize(("n", "wrong"), [(256, 0.25), (1024, 0.12), (4096, 0.06)])
def test_a_ball_is_seen_from_one_side(n, wrong):
    points = torch.nn.functional.normalize(torch.randn(2, n, 3, generator=seeded()), dim=-1)
    camera = torch.tensor([[[0.0, 0.0, 3.0]], [[3.0, 0.0, 0.0]]])
    seen = visible(points, camera)
    truth = (points * camera).sum(-1) > 1  # what a ball of radius 1 shows at distance 3
    assert seen[truth].all()
    assert (seen & ~truth).sum() / seen.sum() < wrong  # a rim, which narrows as points get denser


def test_visible_points_are_no_mixture_of_others_and_the_camera():
    from scipy.optimize import linprog

    points, camera = torch.randn(40, 3, generator=seeded(), dtype=torch.float64), torch.tensor([[0.0, 5.0, 0.0]])
    ray = points - camera
    distance = ray.norm(dim=-1, keepdim=True)
    reflected = ray / distance * (2 * 2 * distance.max() - distance)
    expected = []
    for i in range(len(points)):
        others = torch.cat([reflected[:i], reflected[i + 1 :], torch.zeros(1, 3)]).double()
        weights = torch.cat([others, torch.ones(len(others), 1)], dim=1).T.numpy()
        mixture = linprog([0.0] * len(others), A_eq=weights, b_eq=[*reflected[i].tolist(), 1.0])
        expected.append(not mixture.success)
    assert 5 < sum(expected) < 35
    assert visible(points, camera.double(), sphere=2.0).tolist() == expected


def test_copies_are_as_visible_as_the_point_and_a_plane_seen_edge_on_hides_nothing():
    points = torch.nn.functional.normalize(torch.randn(200, 3, generator=seeded()), dim=-1)
    camera = torch.tensor([[0.0, 0.0, 3.0]])
    first, second = visible(torch.cat([points, points]), camera).view(2, -1)
    assert torch.equal(first, second)
    assert torch.equal(first, visible(points, camera))
    flat = points * torch.tensor([0.0, 1.0, 1.0])
    assert visible(flat, camera).all()


def test_what_stands_in_front_hides_what_is_behind():
    axis = torch.linspace(-1, 1, 24)
    plane = torch.cartesian_prod(axis, axis)
    front, back = (torch.cat([plane, torch.full((len(plane), 1), z)], dim=1) for z in (0.5, -0.5))
    seen = visible(torch.cat([back, front])[None], torch.tensor([[[0.0, 0.0, 4.0]]]))[0]
    # From there the front plane covers the back one but for a rim.
    assert seen[len(plane) :].float().mean() > 0.95
    hidden = (back[:, :2].abs() < 0.9).all(-1)
    assert seen[: len(plane)][hidden].float().mean() < 0.02


def test_a_partial_scan_repeats_what_is_seen(batch):
    out = Occlude()(batch, seeded())
    for row in out.parts.tolist():
        seen = set(row)
        assert 20 < len(seen) < 80
        counts = [row.count(part) for part in seen]
        assert max(counts) - min(counts) <= 1
    one_place = Occlude()(Cloud(torch.ones(2, 10, 3)), seeded())
    assert torch.equal(one_place.points, torch.ones(2, 10, 3))
    with pytest.raises(ValueError, match="distance > 1"):
        Occlude(distance=0.5)


def test_queries_without_answers_are_cut_too(batch):
    asked = Subset(queries=5)(dataclasses.replace(batch, occupied=None), seeded())
    assert asked.queries.shape == (4, 5, 3)
    assert asked.occupied is None
