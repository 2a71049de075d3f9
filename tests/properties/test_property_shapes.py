"""Every rank, dimension and size a layer claims to take; a plain error for the ones it does not."""

import re

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layers import LAYERS
from torch import nn

import vector_neurons as vn
from vector_neurons.testing import equivariance_error

SIZE = st.integers(1, 3)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@settings(max_examples=12)
@given(data=st.data())
def test_small_sizes(layer, data):
    rank, dim = data.draw(st.sampled_from(layer.ranks)), data.draw(st.sampled_from(layer.dims))
    sizes = tuple(data.draw(SIZE) for _ in range(rank - 2))
    channels, training = data.draw(SIZE), data.draw(st.booleans())
    assume(rank == 3 or sizes[1] >= layer.least)
    assume(channels >= layer.least_channels)
    assume(not (training and layer.batch) or torch.Size(sizes).numel() > 1)  # torch's batch norm refuses one value
    x = layer.example(rank, sizes=sizes, dim=dim, channels=channels, dtype=torch.float64)
    module = layer.module_for(x, training=training)
    y = module(x)
    assert y.isfinite().all()
    elements = x.shape[:-3] if layer.pools else x.shape[:-2]
    assert y.shape[:-1] == (elements if layer.gives == "scalars" else (*elements, dim))

    # The output may be zero but for rounding (a ReLU of one channel), so the error is compared with the input as well.
    assume(layer.name != "invariant-orthonormal" or channels > 1)  # one vector spans no frame
    R = vn.geometry.rotations.draw("SO3", 1, dim, generator=torch.Generator().manual_seed(1), dtype=x.dtype)[0]
    seed = torch.default_generator.get_state()
    y = module(x)
    torch.default_generator.set_state(seed)  # for dropout
    turned = module(R @ x)
    expected = y if layer.gives == "scalars" else R @ y
    assert (turned - expected).norm() <= 1e-9 * (x.norm() + y.norm())


@pytest.mark.parametrize(("layer", "dim"), [(layer, dim) for layer in LAYERS for dim in layer.dims], ids=str)
def test_dimensions(layer, dim):
    x = layer.example(dim=dim)
    module = layer.module_for(x)
    for group in ("SO3", "O3") if layer.reflection else ("SO3",):
        assert equivariance_error(module, x, gives=layer.gives, group=group, trials=1) <= 2e-6
        assert equivariance_error(module.double(), x.double(), gives=layer.gives, group=group, trials=1) <= 1e-12
        module.float()


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.dims == (3,)], ids=str)
def test_cross_products_exist_in_three_dimensions_only(layer, dim):
    x = layer.example(dim=dim)
    with pytest.raises(ValueError, match=r"3-D only.*\(2, 16, \d, \d\)"):
        layer.module_for(x)(x)


# Dropout and the mean pool take any number of channels, so they cannot tell.
@pytest.mark.parametrize("layer", [x for x in LAYERS if not x.name.endswith(("dropout", "mean-pool"))], ids=str)
@pytest.mark.parametrize("axes", [(0, 1, 3, 2), (0, 3, 2, 1)], ids=["channels-first", "reference-order"])
def test_a_misplaced_vector_axis_is_named(layer, axes):
    x = layer.example(sizes=(2, 6), channels=4)
    module, wrong = layer.module_for(x), x.permute(axes)
    with pytest.raises(ValueError, match=re.escape(str(tuple(wrong.shape)))):
        module(wrong)


@pytest.mark.parametrize(
    ("module", "x", "hint"),
    [
        (vn.Linear(1, 4), torch.randn(2, 10, 3), r"lift\(points\)"),
        (vn.Linear(4, 4), torch.randn(2, 10, 4, 3), r"x\.mT"),
        (vn.Block(4, 4), torch.randn(2, 4, 3, 10), r"movedim\(\(1, 2\), \(-1, -2\)\)"),
        (vn.EdgeConv(1, 4, k=3), torch.randn(2, 10, 3), r"lift\(points\)"),
    ],
    ids=["cloud", "transposed", "reference", "edge-conv"],
)
def test_the_error_says_what_to_do(module, x, hint):
    with pytest.raises(ValueError, match=hint):
        module(x)


def test_the_hint_of_the_reference_order_helps():
    x = torch.randn(2, 4, 3, 10)
    assert vn.Linear(4, 5)(x.movedim((1, 2), (-1, -2))).shape == (2, 10, 3, 5)


@pytest.mark.parametrize(
    "module",
    [vn.MeanPool(), vn.MaxPool(4), vn.InstanceNorm(4), vn.Block(4, 4, norm="instance"), vn.EdgeConv(4, 4, k=2)],
    ids=lambda module: type(module).__name__,
)
def test_nothing_pools_over_the_batch(module: nn.Module):
    with pytest.raises(ValueError, match=r"\(5, 3, 4\)"):
        module(torch.randn(5, 3, 4))


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_of_a_single_value(training):
    module, x = vn.BatchNorm(4).train(training), torch.randn(1, 3, 4)
    if training:
        with pytest.raises(ValueError, match="more than one element"):
            module(x)
    else:
        assert module(x).shape == x.shape


@pytest.mark.parametrize("rank", [2, 3, 6])
@pytest.mark.parametrize("module", [vn.Linear(4, 4), vn.LeakyReLU(4), vn.LayerNorm(4), vn.Block(4, 4, norm="none")])
def test_any_other_rank(module, rank):
    x = torch.randn(*(2,) * (rank - 2), 3, 4, dtype=torch.float64)
    assert equivariance_error(module.double(), x) <= 1e-12


@pytest.mark.parametrize("k", [0, 9])
def test_a_graph_asks_for_as_many_neighbors_as_there_are_points(k):
    with pytest.raises(ValueError, match=f"k.*{k}"):
        vn.knn(torch.randn(1, 8, 3), k)
    with pytest.raises(ValueError, match="k=8"):
        vn.knn(torch.randn(1, 8, 3), 8, include_self=False)
