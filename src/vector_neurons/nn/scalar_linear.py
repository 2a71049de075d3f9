"""Linear maps of scalar features, dropout, and how a cloud becomes scalar features."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..typing import NewScalars, Points, Scalars
from . import _dispatch_scalar
from ._checks import check_scalars
from ._factored import ConcatGlobal, EdgeInput


def width(channels: int) -> int:
    """Number of scalar channels in place of `channels` scalar ones: all of them.

    >>> vn.nn.scalar.width(1023)
    1023
    """
    return channels


def lift(*clouds: Points) -> Float[Tensor, "*batch points channels"]:
    """Make features of a cloud `(B, N, 3)` and further vectors of its points: their coordinates as channels.

    >>> vn.nn.scalar.lift(torch.zeros(2, 10, 3)).shape
    torch.Size([2, 10, 3])
    """
    return torch.cat(clouds, dim=-1)


class Linear(nn.Module):
    """An affine map; with `num_elements=N` one for each of the N elements of the axis before the channels.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.Linear(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, num_elements: int | None = None, bias: bool = True
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.num_elements = in_channels, out_channels, num_elements
        stack = () if num_elements is None else (num_elements,)
        self.weight = nn.Parameter(torch.empty(*stack, out_channels, in_channels))
        self.bias = nn.Parameter(torch.empty(*stack, out_channels)) if bias else None
        bound = in_channels**-0.5  # torch's own default for nn.Linear
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Scalars | EdgeInput | ConcatGlobal) -> NewScalars:
        if isinstance(x, EdgeInput | ConcatGlobal):
            return x.linear(self.weight) if self.bias is None else x.linear(self.weight) + self.bias
        check_scalars(self, x, self.in_channels)
        if self.num_elements is None:
            return _dispatch_scalar.scalar_linear(x, self.weight, self.bias)
        mapped = (self.weight @ x.unsqueeze(-1)).squeeze(-1)
        return mapped if self.bias is None else mapped + self.bias

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, num_elements={self.num_elements}, bias={self.bias is not None}"
        )


class AffineLinear(Linear):
    """A `Linear`: with a bias there is no need for weights that sum to 1.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.AffineLinear(6, 8)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, bias=bias)


class Dropout(nn.Dropout):
    """The ordinary dropout.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Dropout()(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
