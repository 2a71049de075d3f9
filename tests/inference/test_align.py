"""Alignment finds poses of resampled, scaled and partial shapes, and says when the pose is ambiguous."""

import math

import pytest
import torch
import trimesh
from small_classifier import bracket, small_classifier

from vector_neurons.geometry import rotations
from vector_neurons.inference import align
from vector_neurons.inference.align import axis_and_angle, describe_symmetry
from vector_neurons.inference.icp import Poses, Registration, Surface, _point_equations
from vector_neurons.mesh import Mesh, sample
from vector_neurons.models import DGCNN, Metadata

NO_FACES = torch.empty(0, 3, dtype=torch.int64)


@pytest.fixture(scope="module")
def model():
    return small_classifier()


def points_of(shape, n, seed):
    mesh = Mesh(torch.tensor(shape.vertices), torch.tensor(shape.faces))
    return sample(mesh, n, generator=torch.Generator().manual_seed(seed))[0]


def turn(seed):
    return rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0]


def degrees(a, b):
    return rotations.geodesic_distance(a, b).rad2deg().item()


@pytest.mark.parametrize("seed", range(2))
def test_two_samples_of_one_shape(model, seed):
    R, shift = turn(seed), torch.tensor([300.0, -20, 7], dtype=torch.float64)
    a, b = points_of(bracket(), 3000, 1 + seed), points_of(bracket(), 2000, 100 + seed) @ R.mT + shift
    found = align(a, b, model)
    assert degrees(found.rotation, R) < 3
    assert found.scale == 1
    assert found.symmetric is None
    assert torch.allclose(found.translation, shift, atol=0.1)
    moved = found.apply(Mesh(a, NO_FACES)).vertices
    assert torch.allclose(moved, a @ R.mT + shift, atol=0.2)


def test_scale(model):
    R = turn(5)
    a, b = points_of(bracket(), 3000, 1), 25.4 * points_of(bracket(), 3000, 2) @ R.mT + 10
    found = align(a, b, model, scale=True)
    assert degrees(found.rotation, R) < 3
    assert found.scale == pytest.approx(25.4, rel=0.02)
    moved = found.apply(Mesh(a, NO_FACES, torch.nn.functional.normalize(a, dim=-1)))
    assert torch.allclose(moved.vertices, 25.4 * a @ R.mT + 10, atol=2.0)
    assert torch.allclose(moved.normals.norm(dim=-1), torch.ones(len(a)).double())


def test_partial_scans(model):
    R = turn(7)
    a, b = points_of(bracket(), 4000, 1), points_of(bracket(), 4000, 2)
    a, b = a[a[:, 0] > -1.7], b[b[:, 2] < 1.8] @ R.mT
    found = align(a, b, model, overlap=0.85)
    assert degrees(found.rotation, R) < 5


def test_a_can_rotates_about_its_axis(model):
    R = turn(3)
    can = trimesh.creation.cone(1.0, 3.0)
    found = align(points_of(can, 3000, 1), points_of(can, 3000, 2) @ R.mT, model)
    assert found.symmetric.startswith("any angle about (")
    assert len(found.poses) > 3
    axis = R[:, 2]
    named = torch.tensor([float(x) for x in found.symmetric.split("(")[1].split(")")[0].split(",")]).double()
    assert abs(axis @ named) > 0.95
    assert (found.rotation @ torch.tensor([0.0, 0, 1]).double()) @ axis > 0.99


def test_a_box_has_four_poses(model):
    box = trimesh.creation.box((1, 2, 3))
    found = align(points_of(box, 3000, 1), points_of(box, 3000, 2) @ turn(4).mT, model)
    assert found.symmetric.startswith("2-fold about (")
    assert found.symmetric.endswith("and about other axes")
    assert len(found.poses) == 4
    assert min(degrees(pose, turn(4)) for pose in found.poses) < 3


def about_z(*angles):
    axis = torch.tensor([0.0, 0, 1]).double().expand(len(angles), 3)
    return rotations.axis_angle(axis, torch.tensor(angles).double().deg2rad())


@pytest.mark.parametrize(
    ("angles", "said"),
    [
        ((0.0,), None),
        ((0.0, 180.0), "2-fold about (0.00, 0.00, 1.00)"),
        ((0.0, 120.0, 240.0), "3-fold about (0.00, 0.00, 1.00)"),
        ((0.0, 90.0, 180.0, 270.0), "4-fold about (0.00, 0.00, 1.00)"),
        ((0.0, 60.0, 120.0, 210.0), "any angle about (0.00, 0.00, 1.00)"),
        (tuple(range(0, 360, 60)), "6-fold about (0.00, 0.00, 1.00)"),
        (tuple(range(0, 360, 30)), "any angle about (0.00, 0.00, 1.00)"),
    ],
)
def test_symmetries_in_words(angles, said):
    R = turn(0)
    assert describe_symmetry(about_z(*angles) @ R) == said


def test_axis_and_angle():
    for seed, angle in enumerate((0.001, 1.0, 90.0, 179.9)):
        axis = turn(seed)[:, 0]
        found, by = axis_and_angle(rotations.axis_angle(axis, torch.tensor(math.radians(angle)).double()))
        assert by.item() == pytest.approx(angle, rel=1e-6)
        assert torch.allclose(found, axis, atol=1e-5)


def test_equations_of_a_step_are_those_of_the_sum_of_squares():
    x, offset, weight = torch.randn(2, 9, 3).double(), torch.randn(2, 9, 3).double(), torch.rand(2, 9, 1).double()
    matrix, right = _point_equations(x, offset, weight)

    def half_squares(u):
        moved = torch.linalg.cross(u[:3].expand(9, 3), x[1]) + u[3:6] + u[6] * x[1]
        return (weight[1] * (moved + offset[1]).square()).sum() / 2

    zero = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(torch.autograd.functional.hessian(half_squares, zero), matrix[1])
    assert torch.allclose(torch.autograd.grad(half_squares(zero), zero)[0], right[1])


def test_refinement_finds_the_exact_pose_of_the_same_points():
    a = points_of(bracket(), 400, 0)
    R, t = turn(1), torch.tensor([0.1, -0.2, 0.05]).double()
    near = rotations.axis_angle(torch.tensor([1.0, 2.0, -1.0]).double(), torch.tensor(0.15).double()) @ R
    registration = Registration(a, 1.1 * a @ R.mT + t, scale=True)
    found = registration.refine(Poses.of(near[None]), 30)
    assert degrees(found.R[0], R) < 1e-4
    assert found.s.item() == pytest.approx(1.1)
    assert torch.allclose(found.t[0], t, atol=1e-5)
    assert registration.residual(found).item() < 1e-5


def test_two_samples_of_a_plane_have_no_distance_inside_it():
    flat = torch.rand(400, 3, generator=torch.Generator().manual_seed(0)).double() * torch.tensor([1.0, 1.0, 0.0])
    surface = Surface(flat)
    queries = torch.tensor([[[0.5, 0.52, 0.0], [0.5, 0.5, 0.2], [2.0, 0.5, 0.0]]]).double()
    on, above, beside = surface.closest(queries).distance[0].tolist()
    assert on == pytest.approx(0, abs=1e-9)
    assert above == pytest.approx(0.2, abs=1e-6)
    assert 0.8 < beside < 1.01


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_aligned_is_refused(model):
    cloud = torch.rand(500, 3)
    with pytest.raises(ValueError, match="overlap is a fraction"):
        align(cloud, cloud, model, overlap=1.5)
    with pytest.raises(ValueError, match="scalar neurons"):
        align(cloud, cloud, small_classifier(neurons="scalar"))
    with pytest.raises(ValueError, match="too small"):
        align(cloud[:20], cloud, model)
    with pytest.raises(ValueError, match="there is no file"):
        align("missing.ply", cloud, model)


def test_dgcnn_has_features_that_rotate_too():
    torch.manual_seed(0)
    network = DGCNN(4, k=8, widths=(12, 12), embedding=48).eval()
    network.metadata = Metadata(points=256)
    a, R = points_of(bracket(), 1500, 1), turn(2)
    assert degrees(align(a, points_of(bracket(), 1500, 2) @ R.mT, network).rotation, R) < 3
