"""Calls of the fast kernels of scalar layers; see `_dispatch`.

Batch norm and leaky ReLU are monotone in every channel: a maximum of them is that of the linear map before them, or its
minimum where the norm's weight is negative.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import kernels
from ..geometry.neighbors import gather
from ..kernels import frame_ops, max_ops, ops
from ._batch_stats import check_enough, update_running_stats, uses_batch_stats
from ._dispatch import autocast, is_static
from ._factored import BUILD_MAX_CHANNELS
from ._masked import masked_max, masked_mean

COVARIANCE_MIN_RATIO = 4  # of the outputs to the inputs of a map, from which on its statistics come from its input
MATMUL_MIN_ROWS = 128  # for fewer rows, preparing a weight takes the kernels longer than torch's product


def scalar_norm(
    bn: nn.BatchNorm1d, x: Tensor, negative_slope: float, *, with_max: bool = False, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Batch norm and leaky ReLU of `x + bias`, and with `with_max` the maximum over the axis before the channels."""
    rows, batch = x.flatten(0, -2).contiguous(), 0
    if not uses_batch_stats(bn):
        norm = _running_norm(bn, bias)
    else:
        batch = len(rows)
        check_enough(batch)
        mean, variance = torch.ops.vector_neurons.column_moments(rows.detach()).unbind()
        update_running_stats(bn, mean if bias is None else mean + bias.detach(), variance, batch)
        # The norm removes the bias, whose gradient is zero: not None, which optimizers would skip.
        norm = _norm_rows(bn, mean if bias is None else mean + 0 * bias, variance)
    group = x.shape[-2] if with_max else 0
    out, largest = frame_ops.scalar_norm(rows, norm, group=group, negative_slope=negative_slope, batch=batch)
    return out.view(x.shape), _pooled(largest, x.shape) if with_max else largest


def edge_max(bn: nn.BatchNorm1d, x: Tensor, weight: Tensor, neighbors: Tensor, negative_slope: float) -> Tensor:
    """A block on `[x_m - x_n, x_n]` of every edge, and its maximum over the neighbors m: without the edges.

    Batch norm and leaky ReLU are monotone in every channel, so the maximum is that of the projected features, or their
    minimum where the norm's weight is negative. Its gradient goes to the first neighbor that has it.
    """
    wide = x.double() if x.shape[-1] <= BUILD_MAX_CHANNELS else x  # keeps the digits of small differences
    difference, own = weight.to(wide.dtype).tensor_split(2, dim=1)
    projected = ops.project(wide, torch.cat([difference, own - difference]).mT)
    neighbors, batch = neighbors.long().contiguous(), 0
    if not uses_batch_stats(bn):
        found = max_ops.edge_max(projected, neighbors, bn.weight, bn.get_buffer("running_mean").double())
        norm = _running_norm(bn, None)
    else:
        batch = neighbors.numel()
        check_enough(batch)
        found = max_ops.edge_max(projected, neighbors, bn.weight, None)
        mean, variance, _ = found[3].unbind()
        update_running_stats(bn, mean, variance, batch)
        norm = _norm_rows(bn, mean, variance)
    out = max_ops.edge_norm(
        projected, neighbors, found, norm.to(wide.dtype), negative_slope=negative_slope, batch=batch
    )
    return out.to(x.dtype)


def block_max(
    bn: nn.BatchNorm1d, x: Tensor, weight: Tensor, bias: Tensor | None, negative_slope: float
) -> Tensor | None:
    """A block, and its maximum over the points of each cloud: without its output at the points.

    The maximum is that of the linear map, as in `edge_max`: differentiable at the points that have it. The statistics
    of the map are those of its input, `W x̄` and the diagonal of `W cov(x) Wᵀ`. None where that would not be faster.
    """
    if x.ndim != 3 or x.shape[-1] * COVARIANCE_MIN_RATIO > len(weight):
        return None
    x = x.contiguous()
    where = max_ops.product_argmax(x, weight.mT, bn.weight)
    largest = gather(x, where.unsqueeze(-1)).squeeze(2)  # (B, out, in)
    if not uses_batch_stats(bn):
        norm, mapped = _running_norm(bn, bias), (largest * weight).sum(-1)
    else:
        batch = x.shape[0] * x.shape[1]
        check_enough(batch)
        rows, wide = x.flatten(0, 1).double(), weight.double()  # a variance may be a small difference
        mean = rows.sum(0) / batch
        about = mean.detach()
        centered = rows - about  # the variance has no gradient through the mean
        half = centered.detach().mT @ centered / batch  # its gradient is half of the covariance's, which is symmetric
        variance = ((wide @ (2 * half - half.detach())) * wide).sum(-1).clamp(min=0)
        means = wide.detach() @ about
        update_running_stats(bn, means if bias is None else means + bias.detach(), variance.detach(), batch)
        # Rounded about the mean, whose gradient the second term has: its value is zero.
        mapped = ((largest - about.to(x.dtype)) * weight).sum(-1) - weight @ (mean - about).to(x.dtype)
        # The norm removes the bias, as in `scalar_norm`.
        norm = _norm_rows(bn, torch.zeros_like(means) if bias is None else 0 * bias, variance)
    return frame_ops.scalar_norm(mapped, norm, negative_slope=negative_slope)[0]


def max_mean(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum and mean of scalars over the axis before the channels, without padding.

    The kernel's gradient of a maximum goes to the first element that has it.
    """
    if mask is not None or not scalar_fusable(x):
        return masked_max(x, mask), masked_mean(x, [-2], mask).squeeze(-2)
    largest, mean, _ = torch.ops.vector_neurons.max_mean(x.contiguous().view(-1, *x.shape[-2:]))
    return _pooled(largest, x.shape), _pooled(mean, x.shape)


def constant_norm(bn: nn.BatchNorm1d, bias: Tensor | None) -> Tensor | None:
    """The batch norm of `x + bias` as rows for the kernels, where constant: without gradient and batch statistics."""
    return None if torch.is_grad_enabled() or uses_batch_stats(bn) else _running_norm(bn, bias)


def _running_norm(bn: nn.BatchNorm1d, bias: Tensor | None) -> Tensor:
    mean = bn.get_buffer("running_mean")
    return _norm_rows(bn, mean if bias is None else mean - bias, bn.get_buffer("running_var"))


def _norm_rows(bn: nn.BatchNorm1d, mean: Tensor, variance: Tensor) -> Tensor:
    inverse, dtype = 1 / (variance + bn.eps), bn.weight.dtype
    return torch.stack([bn.weight * inverse.sqrt().to(dtype), bn.bias, mean.to(dtype), inverse.to(dtype)])


def _pooled(largest: Tensor, shape: torch.Size) -> Tensor:
    return largest.view(*shape[:-2], largest.shape[-1])


def scalar_block(
    x: Tensor, weight: Tensor, norm: Tensor, negative_slope: float, *, with_max: bool
) -> tuple[Tensor, Tensor]:
    """A linear map and `scalar_norm`, with a constant norm."""
    group = x.shape[-2] if with_max else 0
    inputs = (x.flatten(0, -2).contiguous(), weight.mT, norm, group, negative_slope)
    out, largest = torch.ops.vector_neurons.scalar_block(*inputs)
    return out.view(*x.shape[:-1], -1), _pooled(largest, x.shape) if with_max else largest


def scalar_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """An affine map of scalars."""
    # Large results of the kernel come from its pool of memory, which saves most of the time of narrow maps.
    if x.ndim > 1 and x.dtype == weight.dtype and scalar_fusable(x) and many_rows(x):
        projected = ops.project(x, weight.mT)
        return projected if bias is None else projected.add_(bias)
    return F.linear(x, weight, bias)


def scalar_fusable(x: Tensor) -> bool:
    """Whether the kernels can take these scalars."""
    return x.device.type == "cpu" and x.numel() > 0 and kernels.applicable(x) and not autocast(x)


def many_rows(x: Tensor) -> bool:
    """Whether products of the kernels pay for these scalars; yes for a dynamic number of them."""
    return not is_static(x.numel()) or x.numel() >= MATMUL_MIN_ROWS * x.shape[-1]
