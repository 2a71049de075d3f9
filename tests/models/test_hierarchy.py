"""FrameNet where frames are hard (grids, duplicates, flat and collinear clouds), and what each option promises."""

import pytest
import torch

import vector_neurons as vn
from vector_neurons.geometry import rotations
from vector_neurons.geometry.sampling import farthest_points
from vector_neurons.models import FrameNet, FrameNetSegmenter
from vector_neurons.nn.hybrid import Features
from vector_neurons.testing import equivariance_error

BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}


def small(dtype=torch.float64, **arguments):
    torch.manual_seed(0)
    return FrameNet(5, k=8, k_last=4, width=16, hidden=32, **arguments).to(dtype).eval()


class Parts(torch.nn.Module):
    """A small segmenter, told that all clouds are of one category."""

    def __init__(self, dtype=torch.float64, **arguments):
        super().__init__()
        torch.manual_seed(0)
        network = FrameNetSegmenter(7, 3, k=8, k_last=4, width=16, hidden=(32, 16), **arguments)
        self.network = network.to(dtype).eval()

    def forward(self, points, **more):
        return self.network(points, torch.ones(len(points), dtype=torch.long), **more)


both_networks = pytest.mark.parametrize("network", [small, Parts], ids=["classifier", "segmenter"])


def grid(*_):
    axis = torch.arange(5, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis, axis).expand(2, -1, -1)


def duplicates(generator):
    points = torch.randn(2, 120, 3, generator=generator, dtype=torch.float64)
    points[:, 72:] = points[:, :48]  # 40 % stand twice
    return points


def flat(generator):
    return torch.randn(2, 120, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 1.0, 0.0])


def line(generator):
    return torch.randn(2, 120, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.0, 0.0])


def generic(generator):
    return torch.randn(2, 120, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("cloud", [generic, grid, duplicates, flat, line], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", BOUND, ids=["float32", "float64"])
@both_networks
def test_no_rotation_or_reflection_changes_it(cloud, dtype, network):
    points, network = cloud(torch.Generator().manual_seed(0)).to(dtype), network(dtype)
    for group in ("SO3", "O3", "SE3", "scale"):
        assert equivariance_error(network, points, "points", "scalars", group) <= BOUND[dtype]


@pytest.mark.parametrize("cloud", [grid, duplicates, flat, line], ids=lambda f: f.__name__)
@both_networks
def test_gradients_are_finite_on_degenerate_clouds(cloud, network):
    points, network = cloud(torch.Generator().manual_seed(0)).clone().requires_grad_(), network().train()
    network(points).square().sum().backward()
    assert points.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in network.parameters())


@both_networks
def test_one_point_many_times(network):
    assert network()(torch.ones(1, 64, 3, dtype=torch.float64)).isfinite().all()


@both_networks
def test_orthonormal_frames_tell_mirror_images_apart(network):
    points = generic(torch.Generator().manual_seed(1))
    assert equivariance_error(network(orthonormal=True), points, "points", "scalars", "O3") > 1e-3
    assert equivariance_error(network(orthonormal=True), points, "points", "scalars", "SO3") <= 1e-10


@both_networks
def test_the_scalar_network_depends_on_the_pose(network):
    points = generic(torch.Generator().manual_seed(1))
    assert equivariance_error(network(neurons="scalar"), points, "points", "scalars") > 1e-3


def test_the_segmenter_takes_clouds_of_different_sizes_and_any_order():
    network, points = Parts(), generic(torch.Generator().manual_seed(3))
    lengths, order = torch.tensor([120, 77]), torch.randperm(120, generator=torch.Generator().manual_seed(4))
    alone, together = network(points[1:, :77]), network(points, lengths=lengths)
    torch.testing.assert_close(together[1, :77], alone[0], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(network(points[:, order]), network(points)[:, order], rtol=1e-9, atol=1e-10)


def test_the_segmenter_reads_the_category():
    network, points = Parts().network, generic(torch.Generator().manual_seed(3))
    logits = [network(points, torch.full((2,), category)) for category in (0, 1)]
    assert not torch.allclose(*logits)


def test_a_farthest_point_sample_begins_with_smaller_ones_and_skips_padding():
    x = generic(torch.Generator().manual_seed(2))
    chosen = farthest_points(x, 40)
    assert torch.equal(chosen[:, :10], farthest_points(x, 10))
    mask = torch.arange(120) < torch.tensor([[120], [70]])
    padded = x.where(mask.unsqueeze(-1), torch.nan)
    masked = farthest_points(padded.nan_to_num(7.0), 40, mask=mask)
    assert torch.equal(masked[0], chosen[0])
    assert torch.equal(masked[1], farthest_points(x[1:, :70], 40)[0])


def test_features_index_gather_and_concatenate():
    x = Features(torch.randn(2, 5, 4), torch.randn(2, 5, 3, 6))
    index = torch.tensor([[3, 1], [0, 0]])
    assert torch.equal(x.gather(index).vectors[0, 0], x.vectors[0, 3])
    assert x.gather(index.unsqueeze(-1)).scalars.shape == (2, 2, 1, 4)
    assert Features.cat([x, x]).vectors.shape == (2, 5, 3, 12)
    assert x.to(torch.float64).vectors.dtype == torch.float64
    masked = x.masked(torch.arange(5) < torch.tensor([[5], [2]]))
    assert torch.equal(masked.vectors[0], x.vectors[0])
    assert not masked.scalars[1, 2:].any()
    assert masked.scalars[1, :2].all()


def test_it_learns_in_any_pose():
    """A few steps on two shapes, then poses it has not seen."""
    torch.manual_seed(0)
    network = FrameNet(2, k=8, k_last=4, width=16, hidden=32, dropout=0.0)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    ball = torch.nn.functional.normalize(torch.randn(8, 96, 3), dim=-1)
    shapes, labels = torch.cat([ball, ball * torch.tensor([1.0, 1.0, 0.2])]), torch.arange(2).repeat_interleave(8)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(shapes), labels).backward()
        optimizer.step()
    turned = rotations.rotate(shapes, rotations.draw("SO3", 16, generator=torch.Generator().manual_seed(5)))
    assert (network.eval()(turned).argmax(-1) == labels).all()


def test_it_is_checked_layer_by_layer():
    found = vn.testing.report(small(torch.float32), torch.randn(2, 120, 3), "points", "scalars")
    assert found.culprit is None, str(found)
    assert {row.backend for row in found.rows} <= {"eager", "native"}
    assert {"levels.0.conv.frame", "levels.1.block", "frame"} <= {row.layer for row in found.rows}
