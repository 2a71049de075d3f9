"""Residual blocks: masks, names of parameters, mistakes. `tests/layers.py` has their symmetries."""

import pytest
import torch
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.testing import relative_error

every_kit = pytest.mark.parametrize("kit", ["vector", "scalar"])


def block(kit: str, *widths: int, **options: object) -> nn.Module:
    torch.manual_seed(0)
    made = vn.KITS[kit].ResidualBlock(*widths, **options).double()
    nn.init.normal_(made.linear_out.weight)  # from 0
    return made


def draw(kit: str, *sizes: int) -> Tensor:
    shape = (*sizes, 3, 4) if kit == "vector" else (*sizes, 4)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@every_kit
@pytest.mark.parametrize("norm", ["batch", "log-batch", "layer", "instance", "none"])
def test_padding_does_not_count(kit, norm):
    short, padded = draw(kit, 1, 5), draw(kit, 1, 8)
    padded[:, :5], padded[:, 5:] = short, 100
    mask = torch.arange(8)[None] < 5
    expected, found = (block(kit, 4, 6, norm=norm).train() for _ in range(2))
    assert relative_error(found(padded, mask)[:, :5], expected(short)) <= 1e-12
    for a, b in zip(expected.buffers(), found.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    if norm in ("batch", "log-batch", "instance"):  # the control: others do not combine points
        assert relative_error(block(kit, 4, 6, norm=norm).train()(padded)[:, :5], expected(short)) > 1e-3


@every_kit
def test_names_of_parameters(kit):
    """Those of checkpoints of `OccupancyNetwork`."""
    names = [name for name in block(kit, 4, 6, norm="none")._modules if not name.startswith("norm")]
    assert names == ["activation_in", "linear_in", "activation_out", "linear_out", "shortcut"]
    biases = [name for name in block(kit, 4, 6).state_dict() if name.endswith("bias") and ".bn." not in name]
    assert biases == ([] if kit == "vector" else ["linear_out.bias"])


@every_kit
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named(kit):
    with pytest.raises(ValueError, match="unknown norm 'group': choose one of batch, log-batch, layer, instance, none"):
        block(kit, 4, norm="group")
    with pytest.raises(ValueError, match="a residual block needs channels, got 4, 6 and 0 hidden"):
        block(kit, 4, 6, 0)
    with pytest.raises(ValueError, match="unknown activation 'swish'"):
        block(kit, 4, activation="swish")
    with pytest.raises(ValueError, match=r"got \(2, 5, 3, 3\)|got \(2, 5, 3\)"):
        block(kit, 4)(draw(kit, 2, 5)[..., :3])
