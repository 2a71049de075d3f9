"""Samples of a batch have different poses: none may see another, but for the statistics of batch norms in training."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import LAYERS
from torch import nn

import vector_neurons as vn
from vector_neurons.testing import relative_error

BOUND = 1e-12
INDEPENDENT = [layer for layer in LAYERS if not layer.batch and not layer.random]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_a_sample_alone_is_a_sample_in_a_batch(layer, data, seed):
    rank = data.draw(st.sampled_from(layer.ranks))
    x = layer.example(rank, sizes=(4, 6, 5)[: rank - 2], dtype=torch.float64, seed=seed)
    module = layer.module(elements=x.shape[-3], dtype=torch.float64, seed=seed)
    index = data.draw(st.integers(0, 3))
    assert relative_error(module(x[index : index + 1]), module(x)[index : index + 1]) <= BOUND


@pytest.mark.parametrize(("layer", "rank"), [(layer, rank) for layer in INDEPENDENT for rank in layer.ranks], ids=str)
def test_nothing_leaks_in_training(layer, rank):
    x = layer.example(rank, sizes=(4, 6, 5)[: rank - 2], dtype=torch.float64)
    module = layer.module_for(x, training=True)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(module(x)[1].sum(), x)
    assert gradient[1].any()
    assert not gradient[[0, 2, 3]].any()
    others = torch.stack([100 * x[0], x[1], -x[2], x[3] + 7])
    assert relative_error(module(others)[1], module(x)[1]) <= BOUND


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.batch], ids=str)
def test_batch_norm_sees_the_batch_in_training_only(layer):
    x = layer.example(dtype=torch.float64)
    others = torch.stack([x[0], 3 * x[1]])
    for training in (False, True):
        module = layer.module_for(x, training=training)
        leak = relative_error(module(others)[0], module(x)[0])
        assert leak > 1e-3 if training else leak <= BOUND


def test_center_is_taken_per_cloud():
    points = torch.randn(3, 10, 3, dtype=torch.float64)
    together = vn.center(points + torch.tensor([[[0.0]], [[5.0]], [[-9.0]]]))
    torch.testing.assert_close(together, torch.stack([vn.center(cloud) for cloud in points]))
    assert together.mean(1).abs().max() < 1e-12


@pytest.mark.parametrize("shape", [(3, 3, 4), (3, 5, 3, 4), (3, 5, 2, 3, 4)])
@pytest.mark.parametrize("orthonormal", [False, True])
def test_the_mean_in_an_invariant_frame_is_per_sample(shape, orthonormal):
    module = vn.Invariant(4, norm="none", project_mean=True, orthonormal=orthonormal).double().train()
    x = torch.randn(shape, dtype=torch.float64)
    scalars, frame = module(x, return_frame=True)
    for i, sample in enumerate(x):
        alone, own = module(sample[None], return_frame=True)
        assert relative_error(alone[0], scalars[i]) <= BOUND
        assert relative_error(own[0], frame[i]) <= BOUND


@pytest.mark.parametrize("norm", ["layer", "instance", "none"])
def test_a_network_without_batch_norm_can_be_trained_on_samples_in_any_pose(norm):
    network = nn.Sequential(vn.EdgeConv(1, 6, k=4, norm=norm), vn.Block(6, 6, norm=norm), vn.Invariant(6, norm=norm))
    network = network.double().train()
    x = vn.lift(torch.randn(4, 12, 3, dtype=torch.float64))
    R = vn.geometry.rotations.draw("SO3", 4, dtype=torch.float64)[:, None]  # each sample turns by itself
    assert relative_error(network(R @ x), network(x)) <= BOUND


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_each_sample_may_turn_by_itself(layer):
    x = layer.example(dtype=torch.float64, sizes=(4, 8))
    module = layer.module_for(x, training=not layer.random)
    R = vn.geometry.rotations.draw("SO3", 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = module(x)
    if layer.gives == "vectors":
        expected = (R if layer.pools else R[:, None]) @ expected
    assert relative_error(module(R[:, None] @ x), expected) <= BOUND
