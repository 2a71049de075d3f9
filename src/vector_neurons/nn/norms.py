"""Norms of vector neurons; `nn.vector` re-exports them."""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..typing import Mask, Norm, Vectors
from . import functional as VF
from . import fused, sync
from .checks import check_vectors
from .extremes import extreme, in_double
from .shared import NoNorm, batch_mean, check_enough, learn, masked_batch_norm, rows_of


class BatchNorm(nn.Module):
    """VN-BatchNorm: an ordinary batch norm on the lengths of vectors, which keep their direction.

    `mode="log"` normalises logarithms of lengths, so that no vector is flipped. `bn` is torch's own `BatchNorm1d`, held
    and not subclassed: running statistics, `SyncBatchNorm.convert_sync_batchnorm` and checkpoints work as usual.
    It starts with lengths spread by 0.4 about 1: torch's start, by 1 about 0, flips half of all vectors. The running
    statistics start at the same values: untrained, in evaluation mode, it leaves vectors of ordinary length alone.
    `eps` is the authors' addition to every length (1e-6), in place of the bound on short ones.
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
        spread, middle = 0.4, 1.0 if mode == "norm" else 0.0
        nn.init.constant_(self.bn.weight, spread)
        nn.init.constant_(self.bn.bias, middle)
        self.bn.get_buffer("running_var").fill_(spread**2 - self.bn.eps)
        self.bn.get_buffer("running_mean").fill_(middle)

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, self.bn.num_features, rank=3)
        if extreme(x):
            return in_double(self.forward, x, mask)
        if self.fusable(mask) and fused.applies(x):
            return fused.batch_norm(x, self.settings, eps=self.eps)
        rows = rows_of(mask, x.shape[:-2])
        normalise = partial(masked_batch_norm, self.bn, mask=rows)
        log = self.mode == "log"
        if self.eps is not None:
            return VF.batch_norm(x, normalise, log=log, eps=self.eps)
        return VF.batch_norm(x, normalise, typical=partial(self.typical, mask=rows), log=log)

    def typical(
        self, lengths: Float[Tensor, "elements channels"], mask: Bool[Tensor, " elements"] | None = None
    ) -> Float[Tensor, " channels"]:
        """Each channel's mean length: of the batch in training, of the past in evaluation."""
        if self.bn.training or self.bn.running_mean is None:
            return batch_mean(lengths.detach(), mask, share=self.bn.training and sync.shared())[0]
        past = self.bn.running_mean.to(lengths.dtype)
        return past.exp() if self.mode == "log" else past

    def fusable(self, mask: Mask | None) -> bool:
        """Whether the kernels know this norm; they know no padding, which statistics of a batch have to leave out."""
        of_batch = self.bn.training or self.bn.running_mean is None or self.bn.running_var is None
        synchronised = self.bn.training and isinstance(self.bn, nn.SyncBatchNorm)
        return self.mode == "norm" and not synchronised and not (of_batch and mask is not None)

    def settings(self, moments: fused.Moments, count: int) -> fused.Lengths:
        """What becomes of the lengths in every channel, of which there are `count`."""
        batch = 0
        number: int | Tensor = count
        if self.bn.training or self.bn.running_mean is None or self.bn.running_var is None:
            if self.bn.training and sync.shared():
                sums = moments()
                number = sync.total(sums.new_tensor(count))
                mean, square = sync.total(sums) / number
            else:
                check_enough(count)
                batch = count
                with torch.no_grad():  # the kernels know how these sums depend on lengths
                    mean, square = moments() / count
            variance = (square - mean.square()).clamp_min(0)
            if self.bn.training and self.bn.track_running_stats:
                learn(self.bn, mean, variance, number)
        else:
            mean, variance = self.bn.running_mean.double(), self.bn.running_var.double()
        variance = variance + self.bn.eps
        scale = self.bn.weight * variance.rsqrt()
        floor = VF.RELATIVE_FLOOR * mean.detach() if self.eps is None else torch.zeros_like(mean)
        return fused.Lengths(scale, self.bn.bias.double(), mean, floor, variance.detach().reciprocal(), batch)

    def extra_repr(self) -> str:
        return f"mode={self.mode!r}"


class _Standardise(nn.Module):
    """A learned scale for each channel; no shift, for the reason `Linear` has no bias."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Vectors, mask: Mask | None = None) -> Vectors:
        check_vectors(self, x, len(self.weight))
        if extreme(x):
            return in_double(self.forward, x, mask)
        return type(self).function(x, self.weight, eps=self.eps, mask=mask)

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, eps={self.eps}"


class LayerNorm(_Standardise):
    """Each element's vectors get mean 0 and mean squared length 1 over the channels. `eps` is relative."""

    function = VF.layer_norm


class InstanceNorm(_Standardise):
    """Each sample's channels get mean 0 and mean squared length 1 over the elements. `eps` is relative."""

    function = VF.instance_norm


NORMS: dict[Norm, Callable[[int], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": NoNorm,
}
