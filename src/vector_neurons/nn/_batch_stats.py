"""Batch norm of rows `(M, C)`: statistics over the rows that exist, of one process or of all."""

import torch
from torch import Tensor, nn

from . import sync
from ._range import RangeError, is_concrete, out_of_range

AnyBatchNorm = nn.BatchNorm1d | nn.SyncBatchNorm


def masked_batch_norm(bn: AnyBatchNorm, rows: Tensor, mask: Tensor | None) -> Tensor:
    """Batch norm of `rows` `(M, C)`, with statistics over the rows where `mask` `(M,)` is True."""
    rows = rows.to(bn.weight.dtype)
    if bn.training and isinstance(bn, nn.SyncBatchNorm):
        return bn(rows) if mask is None else torch.zeros_like(rows).masked_scatter(mask.unsqueeze(-1), bn(rows[mask]))
    if not uses_batch_stats(bn):
        mean, variance = bn.get_buffer("running_mean"), bn.get_buffer("running_var")
    else:
        mean, variance, count = batch_stats(rows, mask, all_processes=bn.training and sync.enabled())
        update_running_stats(bn, mean, variance, count)
    return torch.addcmul(bn.bias, rows - mean, bn.weight * (variance + bn.eps).rsqrt())


def uses_batch_stats(bn: AnyBatchNorm) -> bool:
    """Whether it normalizes by the statistics of the batch, not by the running ones."""
    return bn.training or bn.running_mean is None or bn.running_var is None


def check_enough(elements: int) -> None:
    """Refuse to estimate a variance from a single element."""
    if elements < 2:
        raise ValueError(f"batch norm in training mode needs more than one element per channel, got {elements}")


def batch_stats(
    rows: Tensor, mask: Tensor | None, *, all_processes: bool = False
) -> tuple[Tensor, Tensor, int | Tensor]:
    """Mean and biased variance of each column of `rows` `(M, C)` over the unmasked rows, and their number.

    Two plain sums: torch's batch norm and `var_mean` accumulate row by row, which costs a float64 gradient two digits.
    """
    if not all_processes:
        check_enough(len(rows))
    mean, count = batch_mean(rows, mask, all_processes=all_processes)
    variance, _ = batch_mean((rows - mean).square(), mask, all_processes=all_processes)
    return mean, variance, count


def batch_mean(rows: Tensor, mask: Tensor | None, *, all_processes: bool) -> tuple[Tensor, int | Tensor]:
    """Mean over the unmasked rows, and their number."""
    if mask is None and not all_processes:
        return rows.mean(0), len(rows)
    present = rows.new_ones(len(rows), 1, dtype=torch.bool) if mask is None else mask.unsqueeze(-1)
    sums, count = rows.where(present, 0).sum(0), present.sum()
    if all_processes:
        sums, count = sync.all_reduce_sum(sums), sync.all_reduce_sum(count)
    return sums / count, count


@torch.no_grad()
def update_running_stats(bn: AnyBatchNorm, mean: Tensor, variance: Tensor, count: int | Tensor) -> None:
    """Move the running statistics toward the batch's, as torch's batch norm does in training mode."""
    if not (bn.training and bn.track_running_stats):
        return
    running_mean, running_var = bn.get_buffer("running_mean"), bn.get_buffer("running_var")
    count = count.to(variance.dtype) if isinstance(count, Tensor) else count
    unbiased = variance * (count / (count - 1))
    if is_concrete(unbiased) and unbiased.device.type == "cpu":  # an infinite variance would spoil every evaluation
        largest, dtype = unbiased.amax().item(), running_var.dtype
        if torch.finfo(dtype).max < largest < torch.inf:
            raise RangeError(out_of_range(f"batch norm would learn a variance of {largest:.0e}", dtype))
    batches = bn.get_buffer("num_batches_tracked").add_(1)
    # Without a momentum, the running statistics are the average over all batches.
    momentum = batches.to(mean.dtype).reciprocal() if bn.momentum is None else bn.momentum
    running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    running_var.lerp_(unbiased.to(running_var.dtype), momentum)
