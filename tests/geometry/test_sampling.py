import pytest
import torch

from vector_neurons.geometry import rotations, sampling


@pytest.fixture
def points():
    return 5 + 3 * torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_center_is_per_cloud(points):
    assert sampling.center(points).mean(1).abs().max() < 1e-14
    torch.testing.assert_close(sampling.center(points)[0], sampling.center(points[0]))


def test_unit_ball_touches_the_sphere_and_turns_along(points):
    ball = sampling.unit_ball(points)
    torch.testing.assert_close(ball.norm(dim=-1).amax(-1), torch.ones(4, dtype=torch.float64))
    R = rotations.draw("SO3", 1, dtype=torch.float64)[0]
    torch.testing.assert_close(sampling.unit_ball(points @ R.mT), ball @ R.mT)
    torch.testing.assert_close(sampling.unit_ball(1000 * points + 7), ball)


def test_unit_cube_has_longest_side_one_about_the_origin(points):
    cube = sampling.unit_cube(points)
    low, high = cube.amin(1), cube.amax(1)
    torch.testing.assert_close((high - low).amax(-1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(low, -high)


@pytest.mark.parametrize("normalize", [sampling.unit_ball, sampling.unit_cube])
def test_a_single_place_stays_finite(normalize):
    assert (normalize(torch.full((2, 5, 3), 4.0)) == 0).all()


def test_noise(points):
    moved = sampling.noise(points, 0.1, generator=torch.Generator().manual_seed(1)) - points
    assert moved.std().item() == pytest.approx(0.1, rel=0.1)
    assert sampling.noise(points, 0.1, clip=0.05).sub(points).abs().max() <= 0.05 + 1e-12
    assert torch.equal(sampling.noise(points, 0.0), points)
    with pytest.raises(ValueError, match="sigma >= 0"):
        sampling.noise(points, -1.0)


@pytest.mark.parametrize("exponent", [-100, -70, 64, 110])
def test_unit_ball_of_extreme_scales(points, exponent):
    x = points.float()
    scale = torch.tensor([1.0, 2.0**exponent, 1.0, 2.0**exponent]).view(4, 1, 1)
    assert torch.equal(sampling.unit_ball(x * scale), sampling.unit_ball(x))
    center, radius = sampling.ball(x)
    assert torch.equal(sampling.ball(x * scale)[0], center * scale)
    assert torch.equal(sampling.ball(x * scale)[1], radius * scale)


def test_unit_ball_of_a_single_place_has_a_gradient():
    x = torch.full((1, 5, 3), 3.0, requires_grad=True)
    sampling.unit_ball(x).sum().backward()
    assert x.grad.isfinite().all()
    assert sampling.ball(x)[1].item() == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_unit_ball_in_half_precision(points, dtype):
    assert sampling.unit_ball(points.to(dtype)).norm(dim=-1).amax().item() == pytest.approx(1, rel=0.02)
