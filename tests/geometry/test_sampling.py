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


@pytest.mark.parametrize("normalise", [sampling.unit_ball, sampling.unit_cube])
def test_a_single_place_stays_finite(normalise):
    assert (normalise(torch.full((2, 5, 3), 4.0)) == 0).all()


def test_noise(points):
    moved = sampling.noise(points, 0.1, generator=torch.Generator().manual_seed(1)) - points
    assert moved.std().item() == pytest.approx(0.1, rel=0.1)
    assert sampling.noise(points, 0.1, clip=0.05).sub(points).abs().max() <= 0.05 + 1e-12
    assert torch.equal(sampling.noise(points, 0.0), points)
    with pytest.raises(ValueError, match="sigma >= 0"):
        sampling.noise(points, -1.0)
