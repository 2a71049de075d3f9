"""Find the layer that breaks the symmetry of a module of your own, and test the repaired one.

python examples/check_equivariance.py        the same as `vn check FILE.py:NAME` from the shell
"""

import torch
from torch import Tensor, nn

import vector_neurons as vn


class Residual(nn.Module):
    """A residual block of vectors. The broken one has a linear map with a bias in it."""

    def __init__(self, channels: int, *, broken: bool) -> None:
        super().__init__()
        self.first = vn.Block(channels, channels)
        self.second = nn.Linear(channels, channels) if broken else vn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors `(..., 3, C)` to vectors of the same shape."""
        return x + self.second(self.first(x))


torch.manual_seed(0)
x = torch.randn(2, 64, 3, 16)
print(vn.testing.report(Residual(16, broken=True).eval(), x, takes="vectors", gives="vectors"))

repaired = Residual(16, broken=False).eval()
vn.testing.assert_equivariant(repaired, x, group="O3")
print(f"repaired: relative error {vn.testing.equivariance_error(repaired, x):.0e} under rotations")
