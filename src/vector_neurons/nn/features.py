"""Features of both kinds, scalars beside vectors, and their numbers of channels."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.neighbors import gather
from ..typing import Mask
from ._masked import mask_like


class Channels(NamedTuple):
    """Numbers of channels of features of both kinds: they add up and multiply kind by kind.

    Args:
        scalars: number of scalars.
        vectors: number of vectors.

    >>> 2 * vn.nn.hybrid.Channels(8, 4) + vn.nn.hybrid.Channels(1, 0)
    Channels(scalars=17, vectors=8)
    >>> sum([vn.nn.hybrid.Channels(8, 4), vn.nn.hybrid.Channels(6, 2)]).floats
    32
    """

    scalars: int
    vectors: int

    @property
    def floats(self) -> int:
        """Numbers per element: one of each scalar, three of each vector."""
        return self.scalars + 3 * self.vectors

    def __add__(self, other: "Channels") -> "Channels":  # type: ignore[override]
        return Channels(self.scalars + other.scalars, self.vectors + other.vectors)

    def __radd__(self, zero: int) -> "Channels":
        return self if zero == 0 else NotImplemented  # the start of a sum

    def __mul__(self, factor: int) -> "Channels":  # type: ignore[override]
        return Channels(self.scalars * factor, self.vectors * factor)

    def __rmul__(self, factor: int) -> "Channels":  # type: ignore[override]
        return self * factor


AnyChannels = int | tuple[int, int]  # of one kind, or of both


class Features(NamedTuple):
    """Features of both kinds: scalars, which no rotation changes, beside vectors, which rotate with the input.

    Sums are kind by kind, for residual connections.

    Args:
        scalars: `(..., S)`.
        vectors: `(..., 3, C)`.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> (x + x).map(lambda y: y[:, :5]).vectors.shape
    torch.Size([2, 5, 3, 4])
    """

    scalars: Float[Tensor, "... scalars"]
    vectors: Float[Tensor, "... 3 channels"]

    def __add__(self, other: "Features") -> "Features":  # type: ignore[override]
        return Features(self.scalars + other.scalars, self.vectors + other.vectors)

    @property
    def channels(self) -> Channels:
        """Numbers of scalars and of vectors."""
        return Channels(self.scalars.shape[-1], self.vectors.shape[-1])

    def map(self, function: Callable[[Tensor], Tensor]) -> "Features":
        """Apply a function to both, such as indexing the leading axes or moving to a device."""
        return Features(function(self.scalars), function(self.vectors))

    def gather(self, index: Tensor) -> "Features":
        """The features of the points `index`, `(B, M)` or `(B, M, K)`."""
        if index.ndim == 2:
            return self.map(lambda x: gather(x, index.unsqueeze(-1)).squeeze(2))
        return self.map(lambda x: gather(x, index))

    def to(self, *arguments: Any, **options: Any) -> "Features":
        """Move or convert both, with the arguments of `Tensor.to`."""
        return self.map(lambda x: x.to(*arguments, **options))

    def masked(self, mask: Mask) -> "Features":
        """The same with zeros where `mask` `(B, N)` is False: at padding."""
        return self.map(lambda x: x.where(mask_like(mask, x.ndim), 0))

    def flat(self) -> Tensor:
        """Scalars and coordinates of vectors in one Euclidean space `(..., S + 3 C)`, whose distances are invariant."""
        return torch.cat([self.scalars, self.vectors.flatten(-2)], dim=-1)

    @staticmethod
    def cat(features: "Sequence[Features]") -> "Features":
        """Concatenate the channels of several features of the same elements."""
        return Features(*(torch.cat(kind, dim=-1) for kind in zip(*features, strict=True)))


def cat(features: Sequence[Any]) -> Any:
    """Concatenate the channels of tensors, or of features of both kinds."""
    return Features.cat(features) if isinstance(features[0], Features) else torch.cat(list(features), dim=-1)


def cat_overall(x: Any, overall: Any) -> Any:
    """Concatenate the features `(B, ...)` of a cloud to those of each of its points, `(B, N, ...)`."""
    if isinstance(x, Features):
        return Features(*map(cat_overall, x, overall))
    return torch.cat([x, overall.unsqueeze(1).expand_as(x)], dim=-1)
