"""Norms of scalar features."""

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from ..typing import Mask, Norm, Scalars
from . import _dispatch_scalar, sync
from ._batch_stats import masked_batch_norm
from ._checks import check_scalars, hooked
from ._masked import flat_mask, masked_mean
from .norm import NoNorm


class BatchNorm(nn.Module):
    """Batch norm over every axis but the channels, at any rank.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.BatchNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(
        self,
        channels: int,
        *,
        mode: Literal["norm", "log"] = "norm",
        momentum: float | None = 0.1,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, momentum=momentum)

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, self.bn.num_features, rank=2)
        if fusable_norm(self, x, mask):
            return _dispatch_scalar.scalar_norm(self.bn, x, negative_slope=1.0)[0]
        normalized = masked_batch_norm(self.bn, x.flatten(0, -2), flat_mask(mask, x.shape[:-1]))
        return normalized.view_as(x).to(x.dtype)


def fusable_norm(norm: nn.Module, x: Tensor, mask: Mask | None) -> TypeGuard[BatchNorm]:
    """Whether kernels can compute this batch norm, without calling it."""
    if type(norm) is not BatchNorm or type(norm.bn) is not nn.BatchNorm1d or hooked(norm.bn):
        return False
    plain = mask is None and x.dtype == norm.bn.weight.dtype and x.ndim >= 2 and not sync.enabled()
    return plain and _dispatch_scalar.scalar_fusable(x)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels of each element.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.LayerNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        return super().forward(x)


class InstanceNorm(nn.Module):
    """Each sample's channels get mean 0 and variance 1 over the elements (all axes between batch and channels).

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.InstanceNorm(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Scalars, mask: Mask | None = None) -> Scalars:
        check_scalars(self, x, len(self.weight), rank=3)
        elements = list(range(1, x.ndim - 1))
        centered = x - masked_mean(x, elements, mask)
        variance = masked_mean(centered.square(), elements, mask)
        return centered * (variance + self.eps).rsqrt() * self.weight + self.bias


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": NoNorm,
}
