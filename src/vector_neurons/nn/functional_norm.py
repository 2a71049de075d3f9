"""The norms of `functional`: the equations that take statistics over many vectors."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from .._constants import RELATIVE_FLOOR
from ..typing import Mask, Vectors
from ._lengths import norm, positive, squared_norm, widen
from ._masked import masked_mean

ScalarFunction = Callable[[Tensor], Tensor]


def batch_norm(
    x: Vectors,
    normalize: ScalarFunction,
    *,
    typical: ScalarFunction | None = None,
    log: bool = False,
    eps: float = 0.0,
) -> Vectors:
    """VN-BatchNorm, `x N' / N`: an ordinary batch norm of the lengths N, directions are kept.

    A length normalized below zero flips its vector.

    Args:
        x: features `(B, ..., 3, C)`.
        normalize: the batch norm, a function of lengths `(M, C)`.
        typical: gives each channel's typical length from all lengths `(M, C)`, for the relative floor.
        log: the supplement's form `x exp(N') / N` with `N' = normalize(log N)`, which cannot flip.
        eps: added to N as the authors' code does (1e-6).

    Shape:
        - x, out: `(B, ..., 3, C)`

    Equivariant to O(D) and permutations.

    >>> vn.nn.functional.batch_norm(torch.randn(2, 10, 3, 4), torch.nn.BatchNorm1d(4)).shape
    torch.Size([2, 10, 3, 4])
    """
    length = (norm(x) + eps).flatten(0, -2)
    floored = length if typical is None else length.maximum(RELATIVE_FLOOR * typical(length))
    # The logarithm of the floored length: a zero vector must not move the statistics to minus infinity.
    changed = normalize(floored.log()).exp() if log else normalize(length)
    ratio = (widen(changed) / floored).view(*x.shape[:-2], 1, x.shape[-1])
    return (widen(x) * ratio).to(x.dtype)


def layer_norm(
    x: Vectors, weight: Float[Tensor, " channels"] | None = None, *, eps: float = 1e-5, mask: Mask | None = None
) -> Vectors:
    """Normalize the vectors of each element over its channels: mean vector 0, mean squared length 1.

    Args:
        x: features `(..., 3, C)`.
        weight: a scale per channel.
        eps: added to the variance, relative to the mean squared length.
        mask: `(B, N)`, True at points and False at padding.

    Shape:
        - x, out: `(..., 3, C)`

    Equivariant to O(D) and permutations, invariant to scaling.

    >>> vn.nn.functional.layer_norm(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
    """
    return _standardize(x, [-1], weight, eps, mask)


def instance_norm(
    x: Vectors, weight: Float[Tensor, " channels"] | None = None, *, eps: float = 1e-5, mask: Mask | None = None
) -> Vectors:
    """Normalize each channel over the elements of one sample (all axes between batch and vectors).

    Arguments as in `layer_norm`.

    Shape:
        - x, out: `(B, N, ..., 3, C)`

    Equivariant to O(D) and permutations, invariant to scaling.

    >>> vn.nn.functional.instance_norm(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
    """
    if x.ndim < 4:
        raise ValueError(f"instance norm needs elements to normalize over, (B, N, 3, C), got {tuple(x.shape)}")
    return _standardize(x, list(range(1, x.ndim - 2)), weight, eps, mask)


def _standardize(x: Tensor, dims: list[int], weight: Tensor | None, eps: float, mask: Tensor | None) -> Tensor:
    # The mean vector of one sample is equivariant, so it may be subtracted (across a batch it is not). The variance is
    # one scalar: a variance per coordinate would pick out axes.
    wide = widen(x)
    among = None if dims == [-1] else mask  # an element's own channels need no mask
    centered = wide - masked_mean(wide, dims, among)
    variance = masked_mean(squared_norm(centered).unsqueeze(-2), dims, among)
    # Relative to the length before centering: commutes with scaling, and equal vectors give 0, not amplified rounding.
    squares = squared_norm(wide).unsqueeze(-2)
    variance = variance + eps * masked_mean(squares, dims, among)
    # Where vectors cancel and only rounding is left, it stays small beside the rest of the sample.
    sample = masked_mean(squares, list(range(1, x.ndim)), mask)
    result = centered * positive(variance.maximum(RELATIVE_FLOOR**2 * sample)).rsqrt()
    return (result if weight is None else result * weight).to(x.dtype)
