"""Translations: affine maps of positions, and networks between `unit_rms` and `restore` (SIM(3))."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.geometry.scale import unit_rms
from vector_neurons.testing import relative_error

seeds = st.integers(0, 2**16)
BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-12}
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def translation_error(layer: nn.Module, x: Tensor, shift: Tensor) -> float:
    return relative_error(layer(x + shift), layer(x) + shift)


@every_dtype
@given(seed=seeds, size=st.floats(0, 100), channels=st.integers(1, 6))
def test_affine_maps_commute_with_translations(dtype, seed, size, channels):
    x, shift = draw(2, 7, 3, channels, seed=seed).to(dtype), (size * draw(2, 1, 3, 1, seed=seed + 1)).to(dtype)
    assert translation_error(vn.AffineLinear(channels, 5).to(dtype), x, shift) <= BOUNDS[dtype]


def test_linear_maps_do_not():
    """The control."""
    x, shift = draw(2, 7, 3, 4), draw(2, 1, 3, 1, seed=1)
    assert translation_error(vn.Linear(4, 5).double(), x, shift) > 1e-2


def test_rows_sum_to_one_after_training():
    layer = vn.AffineLinear(4, 5).double()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.3, weight_decay=0.1)
    for step in range(20):
        optimizer.zero_grad()
        layer(draw(8, 3, 4, seed=step)).sub(1).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer.affine_weight().sum(-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-14)
    assert translation_error(layer, draw(2, 7, 3, 4), 10 * draw(2, 1, 3, 1, seed=1)) <= 1e-12


def test_ten_affine_maps_keep_the_spread_of_channels():
    layers, x = nn.Sequential(*(vn.AffineLinear(128, 128) for _ in range(10))), torch.randn(4, 64, 3, 128) + 5
    with torch.no_grad():
        spread = [y.var(-1).mean().item() for y in (x, layers(x))]
    assert 0.5 <= spread[1] / spread[0] <= 2


def test_one_position_is_copied():
    x = draw(2, 7, 3, 1)
    torch.testing.assert_close(vn.AffineLinear(1, 4).double()(x), x.expand(2, 7, 3, 4), rtol=0, atol=1e-15)


def test_an_affine_map_of_nothing_is_refused():
    with pytest.raises(ValueError, match="needs 1 channel or more, got 0"):
        vn.AffineLinear(0, 4)


def test_differences_of_positions_go_through_other_layers():
    first = vn.AffineLinear(3, 6).double()
    rest = nn.Sequential(vn.Block(5, 8), vn.Attention(8, heads=2), vn.ResidualBlock(8), vn.Linear(8, 1)).double()
    nn.init.normal_(rest[2].linear_out.weight)

    def network(points: Tensor) -> Tensor:
        positions = first(vn.lift(points, points.roll(1, dims=1), points.roll(2, dims=1)))
        return (positions[..., :1] + rest(positions[..., 1:] - positions[..., :1])).squeeze(-1)

    points, R = draw(2, 9, 3), vn.geometry.rotations.draw("SO3", 2, dtype=torch.float64)
    shift = 10 * draw(2, 1, 3, seed=1)
    rest.eval()
    assert relative_error(network(points @ R.mT + shift), network(points) @ R.mT + shift) <= 1e-12


class Stack(nn.Module):
    """A moved point for each point and a few vectors for the cloud; its batch norms have a scale of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.body = vn.EdgeConv(1, 8, k=4), vn.Block(8, 8)
        self.attention, self.last = vn.Attention(8, heads=2), vn.Linear(8, 1)

    def forward(self, points: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.body(self.edge(vn.lift(points), mask=mask), mask)
        x = self.attention(x, mask=mask)
        return points + self.last(x).squeeze(-1), vn.MeanPool()(x, mask)


@pytest.mark.parametrize("masked", [False, True])
@given(seed=seeds, size=st.floats(1e-3, 1e3))
def test_a_network_of_unit_clouds_is_equivariant_to_similarities(masked, seed, size):
    torch.manual_seed(0)
    network = Stack().double().eval()
    mask = torch.arange(12).expand(2, 12) < torch.tensor([[12], [8]]) if masked else None
    there = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask

    def predict(points: Tensor) -> tuple[Tensor, Tensor]:
        unit = unit_rms(points, mask=mask)
        moved, vectors = network(unit.points, mask)
        return unit.restore(moved)[there], unit.restore_vectors(vectors)

    points, shift = draw(2, 12, 3, seed=seed), size * draw(2, 1, 3, seed=seed + 1)
    R = vn.geometry.rotations.draw("SO3", 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[0]
    turned = size * points @ R.mT + shift
    (moved, vectors), (found, found_vectors) = predict(points), predict(turned)
    shifts = shift.expand_as(points)[there]
    assert relative_error(found - shifts, size * moved @ R.mT) <= 1e-11
    assert relative_error(found_vectors, size * R @ vectors) <= 1e-11
    # The control: the network itself is not.
    bare = network(vn.center(turned), mask)[0][there]
    assert 0.9 < size < 1.1 or relative_error(bare, size * network(vn.center(points), mask)[0][there] @ R.mT) > 1e-3
