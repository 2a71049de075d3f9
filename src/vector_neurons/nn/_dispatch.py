"""The module of `nn` that calls the fast kernels: the same equations in one pass, without storing edges.

`linear`, `leaky_relu` and `frame_pool` choose the backend themselves. A block is three calls: `project` its input, ask
its norm for an affine map of the lengths (from `length_sums`, where it needs batch statistics), and `norm_leaky_relu`.
Kernels of scalars are called in `_dispatch_scalar`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import kernels
from ..kernels import ops
from . import functional as VF
from . import sync
from ._factored import ConcatMean, EdgeInput
from ._masked import masked_max, masked_mean

RECOMPUTE_MAX_CHANNELS = 24  # recompute projections of narrow features in backward instead of storing them
FLOAT64_MAX_WEIGHTS = 1 << 13  # maps of so few weights per point run in float64 without gradient, at little cost
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
    if not is_static(rows):
        return 1
    return rows if rows <= NEIGHBORHOOD_MAX_ROWS else max(d for d in range(1, MEAN_GROUP + 1) if rows % d == 0)


def is_static(size: int) -> bool:
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
