"""float64, float32, bfloat16 and autocast: the right dtype comes out, as exact as the dtype allows."""

import pytest
import torch
from layers import LAYERS, Layer

import vector_neurons as vn
from vector_neurons import kernels
from vector_neurons.testing import TOLERANCE, equivariance_error, relative_error

every_layer = pytest.mark.parametrize("layer", LAYERS, ids=str)
every_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
# A turned cloud rounded to 8 bits has other neighbors and other maxima here and there, whatever the layer does.
CHOICES = 0.3


def bound(layer: Layer) -> float:
    return CHOICES if layer.chooses else TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_mode
@every_layer
def test_the_output_has_the_dtype_of_the_input(layer, training, dtype):
    x = layer.example(dtype=dtype)
    y = layer.module_for(x, training=training)(x)
    assert y.dtype == dtype
    assert y.isfinite().all()


@every_mode
@every_layer
def test_bfloat16_is_roughly_equivariant(layer, training):
    x = layer.example().bfloat16()
    module = layer.module(training=training).bfloat16()
    assert equivariance_error(module, x, gives=layer.gives) <= bound(layer)


@every_layer
def test_bfloat16_gives_roughly_what_float32_gives(layer):
    x = layer.example().bfloat16()
    exact = layer.module()(x.float())
    assert relative_error(layer.module().bfloat16()(x), exact) <= bound(layer)


@every_layer
def test_float32_gives_what_float64_gives(layer):
    x = layer.example()
    assert relative_error(layer.module()(x), layer.module().double()(x.double())) <= 2e-6


@every_mode
@every_layer
def test_autocast(layer, training):
    x = layer.example()
    module = layer.module(training=training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(x.clone().requires_grad_())
        assert y.dtype in (torch.bfloat16, torch.float32)
        assert equivariance_error(module, x, gives=layer.gives) <= bound(layer)
    if y.requires_grad:
        y.float().square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is None or (parameter.grad.dtype == torch.float32 and parameter.grad.isfinite().all())
    if not layer.random:
        assert relative_error(y, layer.module(training=training)(x)) <= bound(layer)


EXACT = ["batch-norm", "batch-norm-log", "layer-norm", "instance-norm", "mean-pool", "invariant-norm", "dropout"]


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.name in EXACT], ids=str)
def test_norms_and_lengths_stay_in_float32_under_autocast(layer):
    x = layer.example()
    expected = layer.module()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.module()(x), expected)


@pytest.mark.parametrize("shape", [(2, 30, 3, 8), (1, 1600, 3, 21)], ids=["small", "large"])
def test_graphs_are_the_same_under_autocast(shape):
    x = torch.randn(*shape[:-1], 1) * torch.randn(shape[-1])
    expected = vn.knn(x, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(vn.knn(x, 6), expected)


@pytest.mark.parametrize("kit", vn.KITS)
def test_means_in_half_precision_stay_in_range(kit):
    vectors = torch.full((1, 2048, 3, 2), 100.0, dtype=torch.float16)
    scalars = vectors[:, :, 0]
    if kit == "hybrid":
        pooled = vn.nn.hybrid.MeanPool()(vn.nn.hybrid.Features(scalars, vectors))
        assert torch.equal(pooled.scalars, scalars[:, 0])
        assert torch.equal(pooled.vectors, vectors[:, 0])
    else:
        x = vectors if kit == "vector" else scalars
        assert torch.equal(vn.KITS[kit].MeanPool()(x), x[:, 0])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_pooled_invariants_have_one_dtype_under_autocast(backend):
    layer, x = vn.Invariant(4, norm="none").eval(), torch.randn(2, 9, 3, 4)
    with kernels.using(backend), torch.autocast("cpu", dtype=torch.bfloat16):
        found = [y.dtype for y in layer(x, pool=True)]
    with kernels.using("eager"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert found == [y.dtype for y in layer(x, pool=True)]
