"""Non-linearities of scalar features."""

from torch import nn

from ..typing import ActivationFunction, Scalars
from ._factored import ConcatGlobal
from .activation import scalar_function


class LeakyReLU(nn.LeakyReLU):
    """The ordinary leaky ReLU; `negative_slope=0` is ReLU.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.LeakyReLU(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self, channels: int, *, negative_slope: float = 0.2, shared_direction: bool = False, eps: float | None = None
    ) -> None:
        super().__init__(negative_slope)

    def forward(self, x: Scalars | ConcatGlobal) -> Scalars | ConcatGlobal:  # type: ignore[override]
        if isinstance(x, ConcatGlobal):
            return ConcatGlobal(super().forward(x.overall), super().forward(x.x))
        return super().forward(x)


class Activation(nn.Module):
    """Any scalar function, applied to every neuron.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Activation(6, torch.tanh)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self,
        channels: int,
        h: ActivationFunction,
        *,
        signed: bool = True,
        shared_direction: bool = False,
    ) -> None:
        super().__init__()
        self.h = scalar_function(h)

    def forward(self, x: Scalars) -> Scalars:
        return self.h(x)
