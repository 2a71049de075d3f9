"""Means and maxima of segments against loops; their gradients; empty segments; edges of dense graphs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vector_neurons.geometry.segments import segment_max, segment_mean, to_edge_index


def draw(rows, size, *shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, size, (rows,), generator=generator)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(0, 12), size=st.integers(1, 6), shape=st.sampled_from([(), (2,), (3, 2)]), seed=st.integers(0))
def test_segments_by_hand(rows, size, shape, seed):
    x, index = draw(rows, size, *shape, seed=seed % 2**31)
    mean, largest = segment_mean(x, index, size), segment_max(x, index, size)
    assert mean.shape == largest.shape == (size, *shape)
    flat, columns = x.reshape(rows, math.prod(shape)).tolist(), math.prod(shape)
    for segment in range(size):
        for c in range(columns):
            values = [flat[row][c] for row in range(rows) if index[row] == segment]
            found = [y[segment].flatten()[c].item() for y in (mean, largest)]
            assert found[0] == pytest.approx(sum(values) / max(1, len(values)), abs=1e-14)
            assert found[1] == (max(values) if values else 0.0)


@pytest.mark.parametrize("reduce", [segment_mean, segment_max])
def test_gradients(reduce):
    x, index = draw(9, 5, 2, 3)
    index[index == 2] = 3  # an empty segment
    assert torch.autograd.gradcheck(lambda x: reduce(x, index, 5), x.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: reduce(x, index, 5), x)
    reduce(x, index, 5)[2].sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_among_equals_the_gradient_goes_to_the_first():
    x = torch.tensor([1.0, 2.0, 2.0]).requires_grad_()
    segment_max(x, torch.zeros(3, dtype=torch.long), 1).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("reduce", [segment_mean, segment_max])
def test_order_of_rows_does_not_matter_and_results_repeat(reduce):
    x, index = draw(500, 20, 3, 4)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(reduce(x[order], index[order], 20), reduce(x, index, 20), rtol=0, atol=1e-14)
    assert all(torch.equal(reduce(x, index, 20), reduce(x, index, 20)) for _ in range(5))


def test_nan_is_not_hidden_and_half_precision_does_not_overflow():
    index = torch.tensor([0, 1, 0])
    assert segment_max(torch.tensor([1.0, 2.0, torch.nan]), index, 2).isnan().tolist() == [True, False]
    assert segment_mean(torch.full((3,), 6e4, dtype=torch.float16), index, 2).tolist() == [6e4] * 2
    assert segment_max(torch.tensor([-1.0, -2.0, -3.0]).bfloat16(), index, 3).tolist() == [-1.0, -2.0, 0.0]


def test_edges_of_neighbors():
    neighbors = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [1, 1]]])
    assert to_edge_index(neighbors).tolist() == [[0, 1, 1, 0, 2, 2, 3, 3], [0, 0, 1, 1, 2, 2, 3, 3]]


@pytest.mark.parametrize("reduce", [segment_mean, segment_max])
@pytest.mark.parametrize(
    ("index", "size"),
    [(torch.zeros(4).long(), 1), (torch.zeros(3).int(), 1), (torch.zeros(3), 1), (torch.zeros(3).long(), -1)],
)
def test_mistakes_are_explained(unchecked, reduce, index, size):
    with pytest.raises(ValueError, match="segment") as raised:
        reduce(torch.zeros(3, 2), index, size)
    assert "\n" not in str(raised.value)
