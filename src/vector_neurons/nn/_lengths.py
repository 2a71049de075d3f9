"""Lengths of vectors, computed in float32 at least, and safe to differentiate and to divide by."""

import torch
from torch import Tensor

from .._constants import RELATIVE_FLOOR
from ..typing import Scalars, Vectors


def widen(x: Tensor) -> Tensor:
    """As float32 at least."""
    return x if x.dtype == torch.float64 else x.float()


def positive(squares: Tensor) -> Tensor:
    """Squared lengths, at least tiny."""
    # Keeps square roots differentiable at zero and divisions finite, as well as the square of the inverse.
    return squares.clamp_min(torch.finfo(squares.dtype).tiny ** 0.5)


def floored(squares: Tensor) -> Tensor:
    """Squared lengths, at least the relative floor of those of all channels."""
    # The floor is a constant to the gradient, here as in the kernels.
    return positive(squares.maximum(RELATIVE_FLOOR**2 * squares.detach().mean(-1, keepdim=True)))


def squared_norm(x: Vectors) -> Scalars:
    """Squared length of every vector, `(..., 3, C)` → `(..., C)`.

    Shape:
        - x: `(..., 3, C)`
        - out: `(..., C)`

    Invariant to O(D).

    >>> vn.nn.functional.squared_norm(torch.tensor([[3.0], [4.0], [0.0]])).item()
    25.0
    """
    # A sum of squares, not torch.norm: its gradient is finite at zero, and over a middle axis it is far faster.
    return widen(x).square().sum(-2)


def norm(x: Vectors) -> Scalars:
    """Length of every vector (the paper's ElementwiseNorm), with gradient 0 at zero vectors.

    Shape:
        - x: `(..., 3, C)`
        - out: `(..., C)`

    Invariant to O(D).

    >>> vn.nn.functional.norm(torch.tensor([[3.0], [4.0], [0.0]])).item()
    5.0
    """
    return positive(squared_norm(x)).sqrt()
