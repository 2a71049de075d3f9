import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vector_neurons.geometry import rotations
from vector_neurons.geometry.scale import unit_rms


def draw(*shape, seed=0):
    return 5 + 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 2**16), n=st.integers(2, 9), dim=st.integers(1, 4))
def test_unit_rms(seed, n, dim):
    points = draw(2, n, dim, seed=seed)
    unit = unit_rms(points)
    for cloud, center, scale, found in zip(points.tolist(), unit.center, unit.scale, unit.points, strict=True):
        mean = [sum(point[i] for point in cloud) / n for i in range(dim)]
        rms = math.sqrt(sum((point[i] - mean[i]) ** 2 for point in cloud for i in range(dim)) / n)
        expected = [[(point[i] - mean[i]) / rms for i in range(dim)] for point in cloud]
        torch.testing.assert_close(center, torch.tensor([mean], dtype=torch.float64), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(scale, torch.tensor([[rms]], dtype=torch.float64), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(unit.restore(unit.points), points, rtol=1e-12, atol=1e-12)


def test_any_number_of_points_and_vectors_is_carried_back():
    points = draw(2, 6, 3)
    unit = unit_rms(points)
    torch.testing.assert_close(unit.restore(torch.zeros(2, 1, 3, dtype=torch.float64)), points.mean(1, keepdim=True))
    ones = torch.ones(2, 6, 3, 4, dtype=torch.float64)
    for x in (ones, ones[:, 0], ones[..., 0], ones[:, 0, :, 0], ones.unsqueeze(1)):
        assert torch.equal(unit.restore_vectors(x)[1], x[1] * unit.scale[1].item())
    alone = unit_rms(points[1])
    torch.testing.assert_close(alone.points, unit.points[1])
    assert torch.equal(alone.restore_vectors(ones[1]), ones[1] * alone.scale.item())


@pytest.mark.parametrize("padding", [0.0, 1e30, torch.nan])
def test_padding_does_not_count(padding):
    points, mask = draw(2, 6, 3), torch.arange(6).expand(2, 6) < torch.tensor([[4], [6]])
    expected = unit_rms(points[0, :4])
    points[0, 4:] = padding
    unit = unit_rms(points, mask=mask)
    torch.testing.assert_close(unit.points[0, :4], expected.points)
    torch.testing.assert_close(unit.scale[0], expected.scale)
    assert not unit.points[0, 4:].any()
    torch.testing.assert_close(unit.points[1], unit_rms(points[1]).points)


def test_similarities():
    points, shift = draw(2, 9, 3), draw(2, 1, 3, seed=1)
    R = rotations.draw("SO3", 2, dtype=torch.float64)
    unit, moved = unit_rms(points), unit_rms(7 * points @ R.mT + shift)
    torch.testing.assert_close(moved.points, unit.points @ R.mT)
    torch.testing.assert_close(moved.scale, 7 * unit.scale)
    torch.testing.assert_close(moved.center, 7 * unit.center @ R.mT + shift)


@pytest.mark.parametrize("exponent", [-100, -70, 64, 110])
def test_extreme_scales(exponent):
    x = draw(2, 9, 3).float()
    factor = torch.tensor([1.0, 2.0**exponent]).view(2, 1, 1)
    unit, scaled = unit_rms(x), unit_rms(x * factor)
    assert torch.equal(scaled.points, unit.points)
    assert torch.equal(scaled.scale, unit.scale * factor)
    assert torch.equal(scaled.center, unit.center * factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-30, -3e7])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_points_that_coincide(n, value, dtype):
    """Rounding of their mean is not taken for a shape."""
    x = torch.full((2, n, 3), value, dtype=dtype) * torch.tensor([1.0, 0.7, 0.3], dtype=dtype)
    x.requires_grad_()
    unit = unit_rms(x)
    assert (unit.scale == 1).all()
    assert unit.points.abs().max() <= 1e-5 * abs(value)
    torch.testing.assert_close(unit.restore(unit.points), x)
    (unit.points.sum() + unit.scale.sum() + unit.center.sum()).backward()
    assert x.grad.isfinite().all()


def test_a_cloud_of_padding_only():
    x = draw(2, 5, 3).requires_grad_()
    unit = unit_rms(x, mask=torch.tensor([[False] * 5, [True] * 5]))
    assert [unit.scale[0].item(), unit.center[0].abs().max().item(), unit.points[0].abs().max().item()] == [1, 0, 0]
    unit.points.square().sum().backward()
    assert x.grad.isfinite().all()


def test_gradients():
    x, mask = draw(2, 4, 3).requires_grad_(), torch.tensor([[True, True, True, False], [True] * 4])
    assert torch.autograd.gradcheck(lambda x: tuple(unit_rms(x, mask=mask)), x)


@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"clouds \(B, N, 3\), got \(3,\)"):
        unit_rms(torch.ones(3))
    with pytest.raises(ValueError, match=r"the mask of clouds \(2, 4, 3\) is \(2, 4\), got \(2, 5\)"):
        unit_rms(torch.ones(2, 4, 3), mask=torch.ones(2, 5, dtype=torch.bool))
