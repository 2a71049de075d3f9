"""The one module of `nn` that calls the fast kernels: the same equations in one pass, without storing edges.

`linear`, `leaky_relu` and `frame_pool` choose the backend themselves. A block is three calls: `project` its input, ask
its norm for an affine map of the lengths (from `length_sums`, where it needs batch statistics), and `norm_leaky_relu`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .. import kernels
from ..geometry.neighbors import gather
from ..kernels import frame_ops, max_ops, ops
from . import functional as VF
from . import sync
from ._batch_stats import check_enough, update_running_stats, uses_batch_stats
from ._factored import BUILD_MAX_CHANNELS, ConcatMean, EdgeInput
from ._masked import masked_max, masked_mean

RECOMPUTE_MAX_CHANNELS = 24  # recompute projections of narrow features in backward instead of storing them
FLOAT64_MAX_WEIGHTS = 1 << 13  # maps of so few weights per point run in float64 without gradient, at little cost
COVARIANCE_MIN_RATIO = 4  # of the outputs to the inputs of a map, from which on its statistics come from its input
MATMUL_MIN_ROWS = 128  # for fewer rows, preparing a weight takes the kernels longer than torch's product
# A running sum over more rows than a neighborhood is split into groups: it keeps digits, and the threads busy.
NEIGHBORHOOD_MAX_ROWS = 256
MEAN_GROUP = 64

LayerInput = Tensor | EdgeInput | ConcatMean


class LengthAffine(NamedTuple):
    """Per channel, the map of lengths n of a batch norm, `scale (n - center) + shift`; see `ops.norm_leaky_relu`."""

    scale: Tensor
    shift: Tensor
    center: Tensor
    floor: Tensor  # shorter vectors count as this long in the division by n
    inverse_variance: Tensor
    batch: int  # number of lengths if center and variance are their statistics and take part in the gradient, else 0


def fusable(x: LayerInput) -> bool:
    """Whether the kernels can take this input: a device they support, in 3-D, in float32 or float64."""
    tensor = x if isinstance(x, Tensor) else x.x
    shaped = tensor.shape[-2] == 3 and tensor.ndim > (2 if isinstance(x, ConcatMean) else 1)
    return shaped and tensor.numel() > 0 and kernels.applicable(tensor)


def autocast(x: LayerInput) -> bool:
    """Whether autocast would round linear maps to half precision here."""
    device = (x if isinstance(x, Tensor) else x.x).device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """VN-Linear."""
    # For single vectors torch's own product is faster.
    if x.ndim > 3 and x.device.type == "cpu" and weight.numel() and fusable(x) and not autocast(x):
        return ops.project(x, weight.mT)
    return VF.linear(x, weight)


def leaky_relu(q: Tensor, k: Tensor, negative_slope: float, *, eps: float | None) -> Tensor:
    """VN-LeakyReLU."""
    if not fusable(q) or autocast(q):
        return VF.leaky_relu(q, k, negative_slope, eps=eps)
    channels, directions = q.shape[-1], k.shape[-1]
    inputs = ops.BlockInput(torch.cat([q, k], dim=-1).reshape(1, -1, 3, channels + directions))
    identity = _identity_affine(q, channels)
    return ops.norm_leaky_relu(inputs, identity, directions, channels, 1, negative_slope, eps).view(q.shape)


def frame_pool(x: Tensor, mean: Tensor | None, frame: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum and mean over points of the vectors (and their `mean`, if given) projected onto each point's frame."""
    # CUDA has no kernel for this.
    if mask is not None or x.device.type != "cpu" or not fusable(x) or autocast(x):
        vectors = x if mean is None else ConcatMean(x, mean).concat()
        invariants = VF.project_onto_frame(vectors, frame)
        return masked_max(invariants, mask), masked_mean(invariants, [1], mask).squeeze(1)
    overall = x.new_empty(x.shape[0], 3, 0) if mean is None else mean.squeeze(1)
    inputs = (x.contiguous(), overall.contiguous(), frame.to(x.dtype).contiguous())
    largest, average, _ = torch.ops.vector_neurons.frame_pool(*inputs)
    return largest.flatten(1), average.flatten(1)


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
    return not _static(x.numel()) or x.numel() >= MATMUL_MIN_ROWS * x.shape[-1]


def project_onto_frame(x: Tensor, frame: Tensor) -> Tensor:
    """VN-In: the coordinates of every vector in its element's frame, `(..., 3 C)`."""
    if not frames_fusable(x) or frame.shape != (*x.shape[:-1], 3):
        return VF.project_onto_frame(x, frame)
    rows, frames = x.contiguous().flatten(0, -3), frame.to(x.dtype).contiguous().flatten(0, -3)
    projected: Tensor = torch.ops.vector_neurons.frame_project(rows, frames)
    return projected.view(*x.shape[:-2], -1)


def frames_fusable(x: Tensor) -> bool:
    """Whether the kernels can take vectors for a convolution in frames."""
    return x.device.type == "cpu" and fusable(x) and not autocast(x)


def frame_linear(
    offset: Tensor,
    vectors: Tensor,
    frame: Tensor,
    weight: Tensor,
    own: Tensor | None,
    neighbors: Tensor,
    norm: Tensor | None,
    negative_slope: float,
) -> Tensor:
    """A linear map of `[Tᵀ [d, V_m], ‖d‖]` on every edge, plus the neighbor's `own`; then a constant norm, if given."""
    given = None if own is None else own.contiguous()
    inputs = (offset.contiguous(), vectors.contiguous(), frame.contiguous(), weight.mT, given, neighbors.contiguous())
    mapped: Tensor = torch.ops.vector_neurons.frame_linear(*inputs, norm, negative_slope)
    return mapped


def frame_mean(weights: Tensor, offset: Tensor, vectors: Tensor, neighbors: Tensor) -> Tensor:
    """Means over neighbors of the offsets and of the vectors, times the edge's weights."""
    inputs = (weights.contiguous(), offset.contiguous(), vectors.contiguous(), neighbors.contiguous())
    means: Tensor = torch.ops.vector_neurons.frame_mean(*inputs)
    return means


@dataclass(frozen=True)
class Projection:
    """Features and directions of a block after its linear maps, as the kernels take them: not built where avoidable."""

    inputs: ops.BlockInput
    shape: tuple[int, ...]  # of the output, up to its vectors
    channels: int
    width: int  # channels with padding
    directions: int  # one for all channels, one for each, or none

    @property
    def count(self) -> int:
        """Number of vectors per channel."""
        return self.inputs.num_rows()

    def length_sums(self, eps: float | None) -> Tensor:
        """Sums of the lengths and of their squares over all rows, per channel: `(2, channels)` in float64."""
        return ops.length_sums(self.inputs, self.width, eps)[:, : self.channels]

    def norm_leaky_relu(
        self, affine: LengthAffine | None, *, negative_slope: float, eps: float | None, mean_pool: bool = False
    ) -> Tensor:
        """Normalize lengths, apply the leaky ReLU, and with `mean_pool` average over the axis before the vectors."""
        like = self.inputs.like()
        if affine is None:
            norm, batch = _identity_affine(like, self.channels), 0
        else:
            *rows, batch = affine
            norm = torch.stack(rows).to(like.dtype)
        norm = F.pad(norm, (0, self.width - self.channels))
        neighbors = self.shape[-1] if mean_pool else 1
        group = _mean_group(neighbors) if mean_pool else 1
        out = ops.norm_leaky_relu(
            self.inputs, norm, self.directions, self.channels, group, negative_slope, eps, batch=batch
        )
        if not mean_pool:
            return out.view(*self.shape, 3, self.channels)
        return out.view(*self.shape[:-1], neighbors // group, 3, self.channels).mean(-3)


def project(x: LayerInput, weight: Tensor, direction: Tensor) -> Projection:
    """Apply the linear maps of a block, for features and for directions, to its input."""
    source = x if isinstance(x, Tensor) else x.x
    if source.dtype != weight.dtype:
        raise RuntimeError(f"a block of {weight.dtype} got features of {source.dtype}: convert one of them")
    shape = x.neighbors.shape if isinstance(x, EdgeInput) else source.shape[:-2]
    channels, weight = len(weight), _pad(weight)
    inputs = _project(x, torch.cat([weight, _pad(direction)]).mT)
    directions = 1 if len(direction) == 1 else len(weight)
    return Projection(inputs, tuple(shape), channels, len(weight), directions)


def unprojected(x: Tensor) -> Projection:
    """Features without linear map and directions, for a norm alone."""
    channels = x.shape[-1]  # not padded, which would copy them
    inputs = ops.BlockInput(x.reshape(1, -1, 3, channels).contiguous())
    return Projection(inputs, tuple(x.shape[:-2]), channels, channels, 0)


def _identity_affine(like: Tensor, channels: int) -> Tensor:
    return torch.cat([like.new_ones(1, channels), like.new_zeros(4, channels)])


def _mean_group(rows: int) -> int:
    """How many rows the kernels average at a time: all of a neighborhood, a divisor of more, one of a dynamic size."""
    if not _static(rows):
        return 1
    return rows if rows <= NEIGHBORHOOD_MAX_ROWS else max(d for d in range(1, MEAN_GROUP + 1) if rows % d == 0)


def _static(size: int) -> bool:
    """Whether a size is a number here, not a symbol of a compiled graph."""
    if not torch.compiler.is_compiling():
        return True
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return has_static_value(size)


def _pad(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, 0, 0, ops.padded(len(weight)) - len(weight)))


def _project(x: LayerInput, weight: Tensor) -> ops.BlockInput:
    """The projections of `x` under a map `(channels, columns)`, which need not be computed yet."""
    if isinstance(x, EdgeInput):
        difference, own = weight.tensor_split(2)
        neighbors = x.neighbors.long().contiguous()
        return ops.BlockInput(_product(x.x, difference), _product(x.x, own - difference), neighbors=neighbors)
    mean = other = overall = None
    if isinstance(x, ConcatMean):
        weight, other = weight.tensor_split(2)
        mean, x = x.mean, x.x
    per_point = math.prod(x.shape[2:-2])  # the edges of a point, each of which is mapped
    x = x.reshape(1 if mean is None else x.shape[0], -1, 3, x.shape[-1]).contiguous()
    # CUDA projects at once; statistics over all processes need projections with a gradient of their own.
    at_once = x.device.type != "cpu" or sync.enabled()
    differentiable = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not (at_once or differentiable) and weight.numel() * per_point <= FLOAT64_MAX_WEIGHTS:
        weight = weight.double()
    if mean is not None and other is not None:
        overall = (mean.to(weight.dtype) @ other.to(weight.dtype)).reshape(x.shape[0], -1, 3, other.shape[1])
    if at_once:
        return ops.BlockInput(_product(x, weight), overall)
    stored = None
    if differentiable and x.shape[-1] > RECOMPUTE_MAX_CHANNELS:
        with torch.no_grad():
            stored = ops.project(x, weight)
    return ops.BlockInput(x, overall, weight, stored)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return ops.project(x, weight) if x.device.type == "cpu" else x @ weight
