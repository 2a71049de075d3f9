"""Feature propagation against loops over targets, in float64."""

import torch

from vector_neurons.geometry.query import interpolation_weights, nearest
from vector_neurons.nn.hybrid import FeaturePropagation, Features
from vector_neurons.nn.propagation import interpolate

from .compare import assert_same, draw


def interpolated(sources, x, targets, k):
    """For each target, the mean of the flat features of its k nearest sources, weighted by 1 / distance²."""
    rows = []
    for target in targets.tolist():
        squares = [sum((a - b) ** 2 for a, b in zip(source, target, strict=True)) for source in sources.tolist()]
        near = sorted(range(len(squares)), key=lambda m: squares[m])[:k]
        total = sum(1 / squares[m] for m in near)
        values = x.flatten(1).tolist()
        rows.append([sum(values[m][c] / squares[m] for m in near) / total for c in range(len(values[0]))])
    return torch.tensor(rows, dtype=torch.float64).unflatten(1, x.shape[1:])


def test_interpolate():
    sources, targets, v = draw(2, 8, 3), draw(2, 13, 3), draw(2, 8, 3, 4)
    for k in (1, 3, 8):
        neighbors = nearest(targets, sources, k)
        found = interpolate(v, neighbors, interpolation_weights(targets, sources, neighbors))
        assert_same(found, torch.stack([interpolated(sources[b], v[b], targets[b], k) for b in range(2)]))


def test_feature_propagation():
    layer = FeaturePropagation((2, 4), (3, 1), (5, 6), norm="none").double()
    sources, targets = draw(2, 8, 3), draw(2, 13, 3)
    x, skip = Features(draw(2, 8, 2), draw(2, 8, 3, 4)), Features(draw(2, 13, 3), draw(2, 13, 3, 1))
    found = layer(sources, x, targets, skip)
    s, v = (torch.stack([interpolated(sources[b], kind[b], targets[b], 3) for b in range(2)]) for kind in x)
    # The block has a test of its own; here, what it is given.
    expected = layer.block(Features(torch.cat([s, skip.scalars], dim=-1), torch.cat([v, skip.vectors], dim=-1)))
    assert_same(found.scalars, expected.scalars)
    assert_same(found.vectors, expected.vectors)
