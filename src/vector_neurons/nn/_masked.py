"""Reductions over the points that exist, where clouds of different sizes are padded to one batch.

A `mask` `(B, N)` is True at points and False at padding.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from ..typing import Mask


def mask_like(mask: Mask, ndim: int) -> Tensor:
    """The mask with trailing axes of size 1, up to `ndim`: it then broadcasts over the features of a point."""
    return mask.view(*mask.shape, *[1] * (ndim - 2))


def flat_mask(mask: Mask | None, shape: Sequence[int]) -> Tensor | None:
    """The mask with one entry for each element (also each edge) of `shape`."""
    return None if mask is None else mask_like(mask, len(shape)).expand(shape).flatten()


def masked_max(x: Float[Tensor, "*batch elements channels"], mask: Mask | None) -> Float[Tensor, "*batch channels"]:
    """Maximum of scalars over the axis before the channels, without padding."""
    return (x if mask is None else x.masked_fill(~mask_like(mask, x.ndim), -torch.inf)).amax(dim=-2)


def masked_mean(x: Float[Tensor, "batch *shape"], dims: list[int], mask: Mask | None) -> Float[Tensor, "batch *mean"]:
    """Mean over `dims`, kept with size 1, without padding."""
    if mask is None and x.dtype.itemsize < 4:
        return x.mean(dims, keepdim=True)  # a sum in half precision could overflow
    if mask is None:
        # Not torch's mean, whose gradient is as large as x: that of a sum is a view.
        return x.sum(dims, keepdim=True) / math.prod([x.shape[d] for d in dims])
    present = mask_like(mask, x.ndim)
    total = x.where(present, 0).sum(dims, keepdim=True)
    return total / present.expand_as(x).sum(dims, keepdim=True).to(x.dtype)
