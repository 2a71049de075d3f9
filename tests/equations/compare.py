"""Between tensors `(..., D, C)` and the transcription's lists."""

import pytest
import torch
from torch import nn

import vector_neurons as vn
from vector_neurons.nn.norm import NoNorm

from . import transcription as paper

TOLERANCE = 1e-12

SHAPES = [(*lead, dim, 4) for lead in [(4,), (2, 3), (2, 3, 2)] for dim in [2, 3, 5]]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
set_shapes = pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 3], ids=str)
shapes_3d = pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-2] == 3], ids=str)


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64)


def randomized(layer):
    """Float64, and no parameter or statistic left at a value that could hide a mistake."""
    for parameter in layer.double().parameters():
        nn.init.normal_(parameter)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            nn.init.uniform_(buffer, 0.5, 1.5)
    return layer


def lists(x):
    return x.detach().mT.flatten(0, -3).tolist()


def sets(x, axes=1):
    """One set for each place of the first `axes` axes."""
    return [lists(part) for part in x.flatten(0, axes - 1)]


def vectors(elements, lead):
    return torch.tensor(elements, dtype=torch.float64).unflatten(0, lead).mT


def numbers(values, lead):
    return torch.tensor(values, dtype=torch.float64).unflatten(0, lead)


def mapped(x, weight):
    return vectors([paper.linear(V, weight.tolist()) for V in lists(x)], x.shape[:-2])


def assert_same(actual, expected):
    assert (actual.shape, actual.dtype) == (expected.shape, torch.float64)
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error <= TOLERANCE, f"relative error {error:.1e}"


def norm_of(layer, batch):
    """The transcription of a norm layer, over the elements of `batch` samples."""
    if isinstance(layer, NoNorm):
        return lambda elements: elements
    if isinstance(layer, vn.BatchNorm):
        scale, shift = layer.bn.weight.tolist(), layer.bn.bias.tolist()
        running = None if layer.training else (layer.bn.running_mean.tolist(), layer.bn.running_var.tolist())
        return lambda elements: paper.batch_norm(elements, scale, shift, running=running, log=layer.mode == "log")
    scale = layer.weight.tolist()
    if isinstance(layer, vn.LayerNorm):
        return lambda elements: [paper.layer_norm(V, scale, layer.eps) for V in elements]

    def each_sample(elements):
        size = len(elements) // batch
        samples = [elements[b * size : (b + 1) * size] for b in range(batch)]
        return [V for sample in samples for V in paper.instance_norm(sample, scale, layer.eps)]

    return each_sample


def run_block(layer, elements, batch):
    W, U = layer.linear.weight.tolist(), layer.direction.weight.tolist()
    return paper.block(
        elements, W, U, norm_of(layer.norm, batch), layer.negative_slope, layer.direction_source == "output"
    )


def run_mlp(layer, elements, batch):
    *blocks, last = layer
    for each in blocks:
        elements = run_block(each, elements, batch)
    return [paper.linear(V, last.weight.tolist()) for V in elements]
