"""Blocks on the native kernels: the same mathematics in one pass over rows that are never built."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import kernels
from ..kernels.ops import BlockInput, length_sums, norm_leaky_relu, padded, project
from . import sync
from .unbuilt import Edges, WithMean

# Images of features of so few channels are not stored but made again where they are needed: they would be far larger.
FEW = 24
# Maps of so few weights a point cost little: without a gradient, blocks with such a map work in float64 and round once.
SMALL = 1 << 13
# Rows of a running sum, if they are more than a neighbourhood: one over thousands would lose digits, and keep other
# threads waiting.
MANY = 64
NEIGHBOURHOOD = 256

Moments = Callable[[], Tensor]


class Lengths(NamedTuple):
    """What becomes of the length of a vector, in every channel, see `kernels.ops.norm_leaky_relu`."""

    scale: Tensor
    shift: Tensor
    centre: Tensor
    floor: Tensor
    inverse_variance: Tensor
    batch: int  # the number of lengths whose mean and variance these are, and the gradient must know it; or 0


# From the sums of lengths and of their squares, and the number of elements.
Settings = Callable[[Moments, int], Lengths]


def applies(x: Tensor | Edges | WithMean) -> bool:
    """Whether the kernels can work on this: on a CPU, in 3-D, in full precision."""
    tensor = x if isinstance(x, Tensor) else x.x
    shaped = tensor.shape[-2] == 3 and tensor.ndim > (2 if isinstance(x, WithMean) else 1)
    return shaped and tensor.numel() > 0 and kernels.applicable(tensor)


def autocast(x: Tensor | Edges | WithMean) -> bool:
    """Whether linear maps would round to half precision here."""
    device = (x if isinstance(x, Tensor) else x.x).device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def block(
    x: Tensor | Edges | WithMean,
    feature: Tensor,
    direction: Tensor,
    settings: Settings | None,
    *,
    slope: float,
    eps: float | None,
    pool: bool = False,
) -> Tensor:
    """Linear → norm → leaky ReLU, `q` and `k` read from `x`; with `pool` the mean over the axis before the vectors."""
    source = x if isinstance(x, Tensor) else x.x
    if source.dtype != feature.dtype:
        raise RuntimeError(f"a block of {feature.dtype} got features of {source.dtype}: bring one to the other's type")
    shape = x.neighbours.shape if isinstance(x, Edges) else source.shape[:-2]
    together, channels, feature = shape[-1] if shape else 1, len(feature), _pad(feature)
    rows = _rows(x, torch.cat([feature, _pad(direction)]).mT)
    norm, batch = _norm(lambda: length_sums(rows, len(feature), eps), rows, settings, channels)
    norm = F.pad(norm, (0, len(feature) - channels))
    directions = 1 if len(direction) == 1 else len(feature)
    if not pool:
        return norm_leaky_relu(rows, norm, directions, channels, 1, slope, eps, batch=batch).view(*shape, 3, channels)
    group = _group(together)
    bent = norm_leaky_relu(rows, norm, directions, channels, group, slope, eps, batch=batch)
    return bent.view(*shape[:-1], together // group, 3, channels).mean(-3)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """The linear map alone, of the features of points."""
    return project(x, weight.mT)


def batch_norm(x: Tensor, settings: Settings, *, eps: float | None) -> Tensor:
    """The norm alone."""
    channels = x.shape[-1]
    rows = BlockInput(x.reshape(1, -1, 3, channels).contiguous())  # as it is: padding would copy it
    norm, batch = _norm(lambda: length_sums(rows, channels, eps), rows, settings, channels)
    return norm_leaky_relu(rows, norm, 0, channels, 1, 1.0, eps, batch=batch).view(x.shape)


def leaky_relu(q: Tensor, k: Tensor, slope: float, *, eps: float | None) -> Tensor:
    """The non-linearity alone."""
    channels, directions = q.shape[-1], k.shape[-1]
    rows = BlockInput(torch.cat([q, k], dim=-1).reshape(1, -1, 3, channels + directions))
    return norm_leaky_relu(rows, _unchanged(q, channels), directions, channels, 1, slope, eps).view(q.shape)


def read_pool(x: Tensor, overall: Tensor | None, frame: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and mean, over points, of what vectors (and with `overall` their mean) are in each point's frame."""
    mean = x.new_empty(x.shape[0], 3, 0) if overall is None else overall.squeeze(1)
    largest, average, _ = torch.ops.vector_neurons.frame_pool(x.contiguous(), mean.contiguous(), frame.contiguous())
    return largest.flatten(1), average.flatten(1)


def _group(number: int) -> int:
    """How many rows the kernels average at a time: all, or a part of many. Of a number that may change, none."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import has_static_value

        if not has_static_value(number):
            return 1
    return number if number <= NEIGHBOURHOOD else max(d for d in range(1, MANY + 1) if number % d == 0)


def _pad(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, 0, 0, padded(len(weight)) - len(weight)))


def _rows(x: Tensor | Edges | WithMean, weight: Tensor) -> BlockInput:
    """The images of `x` under a map `(channels, columns)`, which need not be made yet."""
    if isinstance(x, Edges):
        difference, own = weight.tensor_split(2)
        graph = x.neighbours.long().contiguous()
        return BlockInput(_images(x.x, difference), _images(x.x, own - difference), neighbors=graph)
    mean = other = overall = None
    if isinstance(x, WithMean):
        weight, other = weight.tensor_split(2)
        mean, x = x.mean, x.x
    per_point = math.prod(x.shape[2:-2])  # the edges of a point, each of which is mapped
    x = x.reshape(1 if mean is None else x.shape[0], -1, 3, x.shape[-1]).contiguous()
    # CUDA maps at once; statistics of many processes need images with a gradient of their own.
    at_once = x.device.type != "cpu" or sync.shared()
    differentiable = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if not (at_once or differentiable) and weight.numel() * per_point <= SMALL:
        weight = weight.double()
    if mean is not None and other is not None:
        overall = (mean.to(weight.dtype) @ other.to(weight.dtype)).reshape(x.shape[0], -1, 3, other.shape[1])
    if at_once:
        return BlockInput(_images(x, weight), overall)
    stored = None
    if differentiable and x.shape[-1] > FEW:
        with torch.no_grad():
            stored = project(x, weight)
    return BlockInput(x, overall, weight, stored)


def _images(x: Tensor, weight: Tensor) -> Tensor:
    return project(x, weight) if x.device.type == "cpu" else x @ weight


def _unchanged(like: Tensor, channels: int) -> Tensor:
    return torch.cat([like.new_ones(1, channels), like.new_zeros(4, channels)])


def _norm(lengths: Moments, rows: BlockInput, settings: Settings | None, channels: int) -> tuple[Tensor, int]:
    """The settings as the kernels take them, `(5, channels)`, and whose statistics they are; None changes no length."""
    if settings is None:
        return _unchanged(rows.like(), channels), 0
    *found, batch = settings(lambda: lengths()[:, :channels], rows.num_rows())
    return torch.stack(found).to(rows.like().dtype), batch
