"""Non-linearities along learned directions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..typing import ActivationFunction, ActivationName, Vectors
from . import _dispatch
from . import functional as VF
from ._factored import ConcatMean
from ._range import in_float64, needs_float64
from .linear import Linear

NAMED: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "softplus": nn.functional.softplus,
    "gelu": nn.functional.gelu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


def scalar_function(h: ActivationFunction) -> Callable[[Tensor], Tensor]:
    """The scalar function of this name, or the function itself."""
    if callable(h):
        return h
    if not isinstance(h, str) or h not in NAMED:
        raise ValueError(f"unknown activation {h!r}: choose one of {', '.join(NAMED)}, or pass a function")
    return NAMED[h]


class LeakyReLU(nn.Module):
    """VN-LeakyReLU along a direction `k = U V` of the same features, `s V + (1 - s) VN-ReLU(V)` (paper, section 3.2).

    A vector that points along its direction is kept; of others, the part against it is multiplied by the slope `s`.

    Args:
        channels: vectors in and out.
        negative_slope: `s`; 0 is VN-ReLU.
        shared_direction: learn one direction for all channels.
        eps: the authors' absolute eps (1e-6) in place of the relative floor, for outputs identical to theirs.

    Shape:
        - x, out: `(..., 3, channels)`

    Equivariant to O(D), permutations and scaling.

    >>> vn.LeakyReLU(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
    """

    def __init__(
        self, channels: int, *, negative_slope: float = 0.2, shared_direction: bool = False, eps: float | None = None
    ) -> None:
        super().__init__()
        self.negative_slope, self.eps = negative_slope, eps
        self.direction = Linear(channels, 1 if shared_direction else channels)

    def forward(self, x: Vectors | ConcatMean) -> Vectors:
        if needs_float64(x):
            return in_float64(self.forward, x)
        k = self.direction(x)
        q = x.concat() if isinstance(x, ConcatMean) else x
        return _dispatch.leaky_relu(q, k, self.negative_slope, eps=self.eps)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class Activation(nn.Module):
    """Any scalar activation `h`, applied to the coordinate of each vector along its learned direction (supplement).

    `q + (h(p) - p) k/‖k‖` with `k = U V` and `p = ⟨q, k/‖k‖⟩`. The coordinate p is invariant to rotations, so every `h`
    gives an equivariant layer; `"softplus"`, `"gelu"` and `"silu"` are smooth versions of VN-ReLU. Smooth functions
    have a scale of their own: of the names, only `"relu"` commutes with scaling. If `h(0)` is not 0 (`"softplus"`), a
    vector across its direction gets a part of this length along it; with a zero direction the vector is unchanged.

    Args:
        channels: vectors in and out.
        h: a scalar function, such as `torch.tanh`, or `"relu"`, `"softplus"`, `"gelu"`, `"silu"` or `"tanh"`.
        signed: apply `h` to the signed coordinate; False is the supplement to the letter, `h` of the part's length.
        shared_direction: learn one direction for all channels.

    Shape:
        - x, out: `(..., 3, channels)`

    Equivariant to O(D) and permutations; to scaling if `h` is.

    >>> vn.Activation(4, torch.tanh)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
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
        self.h, self.signed = scalar_function(h), signed
        self.direction = Linear(channels, 1 if shared_direction else channels)

    def forward(self, x: Vectors) -> Vectors:
        if needs_float64(x):
            return in_float64(self.forward, x)
        return VF.activation(x, self.direction(x), self.h, signed=self.signed)
