import math

import pytest
import torch

from vector_neurons.geometry import rotations


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kolmogorov_smirnov(samples: torch.Tensor, distribution) -> float:
    """Largest gap between the empirical and the true distribution, in units where 1.95 is the 0.1 % quantile."""
    x = samples.sort().values
    true = distribution(x)
    step = torch.arange(len(x) + 1, dtype=x.dtype) / len(x)
    return float(torch.maximum((true - step[:-1]).abs(), (step[1:] - true).abs()).max() * math.sqrt(len(x)))


@pytest.mark.parametrize("kind", ["I", "z", "SO3"])
@pytest.mark.parametrize("dim", [2, 3, 4, 7])
def test_rotations_are_orthogonal_with_determinant_one(kind, dim):
    R = rotations.draw(kind, 50, dim, generator=seeded(), dtype=torch.float64)
    assert R.shape == (50, dim, dim)
    torch.testing.assert_close(R @ R.mT, torch.eye(dim, dtype=R.dtype).expand_as(R), rtol=0, atol=1e-14)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(50, dtype=R.dtype))


def test_z_leaves_the_vertical_and_is_uniform_in_angle():
    R = rotations.draw("z", 20_000, generator=seeded(), dtype=torch.float64)
    assert (R[:, :, 2] == torch.tensor([0.0, 0.0, 1.0])).all()
    angle = torch.atan2(R[:, 1, 0], R[:, 0, 0])
    assert kolmogorov_smirnov(angle, lambda a: (a + math.pi) / (2 * math.pi)) < 1.95


def haar_gap(R: torch.Tensor) -> float:
    """Angles of Haar-random rotations of R³ have density (1 - cos θ) / π; images of points are uniform."""
    angle = rotations.geodesic_distance(torch.eye(3, dtype=R.dtype).expand_as(R), R)
    gaps = [kolmogorov_smirnov(angle, lambda a: (a - a.sin()) / math.pi)]
    # Archimedes: each coordinate of a uniform point on the sphere is uniform in [-1, 1].
    gaps += [kolmogorov_smirnov(R[:, i, j], lambda z: (z + 1) / 2) for i in range(3) for j in range(3)]
    return max(gaps)


def test_so3_is_haar_uniform():
    assert haar_gap(rotations.draw("SO3", 20_000, generator=seeded(), dtype=torch.float64)) < 1.95


def test_the_haar_test_notices_the_usual_mistakes():
    q = torch.linalg.qr(torch.randn(20_000, 3, 3, dtype=torch.float64, generator=seeded())).Q
    unsigned = q * torch.linalg.det(q).sign()[:, None, None]
    assert haar_gap(unsigned) > 3
    a, b, c = (2 * math.pi * torch.rand(3, 20_000, dtype=torch.float64, generator=seeded())).unbind(0)
    x, y, z = torch.eye(3, dtype=torch.float64)
    euler = [rotations.axis_angle(axis.expand(20_000, 3), angle) for axis, angle in ((x, a), (y, b), (z, c))]
    assert haar_gap(euler[0] @ euler[1] @ euler[2]) > 3


@pytest.mark.parametrize("dim", [2, 4, 5])
def test_other_dimensions_are_haar_uniform_too(dim):
    R = rotations.draw("SO3", 20_000, dim, generator=seeded(), dtype=torch.float64)
    trace = R.diagonal(dim1=-2, dim2=-1).sum(-1)
    # Moments of the trace under the Haar measure: E tr = 0 and E tr² = 1, but 2 for the abelian SO(2).
    assert abs(trace.mean()) < 0.05
    assert abs(trace.square().mean() - (2 if dim == 2 else 1)) < 0.06
    fixed = rotations.draw("SO3", 1, dim, generator=seeded(1), dtype=R.dtype)[0]
    assert abs((fixed @ R).diagonal(dim1=-2, dim2=-1).sum(-1).square().mean() - (2 if dim == 2 else 1)) < 0.06


def test_same_seed_same_rotations():
    assert torch.equal(rotations.draw("SO3", 3, generator=seeded(5)), rotations.draw("SO3", 3, generator=seeded(5)))


def test_axis_angle_turns_by_the_angle_about_the_axis():
    axis = torch.randn(20, 3, dtype=torch.float64, generator=seeded())
    angle = torch.linspace(0, math.pi, 20, dtype=torch.float64)
    R = rotations.axis_angle(axis, angle)
    torch.testing.assert_close((R @ axis.unsqueeze(-1)).squeeze(-1), axis)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(20, dtype=R.dtype))
    torch.testing.assert_close(rotations.geodesic_distance(torch.eye(3, dtype=R.dtype).expand_as(R), R), angle)
    unit = axis / axis.norm(dim=-1, keepdim=True)
    spin = torch.stack([torch.linalg.cross(unit, e.expand_as(unit)) for e in torch.eye(3, dtype=R.dtype)], dim=-1)
    torch.testing.assert_close(R, torch.linalg.matrix_exp(spin * angle[:, None, None]))


@pytest.mark.parametrize("theta", [0.0, 1e-8, 1e-4, 1.0, math.pi - 1e-4, math.pi - 1e-8, math.pi])
def test_angle_is_accurate_at_both_ends(theta):
    axis = torch.tensor([1.0, 2.0, -0.5], dtype=torch.float64)
    a = rotations.draw("SO3", 1, generator=seeded(), dtype=torch.float64)[0]
    b = a @ rotations.axis_angle(axis, torch.tensor(theta, dtype=torch.float64))
    assert abs(rotations.geodesic_distance(a, b).item() - theta) < 1e-14


def test_angle_in_the_plane_and_not_beyond_space():
    a, b = rotations.draw("SO3", 2, 2, generator=seeded(), dtype=torch.float64)
    turn = math.remainder(math.atan2(a[1, 0], a[0, 0]) - math.atan2(b[1, 0], b[0, 0]), 2 * math.pi)
    assert rotations.geodesic_distance(a, b).item() == pytest.approx(abs(turn), abs=1e-14)
    with pytest.raises(ValueError, match="2-D and 3-D"):
        rotations.geodesic_distance(torch.eye(4), torch.eye(4))


def test_rotate_turns_points():
    quarter = rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0]), torch.tensor(math.pi / 2))
    turned = rotations.rotate(torch.tensor([[[1.0, 0.0, 5.0]]]), quarter)
    torch.testing.assert_close(turned, torch.tensor([[[0.0, 1.0, 5.0]]]))


@pytest.mark.parametrize(("arguments", "words"), [(("SO3", -1), "n >= 0"), (("SO3", 1, 1), "dim >= 2")])
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        rotations.draw(*arguments)


@pytest.mark.parametrize("theta", [0.0, 1e-6, 1e-3, 1.0, math.pi - 1e-3, math.pi - 1e-6, math.pi])
def test_the_distance_is_accurate_in_float32(theta):
    """To some units of rounding, where the arccos of the trace is wrong by 3e-4."""
    axis = torch.randn(50, 3, dtype=torch.float64, generator=seeded())
    a = rotations.draw("SO3", 50, generator=seeded(1), dtype=torch.float64)
    b = a @ rotations.axis_angle(axis, torch.full((50,), theta, dtype=torch.float64))
    found = rotations.geodesic_distance(a.float(), b.float()).double()
    assert (found - theta).abs().max() < 1e-6


def test_arccos_of_the_trace_would_not_do():
    a = rotations.draw("SO3", 500, generator=seeded())
    b = a @ rotations.axis_angle(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(1e-4))
    trace = (a.mT @ b).diagonal(dim1=-2, dim2=-1).sum(-1)
    assert (((trace - 1) / 2).clamp(-1, 1).acos() - 1e-4).abs().max() > 1e-4
    assert (rotations.geodesic_distance(a, b) - 1e-4).abs().max() < 1e-6


@pytest.mark.parametrize("theta", [0.0, math.pi])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_the_distance_are_finite_at_both_ends(theta, dtype):
    turn = rotations.axis_angle(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), torch.tensor(theta).double())
    b = turn.round().to(dtype).requires_grad_()
    rotations.geodesic_distance(torch.eye(3, dtype=dtype), b).backward()
    assert b.grad.isfinite().all()
    near = (torch.eye(3, dtype=dtype) + 1e-7).requires_grad_()
    rotations.geodesic_loss(torch.eye(3, dtype=dtype), near).backward()
    assert near.grad.norm() < 10


def test_gradients_of_the_distance():
    a, b = rotations.draw("SO3", 2, generator=seeded(), dtype=torch.float64).requires_grad_().unbind()
    assert torch.autograd.gradcheck(rotations.geodesic_distance, (a, b))


def test_the_loss_is_the_mean_angle():
    a, b = (rotations.draw("SO3", 5, generator=seeded(i), dtype=torch.float64) for i in range(2))
    angles = [rotations.geodesic_distance(x, y).item() for x, y in zip(a, b, strict=True)]
    assert rotations.geodesic_loss(a, b).item() == pytest.approx(sum(angles) / 5, abs=1e-14)


def test_the_loss_with_symmetries_is_that_of_the_nearest_pose():
    quarters = torch.arange(4, dtype=torch.float64) * math.pi / 2
    axis = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    group = rotations.axis_angle(axis.expand(4, 3), quarters)
    found, target = (rotations.draw("SO3", 6, generator=seeded(i), dtype=torch.float64) for i in range(2))
    angles = [[rotations.geodesic_distance(f, t @ s).item() for s in group] for f, t in zip(found, target, strict=True)]
    loss = rotations.geodesic_loss(found, target, symmetries=group)
    assert loss.item() == pytest.approx(sum(map(min, angles)) / 6, abs=1e-14)
    assert loss < rotations.geodesic_loss(found, target)
    # Symmetries act in the object's own coordinates: from the right, not from the left.
    assert rotations.geodesic_loss(target @ group[1], target, symmetries=group) < 1e-7
    assert rotations.geodesic_loss(group[1] @ target, target, symmetries=group) > 0.1


@pytest.mark.usefixtures("unchecked")
def test_bad_rotations_are_refused():
    with pytest.raises(ValueError, match=r"two rotations.*\(3, 3\) and \(2, 3, 3\)"):
        rotations.geodesic_distance(torch.eye(3), torch.eye(3).expand(2, 3, 3))
    with pytest.raises(ValueError, match=r"symmetries are rotations.*got \(3, 3\)"):
        rotations.geodesic_loss(torch.eye(3), torch.eye(3), symmetries=torch.eye(3))
