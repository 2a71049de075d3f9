"""Features of both kinds: scalars beside vectors."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..geometry.neighbors import gather


class Features(NamedTuple):
    """Features of both kinds: scalars, which no rotation changes, beside vectors, which rotate with the input.

    Args:
        scalars: `(..., S)`.
        vectors: `(..., 3, C)`.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> x.map(lambda y: y[:, :5]).vectors.shape
    torch.Size([2, 5, 3, 4])
    """

    scalars: Float[Tensor, "... scalars"]
    vectors: Float[Tensor, "... 3 channels"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Features":
        """Apply a function to both, such as indexing the leading axes or moving to a device."""
        return Features(function(self.scalars), function(self.vectors))

    def gather(self, index: Tensor) -> "Features":
        """The features of the points `index`, `(B, M)` or `(B, M, K)`."""
        if index.ndim == 2:
            return self.map(lambda x: gather(x, index.unsqueeze(-1)).squeeze(2))
        return self.map(lambda x: gather(x, index))

    @staticmethod
    def cat(features: "Sequence[Features]") -> "Features":
        """Concatenate the channels of several features of the same elements."""
        return Features(*(torch.cat(kind, dim=-1) for kind in zip(*features, strict=True)))
