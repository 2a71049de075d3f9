"""Multi-head attention whose scores are inner products of vector features."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..typing import Mask
from ._checks import check_vectors
from ._masked import mask_like
from ._range import in_float64, needs_float64
from .linear import Linear

MAX_SCORABLE = 2.0**10  # the scores of longer vectors are so large that float32 rounds the exponents of the softmax


class QueriesAndKeys(NamedTuple):
    """The features that attend, and those they attend to."""

    x: Tensor
    context: Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Mask | None = None) -> Tensor:
    """Mix values by the softmax of scaled inner products of queries and keys, head by head, `(B, N, ..., C)`.

    The Frobenius inner product of vector features is the ordinary inner product of the flattened ones, so torch's
    attention serves both kinds of neurons. Its scale is `(D C / heads) ** -0.5`. Without any key the result is 0.
    """

    def split(x: Tensor) -> Tensor:  # (B, N, ..., C) → (B, heads, N, ..., C / heads)
        return torch.unflatten(x, -1, (heads, x.shape[-1] // heads)).movedim(-2, 1)

    attn_mask = None
    if mask is not None:
        # Padding may hold anything: a weight of 0 would not remove NaN.
        key, value = (x.where(mask_like(mask, x.ndim), 0) for x in (key, value))
        attn_mask = keys_to_attend(mask)
    q, k, v = split(query), split(key), split(value)
    mixed = nn.functional.scaled_dot_product_attention(q.flatten(3), k.flatten(3), v.flatten(3), attn_mask=attn_mask)
    return mixed.view(q.shape).movedim(1, -2).flatten(-2)


def keys_to_attend(mask: Mask) -> Bool[Tensor, "batch 1 1 keys"]:
    """The mask of the keys for torch's attention; where no key exists all count, which must then be zeros."""
    # Some backends give NaN for a softmax over no keys.
    return (mask | ~mask.any(1, keepdim=True))[:, None, None]


class AttentionBase(nn.Module, ABC):
    """Projections to queries, keys and values, attention, and a projection of the result."""

    linear: ClassVar[type[nn.Module]]

    def __init__(self, channels: int, heads: int = 4, *, context_channels: int | None = None) -> None:
        super().__init__()
        if heads < 1 or channels % heads:
            raise ValueError(f"{channels} channels do not divide among {heads} heads")
        self.channels, self.heads = channels, heads
        self.context_channels = channels if context_channels is None else context_channels
        self.query = self.linear(channels, channels)
        self.key, self.value = (self.linear(self.context_channels, channels) for _ in range(2))
        self.out = self.linear(channels, channels)

    def forward(
        self,
        x: Float[Tensor, "batch points *feature"],
        context: Float[Tensor, "batch keys *context"] | None = None,
        mask: Bool[Tensor, "batch keys"] | None = None,
    ) -> Float[Tensor, "batch points *feature"]:
        self.check(x, self.channels)
        if context is None and self.context_channels != self.channels:
            raise ValueError(f"attention to a context of {self.context_channels} channels: pass context")
        context = x if context is None else context
        self.check(context, self.context_channels)
        if (context.shape[0], *context.shape[2:-1]) != (x.shape[0], *x.shape[2:-1]):
            raise ValueError(
                f"x and context differ in batch or dimension, got {tuple(x.shape)} and {tuple(context.shape)}"
            )
        if mask is not None and mask.shape != context.shape[:2]:
            raise ValueError(f"the mask marks keys {tuple(context.shape[:2])}, got {tuple(mask.shape)}")
        inputs = QueriesAndKeys(x, context)
        if needs_float64(x, MAX_SCORABLE) or needs_float64(context, MAX_SCORABLE):
            return in_float64(self.mix_exactly, inputs, mask)
        return self.mix(inputs, mask)

    def mix(self, inputs: QueriesAndKeys, mask: Mask | None) -> Tensor:
        """Project, attend, project."""
        x, context = inputs
        value = self.value(context)  # first, for the order in which gradients add up: trained runs stay reproducible
        return self.out(attend(self.query(x), self.key(context), value, self.heads, mask))

    def mix_exactly(self, inputs: QueriesAndKeys, mask: Mask | None) -> Tensor:
        """The same with stored weights: fused attention computes them again, and large scores overflow by rounding."""
        with sdpa_kernel(SDPBackend.MATH):
            return self.mix(inputs, mask)

    @abstractmethod
    def check(self, x: Tensor, channels: int) -> None:
        """Refuse features of another shape."""

    def extra_repr(self) -> str:
        context = "" if self.context_channels == self.channels else f", context_channels={self.context_channels}"
        return f"{self.channels}, heads={self.heads}{context}"


class Attention(AttentionBase):
    """Multi-head attention among the elements of a sample, or from them to those of a context (cross-attention).

    `out_n = W_O [Σ_m a_nm W_V V_m]` with `a_nm = softmax_m(⟨W_Q V_n, W_K V_m⟩ / sqrt(3 C / heads))` in every head. The
    score is the Frobenius inner product of two lists of vectors, which rotations do not change (VN-Transformer, Assaad
    et al., 2022). Where the mask excludes all keys, the output is zero.

    Args:
        channels: vectors in and out, a multiple of `heads`.
        heads: parts of the channels, each with weights of its own.
        context_channels: vectors of the context, if not as many as `channels`.

    Shape:
        - x, out: `(B, N, 3, channels)`
        - context: `(B, M, 3, context_channels)`, by default x itself
        - mask: `(B, M)`, True at keys (elements of the context) and False at padding, optional

    Equivariant to O(D), if x and context rotate together, and to permutations of x; invariant to permutations of the
    context. Not equivariant to scaling: longer vectors give a sharper softmax.

    >>> x, context = torch.randn(2, 10, 3, 8), torch.randn(2, 5, 3, 6)
    >>> vn.Attention(8, heads=2)(x).shape
    torch.Size([2, 10, 3, 8])
    >>> vn.Attention(8, heads=2, context_channels=6)(x, context).shape
    torch.Size([2, 10, 3, 8])
    """

    linear = Linear

    def check(self, x: Tensor, channels: int) -> None:
        check_vectors(self, x, channels, rank=4)
        if x.ndim > 4:
            raise ValueError(f"Attention takes vectors (B, N, 3, {channels}), got {tuple(x.shape)}: flatten the axes")
