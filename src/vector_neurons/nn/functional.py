"""The paper's equations, one function each, on vector features `(..., dim, channels)`.

Letters as in the paper: `q` a feature, `k` its direction. All functions work at every rank and, but for cross products,
in every dimension. Sums of squares and divisions are carried out in float32 at least, also under autocast. Where
squares would overflow, layers call these functions in float64 (`nn._range`).

Divisions by a length have no additive eps, which would suit one scale only. Instead there is a relative floor: a vector
shorter than a thousandth of a typical length counts as that long, since its direction is mostly rounding, which bounds
errors and gradients. The typical length is the RMS length over channels (directions), the channel's mean length (batch
norm), the RMS length of the sample (layer and instance norm). Longer vectors follow the equation exactly, equations
commute with scaling, and zero vectors give zero.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from .._constants import RELATIVE_FLOOR
from ..geometry.neighbors import tie_tolerance
from ..typing import Directions, Frames, Mask, Vectors
from ._lengths import floored, norm, positive, squared_norm, widen
from ._masked import masked_mean
from .functional_norm import ScalarFunction, batch_norm, instance_norm, layer_norm


def linear(x: Vectors, weight: Float[Tensor, "*elements out channels"]) -> Float[Tensor, "... dim out"]:
    """VN-Linear, `V' = W V`: mixes channels, never coordinates, so it commutes with every linear map of space.

    Args:
        x: `(..., 3, in)`.
        weight: `(out, in)`, or `(elements, out, in)` with one matrix per element of the axis before the vectors (the
            un-shared form).

    Shape:
        - x: `(..., 3, in)`
        - out: `(..., 3, out)`

    Equivariant to O(D), permutations and scaling.

    >>> vn.nn.functional.linear(torch.randn(10, 3, 4), torch.randn(8, 4)).shape
    torch.Size([10, 3, 8])
    """
    return F.linear(x, weight) if weight.ndim == 2 else x @ weight.mT


def relu(q: Vectors, k: Directions) -> Vectors:
    """VN-ReLU: `q` where `⟨q, k⟩ ≥ 0`, else `q - ⟨q, k/‖k‖⟩ k/‖k‖`, its part in the plane orthogonal to `k`.

    Shape:
        - q, out: `(..., 3, C)`
        - k: `(..., 3, C)` or `(..., 3, 1)`

    Equivariant to O(D), permutations and scaling.

    >>> q, k = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    >>> vn.nn.functional.relu(q, k).flatten().tolist()
    [1.0, 0.0, 0.0]
    """
    return leaky_relu(q, k, 0.0)


def leaky_relu(q: Vectors, k: Directions, negative_slope: float = 0.2, *, eps: float | None = None) -> Vectors:
    """VN-LeakyReLU, `s q + (1 - s) relu(q, k)`: the part of `q` against `k` is multiplied by the slope `s`.

    Args:
        q: features `(..., 3, C)`.
        k: directions, `(..., 3, C)` or one for all channels, `(..., 3, 1)`.
        negative_slope: `s`.
        eps: added to `‖k‖²` as the authors' code does (1e-6), in place of the relative floor.

    Shape:
        - q, out: `(..., 3, C)`
        - k: `(..., 3, C)` or `(..., 3, 1)`

    Equivariant to O(D), permutations and scaling.

    >>> q, k = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    >>> vn.nn.functional.leaky_relu(q, k, 0.5).flatten().tolist()
    [1.0, -1.0, 0.0]
    """
    wide, k = widen(q), widen(k)
    against = (wide * k).sum(-2, keepdim=True).clamp_max(0)
    squares = squared_norm(k)
    squares = floored(squares) if eps is None else squares + eps
    return torch.addcmul(wide, (negative_slope - 1) * against / squares.unsqueeze(-2), k).to(q.dtype)


def activation(q: Vectors, k: Directions, h: ScalarFunction, *, signed: bool = True) -> Vectors:
    """Apply any scalar function `h` to the part of `q` along `k`, leaving the part across `k` as it is.

    Args:
        q: features `(..., 3, C)`.
        k: directions, `(..., 3, C)` or one for all channels, `(..., 3, 1)`.
        h: acts on the signed coordinate `p = ⟨q, k/‖k‖⟩`, so that `h = relu` is VN-ReLU.
        signed: False is the supplement's form `h(‖q∥‖) q∥ / ‖q∥‖`, where `h` gets lengths only and ReLU does nothing.

    Shape:
        - q, out: `(..., 3, C)`
        - k: `(..., 3, C)` or `(..., 3, 1)`

    Equivariant to O(D) and permutations.

    >>> q, k = torch.tensor([[1.0], [-2.0], [0.0]]), torch.tensor([[0.0], [1.0], [0.0]])
    >>> vn.nn.functional.activation(q, k, torch.abs).flatten().tolist()
    [1.0, 2.0, 0.0]
    """
    wide, k = widen(q), widen(k)
    unit = k * floored(squared_norm(k)).rsqrt().unsqueeze(-2)
    p = (wide * unit).sum(-2, keepdim=True)
    changed = h(p) if signed else p.sign() * h(p.abs())
    return torch.addcmul(wide, changed - p, unit).to(q.dtype)


def mean_pool(x: Float[Tensor, "... elements dim channels"], mask: Mask | None = None) -> Vectors:
    """Mean over the axis before the vectors: the points of a cloud, or the neighbors of a point.

    Shape:
        - x: `(B, ..., N, 3, C)`
        - out: `(B, ..., 3, C)`

    Equivariant to O(D) and scaling, invariant to permutations.

    >>> vn.nn.functional.mean_pool(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 3, 4])
    """
    return masked_mean(x, [-3], mask).squeeze(-3)


def max_pool(x: Float[Tensor, "... elements dim channels"], k: Directions, mask: Mask | None = None) -> Vectors:
    """VN-Max: in each channel, the vector of the element n with the largest `⟨k_n, x_n⟩`.

    Products equal to within rounding are ties, and the first element wins, as in `knn`.

    Args:
        x: features `(B, ..., N, 3, C)`.
        k: their directions, of the same shape.
        mask: `(B, N)`, True at points and False at padding.

    Shape:
        - x, k: `(B, ..., N, 3, C)`
        - out: `(B, ..., 3, C)`

    Equivariant to O(D) and scaling, invariant to permutations.

    >>> x = torch.randn(2, 10, 3, 4)
    >>> vn.nn.functional.max_pool(x, x).shape
    torch.Size([2, 3, 4])
    """
    if mask is not None:
        k = k.where(mask[..., None, None], 0)
    product = (widen(x) * widen(k)).sum(-2, keepdim=True)
    lengths = (squared_norm(x) * squared_norm(k)).sqrt().unsqueeze(-2)
    tolerance = tie_tolerance(product.dtype) * lengths.amax(-3, keepdim=True)
    # NaN wins, as in torch's own maximum: it must not be hidden.
    if mask is not None:
        product = product.masked_fill(~mask[..., None, None], -torch.inf)
    good = (product >= product.amax(-3, keepdim=True) - tolerance) | product.isnan()
    best = good.int().argmax(dim=-3, keepdim=True)
    return x.gather(-3, best.expand(*x.shape[:-3], 1, *x.shape[-2:])).squeeze(-3)


def invariant_product(x: Vectors, frame: Frames) -> Float[Tensor, "... vectors channels"]:
    """`V Tᵀ`: all inner products of two sets of vectors that rotate together, invariant to O(D).

    Args:
        x: features `(..., 3, C)`.
        frame: the other vectors `(..., 3, F)`.

    Shape:
        - x: `(..., 3, C)`, frame: `(..., 3, F)`
        - out: `(..., F, C)`

    Invariant to O(D).

    >>> vn.nn.functional.invariant_product(torch.randn(10, 3, 4), torch.randn(10, 3, 2)).shape
    torch.Size([10, 2, 4])
    """
    return frame.mT @ x


def project_onto_frame(x: Vectors, frame: Frames) -> Float[Tensor, "... invariants"]:
    """VN-In: the coordinates of every vector in the frame `(..., 3, 3)`, `3 C` scalars, frame vector by frame vector.

    Shape:
        - x: `(..., 3, C)`, frame: `(..., 3, 3)`
        - out: `(..., 3 C)`

    Invariant to O(D).

    >>> vn.nn.functional.project_onto_frame(torch.randn(10, 3, 4), torch.randn(10, 3, 3)).shape
    torch.Size([10, 12])
    """
    return invariant_product(x, frame).flatten(-2)


def soft_unit(x: Vectors, *, floor: float, mask: Mask | None = None) -> Vectors:
    """Vectors of about unit length, `x / sqrt(‖x‖² + floor² L²)` with the RMS length L of the sample.

    A vector much shorter than `floor` of the others is shortened, not normalized: its direction would be rounding.

    Args:
        x: features.
        floor: relative length at which a vector is shortened to 0.7.
        mask: `(B, N)`, True at points and False at padding.

    Shape:
        - x, out: `(B, ..., 3, C)`

    Equivariant to O(D) and permutations, invariant to scaling.

    >>> x = torch.tensor([[[3.0, 0.0], [4.0, 0.0], [0.0, 0.0]]])
    >>> vn.nn.functional.norm(vn.nn.functional.soft_unit(x, floor=1e-3)).round(decimals=3).tolist()
    [[1.0, 0.0]]
    """
    wide = widen(x)
    squares = squared_norm(wide).unsqueeze(-2)
    typical = masked_mean(squares, list(range(1, x.ndim)), mask)
    return (wide * positive(squares + floor**2 * typical).rsqrt()).to(x.dtype)


def orthonormal_frame(x: Float[Tensor, "... dim 2"], *, eps: float = 0.0) -> Float[Tensor, "... 3 3"]:
    """Right-handed orthonormal frame from two vectors, by Gram-Schmidt and their cross product (SO(3), not O(3)).

    For parallel vectors the frame is undefined: the second and third vector then shrink to zero instead of taking the
    direction of rounding.

    Args:
        x: two vectors `(..., 3, 2)`.
        eps: added to both lengths as the authors' code does (1e-6).

    Shape:
        - x: `(..., 3, 2)`
        - out: `(..., 3, 3)`, three vectors as columns

    Equivariant to SO(3), not to reflections.

    >>> vn.nn.functional.orthonormal_frame(torch.eye(3)[:, :2]).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    if x.shape[-2] != 3:
        raise ValueError(f"orthonormal frames use a cross product, which is 3-D only, got {tuple(x.shape)}")
    first, second = widen(x).unbind(-1)
    size = norm(second.unsqueeze(-1))
    first = first / (norm(first.unsqueeze(-1)) + eps)
    second = second - (first * second).sum(-1, keepdim=True) * first
    floor = torch.finfo(second.dtype).eps ** 0.5
    second = second / (norm(second.unsqueeze(-1)).maximum(floor * size) + eps)
    return torch.stack([first, second, torch.linalg.cross(first, second, dim=-1)], dim=-1).to(x.dtype)


__all__ = [
    "RELATIVE_FLOOR",
    "activation",
    "batch_norm",
    "instance_norm",
    "invariant_product",
    "layer_norm",
    "leaky_relu",
    "linear",
    "max_pool",
    "mean_pool",
    "norm",
    "orthonormal_frame",
    "project_onto_frame",
    "relu",
    "soft_unit",
    "squared_norm",
]
