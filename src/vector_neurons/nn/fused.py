"""Blocks on the native kernels: the same mathematics in one pass over rows that are never built."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import kernels
from ..kernels.block import Rows, bend, moments, padded
from .unbuilt import Edges, WithMean

# Features of so few channels are mapped inside the kernels; their images would be far larger than they are.
FEW = 9
MANY = 64  # from here on, padding a feature costs less than it saves

Moments = Callable[[], Tensor]
# Scale, shift, centre and floor of every channel, from the sums of its lengths and of their squares, and the number
# of elements.
Settings = Callable[[Moments, int], tuple[Tensor, Tensor, Tensor, Tensor]]


def applies(x: Tensor | Edges | WithMean) -> bool:
    """Whether the kernels can work on this: on a CPU, in 3-D, in full precision."""
    tensor = x if isinstance(x, Tensor) else x.x
    shaped = tensor.shape[-2] == 3 and tensor.ndim > (2 if isinstance(x, WithMean) else 1)
    return shaped and tensor.numel() > 0 and kernels.native(tensor)


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
    shape = x.neighbours.shape if isinstance(x, Edges) else (x if isinstance(x, Tensor) else x.x).shape[:-2]
    x = _align(x)
    q = _rows(x, _pad(feature))
    k = _rows(x, direction if len(direction) == 1 else _pad(direction))  # one for all channels stays one
    together = shape[-1] if shape else 1
    norm = _norm(q, settings, len(feature), together, eps)
    bent = bend(q, k, norm, len(feature), together if pool else 1, slope, eps)
    return bent.view(*(shape[:-1] if pool else shape), 3, len(feature))


def batch_norm(x: Tensor, settings: Settings, *, eps: float | None) -> Tensor:
    """The norm alone."""
    channels = x.shape[-1]
    q = Rows(x.reshape(1, -1, 3, channels).contiguous())  # as it is: padding would copy it
    return bend(q, None, _norm(q, settings, channels, 1, eps), channels, 1, 1.0, eps).view(x.shape)


def leaky_relu(q: Tensor, k: Tensor, slope: float, *, eps: float | None) -> Tensor:
    """The non-linearity alone."""
    channels = q.shape[-1]
    rows, directions = (Rows(x.reshape(1, -1, 3, x.shape[-1]).contiguous()) for x in (q, k))
    return bend(rows, directions, _norm(rows, None, channels, 1, eps), channels, 1, slope, eps).view(q.shape)


def read_pool(x: Tensor, overall: Tensor | None, frame: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum and mean, over points, of what vectors (and with `overall` their mean) are in each point's frame."""
    mean = x.new_empty(x.shape[0], 3, 0) if overall is None else overall.squeeze(1)
    largest, average, _ = torch.ops.vector_neurons.read_pool(x.contiguous(), mean.contiguous(), frame.contiguous())
    return largest.flatten(1), average.flatten(1)


def _pad(weight: Tensor) -> Tensor:
    return F.pad(weight, (0, 0, 0, padded(len(weight)) - len(weight)))


def _align(x: Tensor | Edges | WithMean) -> Tensor | Edges | WithMean:
    """Pad many channels to whole lanes if x wants a gradient: the product that gives it is then a third faster."""
    if isinstance(x, Edges):
        return x
    if isinstance(x, WithMean):
        return WithMean(_aligned(x.x), _aligned(x.mean))
    return _aligned(x)


def _aligned(x: Tensor) -> Tensor:
    worth = x.shape[-1] > MANY and x.requires_grad
    return F.pad(x, (0, padded(x.shape[-1]) - x.shape[-1])) if worth else x


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, F.pad(weight, (0, x.shape[-1] - weight.shape[-1])))


def _rows(x: Tensor | Edges | WithMean, weight: Tensor) -> Rows:
    if isinstance(x, Edges):
        difference, own = weight.tensor_split(2, dim=1)
        return Rows(F.linear(x.x, difference), F.linear(x.x, own - difference), x.neighbours.long().contiguous())
    if isinstance(x, WithMean):
        own, overall = weight.tensor_split(2, dim=1)
        a, b = _linear(x.x, own), _linear(x.mean, overall)
        return Rows(a.reshape(a.shape[0], -1, 3, len(weight)), b.reshape(a.shape[0], -1, 3, len(weight)))
    if x.shape[-1] <= FEW:
        return Rows(x.reshape(1, -1, 3, x.shape[-1]).contiguous(), weight.mT.contiguous())
    return Rows(_linear(x, weight).reshape(1, -1, 3, len(weight)))


def _norm(q: Rows, settings: Settings | None, channels: int, group: int, eps: float | None) -> Tensor:
    """The settings as the kernels take them, `(4, width)`, with zeros for the padding; None leaves lengths alone."""

    def lengths() -> Tensor:
        return moments(q, group, eps)[:, :channels]

    if settings is None:
        rows = torch.cat([q.a.new_ones(1, channels), q.a.new_zeros(3, channels)])
    else:
        rows = torch.stack(settings(lengths, q.number())).to(q.a.dtype)
    width = q.b.shape[-1] if q.b is not None else q.a.shape[-1]
    return F.pad(rows, (0, width - channels))
