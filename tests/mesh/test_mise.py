import sys

import numpy as np
import pytest
import torch
from skimage.measure import marching_cubes

from vector_neurons.geometry import rotations
from vector_neurons.mesh import MeshError, extract, watertight

CENTER = torch.tensor([0.03, -0.05, 0.02], dtype=torch.float64)


def ball(points, radius=0.4, center=CENTER):
    return radius - (points - center.to(points)).norm(dim=-1)


def torus(points):
    x, y, z = (points - CENTER.to(points)).unbind(-1)
    return 0.12 - torch.hypot(torch.hypot(x, y) - 0.3, z)


def two_balls(points):
    return torch.maximum(ball(points, 0.2, CENTER - 0.2), ball(points, 0.15, CENTER + 0.2))


def shell(points):  # as thick as half a coarse cell of 1 / 32
    return 1 / 128 - ball(points, 0.3).abs()


def ball_with_a_hair(points):
    """The hair is thinner than a coarse cell, and does not meet a point of the coarse grid."""
    x, y, z = (points - points.new_tensor([0.0, 0.5 / 32, 0.5 / 32])).unbind(-1)
    hair = torch.minimum(0.3 / 32 - torch.hypot(y, z), 0.45 - (x - 0.02).abs())
    return torch.maximum(ball(points, 0.2), hair)


class Counted:
    def __init__(self, occupancy):
        self.occupancy, self.queries, self.largest = occupancy, 0, 0

    def __call__(self, points):
        self.queries += len(points)
        self.largest = max(self.largest, len(points))
        return self.occupancy(points)


def dense(occupancy, resolution, low=-0.5, high=0.5, level=0.0):
    """Marching cubes of every point, by skimage alone: faces as it gives them for axes in the order x y z."""
    low, high = (torch.as_tensor(corner, dtype=torch.float64).expand(3) for corner in (low, high))
    steps = torch.arange(resolution + 1, dtype=torch.float64) / resolution
    points = low + torch.cartesian_prod(steps, steps, steps) * (high - low)
    values = occupancy(points).reshape([resolution + 1] * 3).float().numpy()
    vertices, faces, _, _ = marching_cubes(values, level, gradient_direction="ascent")
    return low.numpy() + vertices.astype(np.float64) / resolution * (high - low).numpy(), faces


def exact(occupancy, low=-0.5, high=0.5, **options):
    """Queries in float64."""
    return extract(occupancy, low=torch.full((3,), low, dtype=torch.float64), high=high, **options)


def volume(mesh):
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    return (torch.linalg.cross(a, b) * c).sum().item() / 6


def area(mesh):
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    return torch.linalg.cross(b - a, c - a).norm(dim=-1).sum().item() / 2


def euler(mesh):
    edges = torch.cat([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]).sort(-1).values
    return len(mesh.vertices) - len(edges.unique(dim=0)) + len(mesh.faces)


@pytest.mark.parametrize(
    ("occupancy", "holes"), [(ball, 2), (torus, 0), (two_balls, 4), (shell, 4), (ball_with_a_hair, 2)]
)
def test_it_is_the_surface_of_the_dense_grid(occupancy, holes):
    counted = Counted(occupancy)
    mesh = exact(counted, start=32, resolution=128, batch=10_000)
    vertices, faces = dense(occupancy, 128)
    np.testing.assert_array_equal(mesh.faces.numpy(), faces)
    np.testing.assert_allclose(mesh.vertices.numpy(), vertices, atol=1e-6)
    assert mesh.vertices.dtype == torch.float64
    assert mesh.faces.dtype == torch.int64
    assert watertight(mesh)
    assert volume(mesh) > 0
    assert euler(mesh) == holes
    assert counted.queries <= 0.15 * 129**3
    assert counted.largest <= 10_000


def test_every_point_is_asked_for_once():
    asked = []
    exact(lambda points: asked.append(points) or shell(points), start=16, resolution=64)
    points = torch.cat(asked)
    assert len(points.unique(dim=0)) == len(points)


def test_a_ball_has_its_radius_area_and_volume():
    mesh = exact(ball, resolution=64)
    distance = (mesh.vertices - CENTER).norm(dim=-1)
    # On an edge, linear interpolation of the distance is wrong by h² / 8r at most.
    assert (distance - 0.4).abs().max() < 1 / 64**2 / 8 / 0.4 * 1.1
    assert volume(mesh) == pytest.approx(4 / 3 * np.pi * 0.4**3, rel=2e-3)
    assert area(mesh) == pytest.approx(4 * np.pi * 0.4**2, rel=2e-3)


def test_boxes_need_be_neither_cubes_nor_centered():
    low, high = torch.tensor([9.0, -3.0, 0.5]).double(), torch.tensor([11.0, -2.0, 0.8]).double()
    middle = torch.tensor([10.1, -2.45, 0.66]).double()

    def ellipsoid(points):
        return 1 - ((points - middle) / torch.tensor([0.8, 0.4, 0.12])).norm(dim=-1)

    mesh = extract(ellipsoid, low=low, high=high, start=16, resolution=64)
    vertices, faces = dense(ellipsoid, 64, low, high)
    np.testing.assert_array_equal(mesh.faces.numpy(), faces)
    np.testing.assert_allclose(mesh.vertices.numpy(), vertices, atol=1e-6)
    assert volume(mesh) == pytest.approx(4 / 3 * np.pi * 0.8 * 0.4 * 0.12, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_any_level_and_dtype(dtype):
    seen = set()

    def probability(points):
        seen.add(points.dtype)
        return torch.sigmoid(10 * ball(points)).to(dtype)

    level = torch.sigmoid(torch.tensor(1.0)).item()  # 0.1 below the surface
    mesh = extract(probability, low=-0.5, high=0.5, level=level, start=16, resolution=32)
    assert seen == {torch.float32}
    tolerance = 1e-2 if dtype == torch.float16 else 2e-3
    assert ((mesh.vertices - CENTER).norm(dim=-1) - 0.3).abs().max() < tolerance
    assert watertight(mesh)


def test_infinities_have_a_side():
    mesh = exact(lambda points: ball(points) * torch.inf, start=16, resolution=32)
    assert watertight(mesh)
    assert ((mesh.vertices - CENTER).norm(dim=-1) - 0.4).abs().max() < 1 / 32


@pytest.mark.parametrize("options", [{}, {"refine": 3, "normals": True}, {"faces": 800}])
def test_the_border_of_the_box_closes_what_it_cuts(options):
    """A ball around the lowest corner: an eighth of it, or a half where only one face of the box cuts."""
    corner = exact(lambda points: 0.61 - points.norm(dim=-1), 0.0, 1.0, start=16, resolution=64, **options)
    half = exact(
        lambda points: 0.31 - (points - points.new_tensor([0, 0.5, 0.5])).norm(dim=-1),
        0.0,
        1.0,
        start=16,
        resolution=64,
        **options,
    )
    for mesh, known in ((corner, 4 / 3 * np.pi * 0.61**3 / 8), (half, 4 / 3 * np.pi * 0.31**3 / 2)):
        assert watertight(mesh)
        assert euler(mesh) == 2
        assert volume(mesh) == pytest.approx(known, rel=0.01)
        assert mesh.vertices.min() > -1e-6
        if mesh.normals is not None:
            floor = mesh.vertices[:, 0] == 0
            inner = floor & (mesh.vertices[:, 1:] - mesh.vertices[floor][:, 1:].mean(0)).norm(dim=-1).lt(0.1)
            assert inner.any()
            torch.testing.assert_close(
                mesh.normals[inner], torch.tensor([[-1.0, 0, 0]]).double().expand(inner.sum(), 3)
            )


def test_everything_in_a_noise_is_closed():
    """Cells of all kinds, a surface that is cut everywhere, and values that are exactly at the level."""
    noise = torch.randn(9, 9, 9, generator=torch.Generator().manual_seed(0)).mul(2).round()

    def steps(points):
        return noise[tuple((points * 8).round().long().unbind(-1))]

    whole = exact(steps, 0.0, 1.0, start=8, resolution=8)
    simple = exact(steps, 0.0, 1.0, start=8, resolution=8, faces=len(whole.faces) // 2)
    for mesh in (whole, simple):
        assert watertight(mesh)
        assert volume(mesh) > 0
        assert len(mesh.vertices.unique(dim=0)) == len(mesh.vertices)
    assert len(simple.faces) <= len(whole.faces) // 2
    assert volume(simple) == pytest.approx(volume(whole), rel=0.05)


@pytest.mark.parametrize(("value", "side"), [(-1.0, "outside"), (1.0, "inside"), (0.0, "outside")])
def test_without_a_surface_the_mesh_is_empty(value, side):
    with pytest.warns(UserWarning, match=f"the mesh is empty, all 9³ points of the coarse grid are {side}") as record:
        mesh = exact(lambda points: torch.full((len(points),), value), start=8, resolution=16, normals=True, refine=1)
    assert len(record) == 1
    assert mesh.vertices.shape == mesh.faces.shape == mesh.normals.shape == (0, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 32, "resolution": 100}, "resolution=100 must be start=32 doubled n times: take 64 or 128"),
        ({"start": 32, "resolution": 16}, "take 32 or 64"),
        ({"start": 0}, "start=0 and batch=100000 must both be at least 1"),
        ({"batch": 0}, "start=32 and batch=0 must"),
        ({"faces": 3}, "faces=3 cannot close a surface"),
        ({"high": -0.5}, r"the box from \[-0.5, -0.5, -0.5\] to .* is empty: low must be below high"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, words):
    with pytest.raises(MeshError, match=words):
        exact(ball, **options)


def test_answers_that_are_no_use():
    with pytest.raises(MeshError, match=r"is NaN at 593 of 729 points: check the function"):
        exact(lambda points: ball(points).sqrt(), start=8, resolution=16)
    with pytest.raises(MeshError, match=r"one value for each of 729 points, not \(729, 1\)"):
        exact(lambda points: ball(points)[:, None], start=8, resolution=16)
    with pytest.raises(MeshError, match="occupancy must not detach or disable them"):
        exact(lambda points: ball(points).detach(), start=8, resolution=16, normals=True)


@pytest.mark.parametrize(("module", "package"), [("skimage.measure", "scikit-image"), ("igl", "libigl")])
def test_a_missing_package_is_named(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"needs {package}: pip install 'vector-neurons\[mesh\]'"):
        exact(ball, faces=100)


def test_refinement_reaches_the_level():
    """Far from linear: interpolation of the eighth power is off by much of a cell."""

    def power(points):
        return 0.4**8 - (points - CENTER.to(points)).norm(dim=-1) ** 8

    counted = Counted(power)
    errors = []
    for steps in (0, 1, 3):
        mesh = exact(counted, start=16, resolution=32, refine=steps, batch=500)
        errors.append(((mesh.vertices - CENTER).norm(dim=-1) - 0.4).abs().max().item())
        assert watertight(mesh)
    assert errors[1] < errors[0] / 10
    assert errors[2] < errors[0] / 1e6
    assert counted.largest <= 500


def test_refinement_never_makes_it_worse():
    """Steps of a saturated function overshoot, and where it is flat there is no gradient at all."""

    def saturated(points):
        return torch.tanh(200 * ball(points))

    plain = exact(saturated, start=16, resolution=32)
    refined = exact(saturated, start=16, resolution=32, refine=5)
    before, after = (ball(mesh.vertices).abs() for mesh in (plain, refined))
    assert (after <= before).all()
    assert after.mean() < before.mean() / 5
    assert (refined.vertices - plain.vertices).norm(dim=-1).max() < 1 / 32 + 1e-9
    flat = exact(lambda points: torch.sign(ball(points)) + 0 * points.sum(-1), start=16, resolution=32, refine=2)
    assert watertight(flat)


def test_normals_point_outwards():
    mesh = exact(ball, resolution=32, normals=True)
    torch.testing.assert_close(mesh.normals, (mesh.vertices - CENTER) / (mesh.vertices - CENTER).norm(dim=-1)[:, None])
    # Where the gradient vanishes the faces say which way.
    flat = exact(lambda points: torch.sign(ball(points)) + 0 * points.sum(-1), resolution=32, normals=True)
    torch.testing.assert_close(flat.normals.norm(dim=-1), torch.ones(len(flat.vertices)).double())
    assert ((flat.vertices - CENTER) * flat.normals).sum(-1).min() > 0


def test_gradients_leave_no_traces():
    weight = torch.ones(1, requires_grad=True)
    mesh = extract(
        lambda points: ball(points) * weight, low=-0.5, high=0.5, start=8, resolution=8, refine=1, normals=True
    )
    assert weight.grad is None
    assert not mesh.vertices.requires_grad
    assert not mesh.normals.requires_grad


def test_simplification_stays_closed_and_close():
    mesh = exact(torus, resolution=64, faces=1000)
    assert abs(len(mesh.faces) - 1000) <= 2
    assert watertight(mesh)
    assert euler(mesh) == 0
    assert torus(mesh.vertices).abs().max() < 0.01
    assert volume(mesh) == pytest.approx(2 * np.pi**2 * 0.3 * 0.12**2, rel=0.02)
    refined = exact(torus, resolution=64, faces=1000, refine=3, normals=True)
    assert torus(refined.vertices).abs().max() < 1e-6
    assert refined.normals.shape == refined.vertices.shape
    assert len(exact(ball, start=8, resolution=8, faces=10**6).faces) == len(exact(ball, start=8, resolution=8).faces)


def test_what_cannot_be_simplified_stays_whole(monkeypatch):
    nothing = np.empty((0, 0)), np.empty((0, 0), dtype=np.int64), None, None  # as for a surface that is no manifold
    monkeypatch.setattr("igl.qslim", lambda *_: nothing)
    whole = exact(ball, start=8, resolution=8)
    with pytest.warns(UserWarning, match=f"cannot simplify this surface, which keeps its {len(whole.faces)} faces"):
        assert torch.equal(exact(ball, start=8, resolution=8, faces=20).faces, whole.faces)


def test_the_mesh_turns_with_the_function():
    R = rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)[0]

    def turned(points):
        return torus((points - CENTER) @ R + CENTER)

    straight, mesh = exact(torus, resolution=64), exact(turned, resolution=64)
    assert volume(mesh) == pytest.approx(volume(straight), rel=1e-3)
    assert area(mesh) == pytest.approx(area(straight), rel=1e-3)
    # Vertices of the one, turned, are on the level of the other, up to what interpolation costs.
    error = torus(straight.vertices).abs().max()
    assert turned((straight.vertices - CENTER) @ R.mT + CENTER).abs().max() < error + 1e-12
    assert turned(mesh.vertices).abs().max() < 2 * error


def test_thin_parts_are_found_near_points():
    """A needle of radius 0.02 between the points of a coarse grid of cells of 0.25."""

    def needle(x):
        return 0.02 - torch.maximum((x[:, 1:] - 0.12).norm(dim=-1), x[:, 0].abs() - 0.7)

    points = torch.stack([torch.linspace(-0.68, 0.68, 40), torch.full((40,), 0.12), torch.full((40,), 0.12)], dim=-1)
    box = {"low": -1.0, "high": 1.0, "start": 8, "resolution": 128}
    with pytest.warns(UserWarning, match="the mesh is empty"):
        assert extract(needle, **box).is_cloud
    outside = torch.tensor([[1.0, 1.0, 1.0], [-5.0, 0.0, 0.0]])  # of the box: they tell nothing
    made, dense = extract(needle, **box, near=torch.cat([points, outside])), extract(needle, **{**box, "start": 128})
    assert made.vertices.shape == dense.vertices.shape
    assert torch.equal(made.vertices, dense.vertices)
