"""Attention: contexts, masks and heads. Samples of `tests/layers.py` cover attention of a cloud to itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import vector_neurons as vn
from vector_neurons.testing import equivariance_error, relative_error

KITS = ["vector", "scalar"]
every_kit = pytest.mark.parametrize("kit", KITS)
seeds = st.integers(0, 2**16)


def draw(kit, *sizes, seed=0, channels=4):
    shape = (*sizes, 3, channels) if kit == "vector" else (*sizes, channels)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(kit="vector", heads=2, **options):
    torch.manual_seed(0)
    return vn.KITS[kit].Attention(4, heads, **options).double()


@pytest.mark.parametrize("group", ["SO3", "O3"])
def test_queries_and_context_rotate_together(group):
    layer, inputs = attention(context_channels=3), (draw("vector", 2, 7), draw("vector", 2, 5, seed=1, channels=3))
    assert equivariance_error(layer, inputs, group=group) <= 1e-12
    # The control: the context alone stays.
    assert equivariance_error(lambda x: layer(x, inputs[1]), inputs[0], group=group) > 1e-3


def test_invariant_scores_are_needed():
    """A control: scores of single coordinates would be noticed."""

    def first_coordinate(x):
        return torch.einsum("bnm,bmdc->bndc", (x[:, :, 0] @ x[:, :, 0].mT).softmax(-1), x)

    assert equivariance_error(first_coordinate, draw("vector", 2, 7)) > 1e-3


@every_kit
@given(seed=seeds)
def test_the_order_of_the_context_does_not_matter(kit, seed):
    layer, x, context = attention(kit), draw(kit, 2, 7, seed=seed), draw(kit, 2, 5, seed=seed + 1)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    assert relative_error(layer(x, context[:, order]), layer(x, context)) <= 1e-12
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    assert relative_error(layer(x[:, order], context), layer(x, context)[:, order]) <= 1e-12


@every_kit
@given(seed=seeds, length=st.integers(1, 5), padding=st.sampled_from([0.0, 1e3, torch.nan, torch.inf]))
def test_padding_is_as_if_it_were_not_there(kit, seed, length, padding):
    layer, x, context = attention(kit), draw(kit, 2, 7, seed=seed), draw(kit, 2, 5, seed=seed + 1)
    mask = torch.arange(5).expand(2, 5) < torch.tensor([[length], [5]])
    expected = layer(x[:1], context[:1, :length])
    context[0, length:] = padding
    assert relative_error(layer(x, context, mask)[:1], expected) <= 1e-12
    # Of itself: rows at padding are not compared.
    x = context.nan_to_num(nan=2.0, posinf=3.0)
    assert relative_error(layer(x, mask=mask)[:1, :length], layer(x[:1, :length])) <= 1e-12
    # The control: without the mask, padding counts.
    assert length == 5 or relative_error(layer(x)[:1, :length], layer(x[:1, :length])) > 1e-3


@every_kit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_sample_without_any_key_stays_finite(kit, dtype):
    layer, x = attention(kit).to(dtype), draw(kit, 3, 6).to(dtype).requires_grad_()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[1] = False
    y = layer(x, mask=mask)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    empty = torch.zeros_like(y[1]) if kit == "vector" else layer.out.bias.expand_as(y[1])
    assert torch.equal(y[1], empty)
    near = 0.05 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(y[::2], layer(x[::2], mask=mask[::2]), rtol=near, atol=near)


@every_kit
def test_a_context_of_nothing_gives_nothing(kit):
    layer = attention(kit)
    empty = layer(draw(kit, 2, 7), draw(kit, 2, 0))
    assert empty.shape == draw(kit, 2, 7).shape
    assert empty.isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e15, 1e30])
def test_scores_beyond_the_range_of_single_precision(scale):
    """The softmax is then a maximum; float64 computes the same."""
    x, context = (scale * draw("vector", 2, n, seed=n) for n in (7, 5))
    layer, exact = attention().float(), attention()
    mask = torch.tensor([[True, True, False, True, True]] * 2)
    inputs = [y.float().requires_grad_() for y in (x, context)]
    found = layer(*inputs, mask)
    assert relative_error(found.double(), exact(x, context, mask)) <= 1e-4
    found.backward(torch.ones_like(found))
    assert all(y.grad.isfinite().all() for y in inputs)


def test_one_context_vector_is_copied_to_all():
    """A softmax over one key is 1, whatever the scores."""
    layer, x, context = attention(), draw("vector", 2, 7), draw("vector", 2, 1, seed=1)
    expected = layer.out(layer.value(context)).expand_as(x)
    torch.testing.assert_close(layer(x, context), expected)


def test_gradients_of_cross_attention():
    layer, mask = attention(context_channels=3), torch.tensor([[True, False, True], [False, False, False]])
    x, context = draw("vector", 2, 2).requires_grad_(), draw("vector", 2, 3, seed=1, channels=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, context: layer(x, context, mask), (x, context))


@every_kit
def test_names_of_parameters(kit):
    """Those of checkpoints of `VNTransformer`."""
    names = {name.partition(".")[0] for name in attention(kit).state_dict()}
    assert list(attention(kit)._modules) == ["query", "key", "value", "out"]
    assert names == {"query", "key", "value", "out"}


@every_kit
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named(kit):
    make, x = vn.KITS[kit].Attention, draw(kit, 2, 7)
    mask = torch.ones(2, 5, dtype=torch.bool)
    for channels, heads in ((4, 3), (4, 0)):
        with pytest.raises(ValueError, match=f"4 channels do not divide among {heads} heads"):
            make(channels, heads)
    with pytest.raises(ValueError, match="a context of 3 channels: pass context"):
        attention(kit, context_channels=3)(x)
    with pytest.raises(ValueError, match=r"3\), got \(2, 7,"):
        attention(kit, context_channels=3)(x, x)
    with pytest.raises(ValueError, match="differ in batch or dimension"):
        attention(kit)(x, draw(kit, 1, 7))
    with pytest.raises(ValueError, match=r"the mask marks keys \(2, 7\), got \(2, 5\)"):
        attention(kit)(x, mask=mask)
    with pytest.raises(ValueError, match="flatten the axes"):
        attention(kit)(x.unsqueeze(0))
    with pytest.raises(ValueError, match=r"takes (vectors|features) \(B, N"):
        attention(kit)(x[0])
