"""Layers on scalars and vectors against loops over elements, in float64."""

import math

import pytest
import torch

import vector_neurons as vn
from vector_neurons.nn.hybrid import Features, Frame, FrameConv, HybridBlock

from .compare import assert_same, draw


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def mapped(weight, columns):
    """Columns `[channel][coordinate]` of `W V`."""
    return [[sum(w * v[axis] for w, v in zip(row, columns, strict=True)) for axis in range(3)] for row in weight]


def leaky(x):
    return x if x > 0 else 0.1 * x


def columns(v):
    """`(3, C)` as a list of C vectors."""
    return v.mT.tolist()


def soft_frames(weight, samples):
    """Frames `[sample][element][vector][coordinate]`, each vector shortened by a tenth of the sample's RMS length."""
    frames = []
    for sample in samples:
        raw = [mapped(weight, element) for element in sample]
        squares = [dot(t, t) for element in raw for t in element]
        floor = 0.01 * sum(squares) / len(squares)
        frames.append([[[x / math.sqrt(dot(t, t) + floor) for x in t] for t in element] for element in raw])
    return frames


def seen(frame, vectors):
    """Coordinates in the frame, frame vector by frame vector."""
    return [dot(t, v) for t in frame for v in vectors]


def test_frame():
    layer, x = Frame(4).double(), draw(2, 5, 3, 4)
    expected = soft_frames(layer.linear.weight.tolist(), [[columns(v) for v in sample] for sample in x])
    assert_same(layer(x), torch.tensor(expected, dtype=torch.float64).mT)


def test_orthonormal_frame_is_a_rotation():
    frame = Frame(4, orthonormal=True).double()(draw(2, 5, 3, 4))
    torch.testing.assert_close(frame.mT @ frame, torch.eye(3, dtype=torch.float64).expand_as(frame))
    torch.testing.assert_close(torch.linalg.det(frame), torch.ones(2, 5, dtype=torch.float64))


def test_hybrid_block():
    layer = HybridBlock((2, 4), (3, 5), norm="none").double()
    s, v = draw(2, 6, 2), draw(2, 6, 3, 4)
    frames = soft_frames(layer.frame.linear.weight.tolist(), [[columns(x) for x in sample] for sample in v])
    scalars, vectors = [], []
    for b in range(2):
        for n in range(6):
            x = [*s[b, n].tolist(), *seen(frames[b][n], columns(v[b, n]))]
            rows = zip(layer.block.linear.weight.tolist(), layer.block.linear.bias.tolist(), strict=True)
            out = [leaky(dot(row, x) + bias) for row, bias in rows]
            gates = zip(layer.gate.weight.tolist(), layer.gate.bias.tolist(), strict=True)
            gate = [1 / (1 + math.exp(-dot(row, out) - bias)) for row, bias in gates]
            scalars.append(out)
            vectors.append(
                [
                    [g * y for y in u]
                    for g, u in zip(gate, mapped(layer.linear.weight.tolist(), columns(v[b, n])), strict=True)
                ]
            )
    found = layer(Features(s, v))
    assert_same(found.scalars, torch.tensor(scalars, dtype=torch.float64).view(2, 6, 3))
    assert_same(found.vectors, torch.tensor(vectors, dtype=torch.float64).view(2, 6, 5, 3).mT)


@pytest.mark.parametrize("scalars", [0, 2])
def test_frame_conv(scalars):
    layer = FrameConv((scalars, 4), (6, 5), hidden=7, norm="none").double()
    points, s, v = draw(2, 9, 3), draw(2, 9, scalars), draw(2, 9, 3, 4)
    neighbors = vn.knn(points, 4)[:, :3]
    found = layer(points, Features(s, v), neighbors)
    for b in range(2):
        groups = neighbors[b].tolist()
        offsets = [[(points[b, m] - points[b, group[0]]).tolist() for m in group] for group in groups]
        size = math.sqrt(sum(dot(d, d) for group in offsets for d in group) / 12)
        offsets = [[[x / size for x in d] for d in group] for group in offsets]
        (frames,) = soft_frames(layer.frame.linear.weight.tolist(), [[columns(v[b, group[0]]) for group in groups]])
        for n, group in enumerate(groups):
            messages = []
            for m, d in zip(group, offsets[n], strict=True):
                e = [*s[b, m].tolist(), *seen(frames[n], [d, *columns(v[b, m])]), math.sqrt(dot(d, d))]
                for block in layer.message:
                    rows = zip(block.linear.weight.tolist(), block.linear.bias.tolist(), strict=True)
                    e = [leaky(dot(row, e) + bias) for row, bias in rows]
                messages.append(e)
            assert_same(
                found.scalars[b, n],
                torch.tensor([max(column) for column in zip(*messages, strict=True)], dtype=torch.float64),
            )
            weights = [[dot(row, e) for row in layer.weight.weight.tolist()] for e in messages]
            expected = [
                [sum(w[c] * d[axis] for w, d in zip(weights, offsets[n], strict=True)) / 4 for axis in range(3)]
                for c in range(3)
            ]
            passed = [mapped(layer.linear.weight.tolist(), columns(v[b, m])) for m in group]
            expected += [
                [sum(w[3 + c] * u[c][axis] for w, u in zip(weights, passed, strict=True)) / 4 for axis in range(3)]
                for c in range(2)
            ]
            assert_same(found.vectors[b, n], torch.tensor(expected, dtype=torch.float64).mT)
