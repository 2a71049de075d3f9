"""Norms of vector features."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..typing import Mask, Norm, Vectors
from . import _dispatch, sync
from . import functional as VF
from ._batch_stats import batch_mean, check_enough, masked_batch_norm, update_running_stats, uses_batch_stats
from ._checks import check_vectors
from ._factored import ConcatGlobal, ConcatMean
from ._masked import flat_mask
from ._range import in_float64, needs_float64

INITIAL_SPREAD = 0.4  # of lengths about 1; torch's start, spread 1 about 0, would flip half of all vectors

LayerInput = Tensor | ConcatMean | ConcatGlobal


class NoNorm(nn.Module):
    """The norm `"none"`: the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: LayerInput, mask: Mask | None = None) -> LayerInput:
        return x


class BatchNorm(nn.Module):
    """VN-BatchNorm: batch norm of the lengths of vectors, which keep their direction (paper, section 3.4).

    `bn` is torch's own `BatchNorm1d`, held and not subclassed: running statistics,
    `SyncBatchNorm.convert_sync_batchnorm` and checkpoints work as usual. It starts with lengths of spread 0.4 about 1,
    and so do the running statistics: untrained, in evaluation mode, vectors of ordinary length are kept.

    Args:
        channels: vectors in and out.
        mode: `"norm"` normalizes lengths; `"log"` their logarithms, so that no vector is flipped (supplement).
        momentum: of the running statistics, as in torch.
        eps: the authors' absolute eps (1e-6), added to every length in place of the relative floor on short ones.

    Shape:
        - x, out: `(B, ..., 3, channels)`; statistics are over all axes but the last two
        - mask: `(B, N)`, True at points and False at padding, optional

    Equivariant to O(D) and permutations, not to scaling: the statistics have a scale.

    >>> vn.BatchNorm(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
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
        if mode not in ("norm", "log"):
            raise ValueError(f'unknown batch norm mode {mode!r}: choose "norm" or "log"')
        self.mode, self.eps = mode, eps
        self.bn = nn.BatchNorm1d(channels, momentum=momentum)
        center = 1.0 if mode == "norm" else 0.0
        nn.init.constant_(self.bn.weight, INITIAL_SPREAD)
        nn.init.constant_(self.bn.bias, center)
        self.bn.get_buffer("running_var").fill_(INITIAL_SPREAD**2 - self.bn.eps)
        self.bn.get_buffer("running_mean").fill_(center)

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, self.bn.num_features, rank=3)
        if needs_float64(x):
            return in_float64(self.forward, x, mask)
        if self.fusable(mask) and _dispatch.fusable(x):
            features = _dispatch.unprojected(x)
            return features.norm_leaky_relu(self.length_affine(features), negative_slope=1.0, eps=self.eps)
        rows = flat_mask(mask, x.shape[:-2])
        normalize = partial(masked_batch_norm, self.bn, mask=rows)
        log = self.mode == "log"
        if self.eps is not None:
            return VF.batch_norm(x, normalize, log=log, eps=self.eps)
        return VF.batch_norm(x, normalize, typical=partial(self._typical_length, mask=rows), log=log)

    def _typical_length(
        self, lengths: Float[Tensor, "elements channels"], mask: Bool[Tensor, " elements"] | None = None
    ) -> Float[Tensor, " channels"]:
        """Mean length of each channel: of the batch in training mode, the running one in evaluation mode."""
        if self.bn.training or self.bn.running_mean is None:
            return batch_mean(lengths.detach(), mask, all_processes=self.bn.training and sync.enabled())[0]
        running = self.bn.running_mean.to(lengths.dtype)
        return running.exp() if self.mode == "log" else running

    def fusable(self, mask: Mask | None) -> bool:
        """Whether the kernels implement this norm; they do not exclude padding from batch statistics."""
        synchronized = self.bn.training and isinstance(self.bn, nn.SyncBatchNorm)
        return self.mode == "norm" and not synchronized and not (uses_batch_stats(self.bn) and mask is not None)

    def length_affine(self, features: _dispatch.Projection) -> _dispatch.LengthAffine:
        """The affine map of the lengths of these features, from their statistics or the running ones."""
        bn, batch = self.bn, 0
        if not uses_batch_stats(bn):
            mean, variance = bn.get_buffer("running_mean").double(), bn.get_buffer("running_var").double()
        else:
            count: int | Tensor = features.count
            if bn.training and sync.enabled():
                sums = features.length_sums(self.eps)
                count = sync.all_reduce_sum(sums.new_tensor(count))
                mean, square = sync.all_reduce_sum(sums) / count
            else:
                check_enough(features.count)
                batch = features.count
                with torch.no_grad():  # the kernels' gradient accounts for the statistics
                    mean, square = features.length_sums(self.eps) / count
            variance = (square - mean.square()).clamp_min(0)
            update_running_stats(bn, mean, variance, count)
        variance = variance + bn.eps
        scale = bn.weight * variance.rsqrt()
        floor = VF.RELATIVE_FLOOR * mean.detach() if self.eps is None else torch.zeros_like(mean)
        return _dispatch.LengthAffine(scale, bn.bias.double(), mean, floor, variance.detach().reciprocal(), batch)

    def extra_repr(self) -> str:
        return f"mode={self.mode!r}"


class _Standardize(nn.Module):
    """A learned scale per channel; no shift, for the reason `Linear` has no bias."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, len(self.weight))
        if needs_float64(x):
            return in_float64(self.forward, x, mask)
        return type(self).function(x, self.weight, eps=self.eps, mask=mask)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class LayerNorm(_Standardize):
    """Normalize the vectors of each element over its channels: mean vector 0, mean squared length 1, learned scale.

    Args:
        channels: vectors in and out.
        eps: added to the variance, relative to the mean squared length.

    Shape:
        - x, out: `(..., 3, channels)`

    Equivariant to O(D) and permutations; scaling the input leaves the output unchanged.

    >>> vn.LayerNorm(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
    """

    function = VF.layer_norm


class InstanceNorm(_Standardize):
    """Normalize each channel over the elements of one sample: mean vector 0, mean squared length 1, learned scale.

    Args:
        channels: vectors in and out.
        eps: added to the variance, relative to the mean squared length.

    Shape:
        - x, out: `(B, N, ..., 3, channels)`; elements are all axes between the batch and the vectors
        - mask: `(B, N)`, True at points and False at padding, optional

    Equivariant to O(D) and permutations; scaling the input leaves the output unchanged.

    >>> vn.InstanceNorm(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 4])
    """

    function = VF.instance_norm


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": NoNorm,
}
