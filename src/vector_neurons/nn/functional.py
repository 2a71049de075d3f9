"""The paper's equations, one function each, on vector features `(..., dim, channels)`.

Letters as in the paper: `q` a feature, `k` its direction. All functions work at every rank and, but for cross products,
in every dimension. Sums of squares and divisions are carried out in float32 at least, also under autocast. Where
squares would leave its range, layers call these functions in float64 (see `extremes`).

Divisions by a length have no additive eps, which would be right at one scale only. Instead, a vector shorter than a
thousandth of what is usual counts as that long: its direction is mostly rounding, and the bound keeps errors and
gradients in check. Usual is the RMS length of the list it stands in (directions), the channel's typical length (batch
norm), the RMS length of the sample (layer and instance norm). Everything longer follows the equation exactly, equations
commute with scaling, and zero vectors give zero.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from .._constants import RELATIVE_FLOOR as RELATIVE_FLOOR
from ..geometry.neighbours import tie_tolerance
from ..typing import Directions, Frames, Mask, Scalars, Vectors

Scalar = Callable[[Tensor], Tensor]


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _positive(squares: Tensor) -> Tensor:
    # Keeps square roots differentiable at zero and divisions finite; the square of the inverse is still finite, too.
    return squares.clamp_min(torch.finfo(squares.dtype).tiny ** 0.5)


def _bounded(squares: Tensor) -> Tensor:
    # The bound is a constant to the gradient, here as in the kernels.
    return _positive(squares.maximum(RELATIVE_FLOOR**2 * squares.detach().mean(-1, keepdim=True)))


def squared_norm(x: Vectors) -> Scalars:
    """Squared length of every vector."""
    # A sum of squares, not torch.norm: its gradient is finite at zero, and over a middle axis it is far faster.
    return _wide(x).square().sum(-2)


def norm(x: Vectors) -> Scalars:
    """Length of every vector (ElementwiseNorm), with gradient 0 at zero vectors."""
    return _positive(squared_norm(x)).sqrt()


def linear(x: Vectors, weight: Float[Tensor, "*elements out channels"]) -> Float[Tensor, "... dim out"]:
    """VN-Linear, `V' = W V`: mixes channels, never coordinates, so it commutes with every linear map of space.

    A weight `(elements, out, in)` holds one matrix for each element of the axis before the vectors (un-shared form).
    """
    return F.linear(x, weight) if weight.ndim == 2 else x @ weight.mT


def relu(q: Vectors, k: Directions) -> Vectors:
    """VN-ReLU: `q` where it points along `k`, else `q - ⟨q, k/‖k‖⟩ k/‖k‖`, its part in the plane across `k`."""
    return leaky_relu(q, k, slope=0.0)


def leaky_relu(q: Vectors, k: Directions, slope: float = 0.2, *, eps: float | None = None) -> Vectors:
    """VN-LeakyReLU, `slope · q + (1 - slope) · relu(q, k)`: the part of `q` against `k` shrinks to `slope` of it.

    `k` has as many channels as `q`, or one for all. A number as `eps` is added to ‖k‖² as the authors' code does
    (1e-6), in place of the relative bound.
    """
    wide, k = _wide(q), _wide(k)
    against = (wide * k).sum(-2, keepdim=True).clamp_max(0)
    squares = squared_norm(k)
    squares = _bounded(squares) if eps is None else squares + eps
    return torch.addcmul(wide, (slope - 1) * against / squares.unsqueeze(-2), k).to(q.dtype)


def activation(q: Vectors, k: Directions, h: Scalar, *, signed: bool = True) -> Vectors:
    """Apply any scalar function `h` to the part of `q` along `k`, leaving the part across `k` as it is.

    `h` acts on the signed coordinate `p = ⟨q, k/‖k‖⟩`, so that `h = relu` is VN-ReLU. The supplement writes
    `h(‖q∥‖) q∥ / ‖q∥‖`, which shows `h` only lengths, where ReLU does nothing: that form is `signed=False`.
    """
    wide, k = _wide(q), _wide(k)
    unit = k * _bounded(squared_norm(k)).rsqrt().unsqueeze(-2)
    p = (wide * unit).sum(-2, keepdim=True)
    image = h(p) if signed else p.sign() * h(p.abs())
    return torch.addcmul(wide, image - p, unit).to(q.dtype)


def mask_like(mask: Mask, ndim: int) -> Tensor:
    """The mask of points with further axes of size 1, up to `ndim`: it then broadcasts over all that a point has."""
    return mask.view(*mask.shape, *[1] * (ndim - 2))


def masked_max(x: Float[Tensor, "*batch elements channels"], mask: Mask | None) -> Float[Tensor, "*batch channels"]:
    """Maximum of scalars over the axis before the channels; where `mask` is False nothing counts."""
    return (x if mask is None else x.masked_fill(~mask_like(mask, x.ndim), -torch.inf)).amax(dim=-2)


def masked_mean(x: Float[Tensor, "batch *shape"], dims: list[int], mask: Mask | None) -> Float[Tensor, "batch *mean"]:
    """Mean over `dims`, kept with size 1, of what exists: where `mask` is False nothing counts."""
    if mask is None and x.dtype.itemsize < 4:
        return x.mean(dims, keepdim=True)  # a sum in half precision could leave the range of the numbers
    if mask is None:
        # Not torch's mean, whose gradient is as large as x: that of a sum is a view.
        return x.sum(dims, keepdim=True) / math.prod([x.shape[d] for d in dims])
    present = mask_like(mask, x.ndim)
    total = x.where(present, 0).sum(dims, keepdim=True)
    return total / present.expand_as(x).sum(dims, keepdim=True).to(x.dtype)


def mean_pool(x: Float[Tensor, "... elements dim channels"], mask: Mask | None = None) -> Vectors:
    """Mean over the axis before the vectors: points of a cloud, or neighbours of a point."""
    return masked_mean(x, [-3], mask).squeeze(-3)


def max_pool(x: Float[Tensor, "... elements dim channels"], k: Directions, mask: Mask | None = None) -> Vectors:
    """VN-Max: in each channel, the vector of the element that agrees most with its own direction, `max ⟨k_n, x_n⟩`.

    As with neighbours, agreements equal to within rounding are ties, and the first element wins.
    """
    if mask is not None:
        k = k.where(mask[..., None, None], 0)
    agreement = (_wide(x) * _wide(k)).sum(-2, keepdim=True)
    sizes = (squared_norm(x) * squared_norm(k)).sqrt().unsqueeze(-2)
    tolerance = tie_tolerance(agreement.dtype) * sizes.amax(-3, keepdim=True)
    # NaN is chosen too, as by torch's own maximum: it must not be hidden.
    if mask is not None:
        agreement = agreement.masked_fill(~mask[..., None, None], -torch.inf)
    good = (agreement >= agreement.amax(-3, keepdim=True) - tolerance) | agreement.isnan()
    best = good.int().argmax(dim=-3, keepdim=True)
    return x.gather(-3, best.expand(*x.shape[:-3], 1, *x.shape[-2:])).squeeze(-3)


def batch_norm(
    x: Vectors,
    normalise: Scalar,
    *,
    typical: Scalar | None = None,
    log: bool = False,
    eps: float = 0.0,
) -> Vectors:
    """VN-BatchNorm: `normalise` (an ordinary batch norm on `(M, C)`) acts on lengths, directions stay: `x N' / N`.

    A length normalised below zero flips its vector. `log=True` is the supplement's form, `x exp(N') / N` with
    `N' = normalise(log N)`, which cannot flip. `typical` tells each channel's typical length from all lengths `(M, C)`:
    vectors below a thousandth of it count as that long. `eps` is added to N as the authors' code does.
    """
    length = (norm(x) + eps).flatten(0, -2)
    bounded = length if typical is None else length.maximum(RELATIVE_FLOOR * typical(length))
    # Logarithms see the bounded length: a zero vector must not drag the statistics to minus infinity.
    changed = normalise(bounded.log()).exp() if log else normalise(length)
    ratio = (_wide(changed) / bounded).view(*x.shape[:-2], 1, x.shape[-1])
    return (_wide(x) * ratio).to(x.dtype)


def layer_norm(
    x: Vectors, weight: Float[Tensor, " channels"] | None = None, *, eps: float = 1e-5, mask: Mask | None = None
) -> Vectors:
    """Normalise the channel vectors of each element: mean vector 0, mean squared length 1."""
    return _standardise(x, [-1], weight, eps, mask)


def instance_norm(
    x: Vectors, weight: Float[Tensor, " channels"] | None = None, *, eps: float = 1e-5, mask: Mask | None = None
) -> Vectors:
    """Normalise each channel over the elements of one sample (all axes between batch and vectors)."""
    if x.ndim < 4:
        raise ValueError(f"instance norm needs elements to normalise over, (B, N, 3, C), got {tuple(x.shape)}")
    return _standardise(x, list(range(1, x.ndim - 2)), weight, eps, mask)


def _standardise(x: Tensor, dims: list[int], weight: Tensor | None, eps: float, mask: Tensor | None) -> Tensor:
    # The mean of vectors of one sample turns with the sample, so subtracting it is allowed (across a batch it is not);
    # so does their spread, one number: a spread for each coordinate would pick out axes.
    wide = _wide(x)
    among = None if dims == [-1] else mask  # what an element's own channels are needs no mask
    centred = wide - masked_mean(wide, dims, among)
    spread = masked_mean(squared_norm(centred).unsqueeze(-2), dims, among)
    # Relative to the size before centring: commutes with scaling, and equal vectors give 0, not amplified rounding.
    squares = squared_norm(wide).unsqueeze(-2)
    spread = spread + eps * masked_mean(squares, dims, among)
    # A list that is all rounding, where neighbours cancel, stays small beside the rest of its sample.
    sample = masked_mean(squares, list(range(1, x.ndim)), mask)
    result = centred * _positive(spread.maximum(RELATIVE_FLOOR**2 * sample)).rsqrt()
    return (result if weight is None else result * weight).to(x.dtype)


def invariant_product(x: Vectors, frame: Frames) -> Float[Tensor, "... vectors channels"]:
    """`V Tᵀ`, all inner products of two lists of vectors that turn together: unchanged by rotation and reflection."""
    return frame.mT @ x


def read_in_frame(x: Vectors, frame: Frames) -> Float[Tensor, "... invariants"]:
    """VN-In: every vector in the coordinates of the frame `(..., 3, 3)`: `3 C` scalars, frame vector by vector."""
    return invariant_product(x, frame).flatten(-2)


def orthonormal_frame(x: Float[Tensor, "... dim 2"], *, eps: float = 0.0) -> Float[Tensor, "... 3 3"]:
    """Right-handed orthonormal frame from two vectors, by Gram-Schmidt and their cross product (SO(3), not O(3)).

    Where the two are parallel there is no frame: the second and third vector then shrink to zero, instead of
    pointing where rounding points. `eps` is added to both lengths as the authors' code does.
    """
    if x.shape[-2] != 3:
        raise ValueError(f"orthonormal frames use a cross product, which is 3-D only, got {tuple(x.shape)}")
    first, second = _wide(x).unbind(-1)
    size = norm(second.unsqueeze(-1))
    first = first / (norm(first.unsqueeze(-1)) + eps)
    second = second - (first * second).sum(-1, keepdim=True) * first
    floor = torch.finfo(second.dtype).eps ** 0.5
    second = second / (norm(second.unsqueeze(-1)).maximum(floor * size) + eps)
    return torch.stack([first, second, torch.linalg.cross(first, second, dim=-1)], dim=-1).to(x.dtype)
