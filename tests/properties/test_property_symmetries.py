"""Every layer has the symmetries it claims, to rounding, and lacks those it does not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import LAYERS, Layer
from torch import Tensor

import vector_neurons as vn
from vector_neurons.testing import equivariance_error, relative_error

BOUNDS = {torch.float32: 2e-6, torch.float64: 1e-12}
# Gram-Schmidt divides by the sine of the angle between two vectors, and among a hundred frames one is nearly flat.
FLAT_FRAMES = {"invariant-orthonormal": 1e-5}
FAILS = 1e-3
seeds = st.integers(0, 2**16)
every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=["float32", "float64"])
every_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def error(layer: Layer, group: str, rank: int = 4, *, training: bool = False, seed: int = 0, **options) -> float:
    x = layer.example(rank, dtype=options.pop("dtype", torch.float64), seed=seed)
    degree = layer.scale if group == "scale" else None
    options = {"gives": layer.gives, "group": group, "degree": degree, "seed": seed, **options}
    return equivariance_error(layer.module_for(x, training=training, seed=seed), x, **options)


@every_mode
@every_dtype
@every_layer
@settings(max_examples=5)
@given(data=st.data(), seed=seeds)
def test_rotation(layer, dtype, training, data, seed):
    rank = data.draw(st.sampled_from(layer.ranks))
    bound = FLAT_FRAMES.get(layer.name, BOUNDS[dtype]) if dtype == torch.float32 else BOUNDS[dtype]
    assert error(layer, "SO3", rank, dtype=dtype, training=training, seed=seed, trials=1) <= bound


@every_mode
@every_dtype
@every_layer
def test_reflection(layer, dtype, training):
    found = error(layer, "O3", dtype=dtype, training=training)
    assert found <= BOUNDS[dtype] if layer.reflection else found > FAILS


@every_mode
@every_layer
def test_permutation(layer, training):
    training = training and not layer.random  # random numbers do not move along
    found = error(layer, "permutation", training=training)
    assert found <= BOUNDS[torch.float64] if layer.permutation else found > FAILS


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if 5 in layer.ranks], ids=str)
def test_permutation_of_neighbors(layer):
    x = layer.example(5, dtype=torch.float64)
    module, order = layer.module_for(x), torch.tensor([3, 1, 4, 0, 5, 2])
    expected = module(x) if layer.pools else module(x)[:, :, order]
    found = relative_error(module(x[:, :, order]), expected)
    assert found <= BOUNDS[torch.float64] if layer.permutation else found > FAILS


@every_dtype
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.scale is not None], ids=str)
@settings(max_examples=5)
@given(data=st.data(), seed=seeds)
def test_scale(layer, dtype, data, seed):
    rank, training = data.draw(st.sampled_from(layer.ranks)), data.draw(st.booleans())
    assert error(layer, "scale", rank, dtype=dtype, training=training, seed=seed, trials=1) <= BOUNDS[dtype]


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@every_dtype
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.scale is not None], ids=str)
def test_scale_of_thousands(layer, dtype, scale):
    x = layer.example(dtype=dtype)
    module = layer.module_for(x)
    assert relative_error(module(scale * x), scale**layer.scale * module(x)) <= BOUNDS[dtype]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.scale is None], ids=str)
@pytest.mark.parametrize("degree", [0.0, 1.0, 2.0])
def test_no_degree_fits_a_layer_with_a_scale_of_its_own(layer, degree):
    assert error(layer, "scale", degree=degree) > FAILS


def vectors_of(points: Tensor, *, centered: bool = True) -> Tensor:
    """Four vectors at each point that turn with the cloud and, with `centered`, stay when it moves."""
    x = vn.center(points) if centered else points
    x = x * torch.linspace(0.5, 1.5, x.shape[1], dtype=x.dtype)[:, None]  # the mean of what follows is not zero
    return vn.lift(x, x.roll(1, 1), x.roll(2, 1), x.roll(5, 1))


@every_layer
def test_translation_goes_with_the_center(layer):
    points = torch.randn(2, 16, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    module = layer.module_for(vectors_of(points))
    options = {"takes": "points", "gives": layer.gives, "group": "SE3"}
    assert equivariance_error(lambda p: module(vectors_of(p)), points, **options) <= 1e-11
    assert equivariance_error(lambda p: module(vectors_of(p, centered=False)), points, **options) > FAILS


@given(seed=seeds, shift=st.floats(-100, 100), n=st.integers(1, 5))
def test_center_forgets_where_a_cloud_is(seed, shift, n):
    points = torch.randn(2, n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    moved = points + torch.tensor([[[shift, 0.0, -shift]], [[1.0, shift, 2.0]]], dtype=torch.float64)
    torch.testing.assert_close(vn.center(moved), vn.center(points), rtol=0, atol=1e-12)


@every_dtype
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_edge_convolution_on_a_given_graph(pool, dtype):
    points = torch.randn(2, 16, 3, dtype=dtype)
    module = vn.EdgeConv(1, 6, pool=pool).to(dtype)
    inputs = (vn.lift(points), vn.knn(points, 5))
    for group in ("SO3", "O3"):
        assert equivariance_error(module, inputs, group=group) <= BOUNDS[dtype]
