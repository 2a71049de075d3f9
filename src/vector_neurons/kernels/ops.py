"""The operators `torch.ops.vector_neurons.*`: schemas, shapes and gradients, and the functions that layers call.

The implementations are in `cpu/*.cpp` and, for CUDA, in `cuda/` (Triton). The central one is a block of vector neurons
after its linear maps: batch norm of lengths, leaky ReLU along a direction, mean over neighbors. Its input is factored:
a row `(3, columns)` is the sum of one row of `a` and one of `b`, and is formed in registers only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import frame_ops, max_ops

LANES = 8  # channels are padded to a multiple of this, which makes whole SIMD vectors
Maybe = Tensor | None
_ops = torch.ops.vector_neurons

SCHEMAS = {
    "knn_canonical": "(Tensor x, Tensor present, int k, bool include_self, float ulps) -> Tensor",
    "nearest_canonical": "(Tensor x, Tensor present, Tensor selves, int k, float ulps) -> Tensor",
    "project": "(Tensor x, Tensor weight) -> Tensor",
    "length_sums": "(Tensor a, Tensor? b, Tensor? weight, Tensor? neighbors, int width, float eps) -> Tensor",
    "length_sums_backward": "(Tensor grad, Tensor a, Tensor? b, Tensor? neighbors, int width, float eps) "
    "-> (Tensor, Tensor)",
    "norm_leaky_relu": "(Tensor a, Tensor? b, Tensor? weight, Tensor? projected, Tensor? neighbors, Tensor norm, "
    "int directions, int channels, int pool, float negative_slope, float eps, SymInt batch) -> Tensor",
    "norm_leaky_relu_backward": "(Tensor grad, Tensor a, Tensor? b, Tensor? weight, Tensor? projected, "
    "Tensor? neighbors, Tensor norm, int directions, int channels, int pool, float negative_slope, float eps, "
    "SymInt batch, bool needs_grad_a) -> (Tensor, Tensor, Tensor, Tensor)",
    "frame_pool": "(Tensor x, Tensor mean, Tensor frame) -> (Tensor, Tensor, Tensor)",
    "frame_pool_backward": "(Tensor grad_max, Tensor grad_mean, Tensor argmax, Tensor x, Tensor mean, Tensor frame) "
    "-> (Tensor, Tensor, Tensor)",
    **frame_ops.SCHEMAS,
    **max_ops.SCHEMAS,
    "set_page_pool_limit": "(int bytes) -> ()",
    "page_pool_bytes": "() -> int",
}


def padded(channels: int) -> int:
    """Number of channels, rounded up to whole SIMD vectors.

    >>> padded(21)
    24
    """
    return -(-channels // LANES) * LANES


class BlockInput(NamedTuple):
    """Factored input of a block: rows `(3, columns)` of features and, behind them, their directions.

    Row m is `a[neighbors[m]] + b[m // share]` on the edges of a graph and `a[m] + b[m // share]` otherwise. Edges share
    the `b` of the point they start from, points that of their cloud.

    Args:
        a: `(clouds, points, 3, columns)`, or `(clouds, points, 3, channels)` with a weight.
        b: `(clouds, points, 3, columns)` with neighbors, `(clouds, 1, 3, columns)` without.
        weight: `(channels, columns)`, which projects `a`; not together with neighbors. The projected features are
            computed chunk by chunk and not stored. Without a gradient, `weight` and `b` may be float64 where `a` is
            float32: all arithmetic is then in float64, and the result is rounded once.
        projected: `a @ weight`, if it is stored already; it receives no gradient of its own.
        neighbors: `(clouds, points, k)`, int64.
    """

    a: Tensor
    b: Tensor | None = None
    weight: Tensor | None = None
    projected: Tensor | None = None
    neighbors: Tensor | None = None

    def like(self) -> Tensor:
        """A tensor of the dtype and device of the arithmetic."""
        return self.a if self.weight is None else self.weight

    def num_rows(self) -> int:
        """Number of rows: of edges, or of points."""
        per_cloud = self.a.shape[1] if self.neighbors is None else self.neighbors.shape[1] * self.neighbors.shape[2]
        return self.a.shape[0] * per_cloud


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Linear map of features, `x @ weight`, with the same bits on any number of threads.

    Shape:
        - x: `(..., in)`, weight: `(in, out)`
        - out: `(..., out)`
    """
    projected: Tensor = _ops.project(x, weight)
    return projected


def length_sums(inputs: BlockInput, width: int, eps: float | None) -> Tensor:
    """Sums over all rows of each vector's length and of its square: the statistics of a batch norm.

    Args:
        inputs: rows, whose directions are ignored.
        width: number of feature channels.
        eps: added to each length; None adds nothing.

    Shape:
        - out: `(2, width)`, float64
    """
    a, b, weight = inputs.a, inputs.b, inputs.weight
    if inputs.projected is not None:
        a, weight = inputs.projected, None
    elif weight is not None:  # directions need not be projected
        weight, b = weight[:, :width].contiguous(), None if b is None else b[..., :width].contiguous()
    sums: Tensor = _ops.length_sums(a, b, weight, inputs.neighbors, width, eps or 0.0)
    return sums


def norm_leaky_relu(
    inputs: BlockInput,
    norm: Tensor,
    directions: int,
    channels: int,
    pool: int,
    negative_slope: float,
    eps: float | None,
    *,
    batch: int = 0,
) -> Tensor:
    """Normalize lengths, apply the leaky ReLU along the directions, average groups of `pool` rows.

    Args:
        inputs: rows of `width` features and their directions.
        norm: scale, shift, center, floor and inverse variance of each channel. A vector of length n is multiplied by
            `(scale (n - center) + shift) / max(n, floor)`.
        directions: number of direction channels: `width`, 1 (shared by all features) or 0 (no non-linearity).
        channels: number of features without padding, at most `width`.
        pool: number of consecutive rows to average.
        negative_slope: of the leaky ReLU.
        eps: added to lengths and squared lengths; None bounds short directions relative to the others of their row.
        batch: number of rows if center and variance are the statistics of these very rows, through which the gradient
            then flows as well; otherwise 0.

    Shape:
        - norm: `(5, width)`
        - out: `(rows / pool, 3, channels)`
    """
    relative = -1.0 if eps is None else eps
    out: Tensor = _ops.norm_leaky_relu(*inputs, norm, directions, channels, pool, negative_slope, relative, batch)
    return out


# --------------------------------------------------------------------------------------------------------------- shapes


def _fake_knn_canonical(x: Tensor, present: Tensor, k: int, include_self: bool, ulps: float) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], k), dtype=torch.int64)


def _fake_nearest_canonical(x: Tensor, present: Tensor, selves: Tensor, k: int, ulps: float) -> Tensor:
    return x.new_empty((*selves.shape, k), dtype=torch.int64)


def _fake_project(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


def _fake_length_sums(a: Tensor, b: Maybe, weight: Maybe, neighbors: Maybe, width: int, eps: float) -> Tensor:
    return a.new_empty((2, width), dtype=torch.float64)


def _empty_like(x: Maybe, other: Tensor) -> Tensor:
    return other.new_empty(0 if x is None else x.shape)  # contiguous, though a weight may be a transpose


def _fake_length_sums_backward(
    grad: Tensor, a: Tensor, b: Maybe, neighbors: Maybe, width: int, eps: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), _empty_like(b, a)


def _fake_norm_leaky_relu(
    a: Tensor, b: Maybe, weight: Maybe, projected: Maybe, neighbors: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, *_: float,
) -> Tensor:  # fmt: skip
    rows = BlockInput(a, neighbors=neighbors).num_rows()
    return a.new_empty((rows // pool, 3, channels))


def _fake_norm_leaky_relu_backward(
    grad: Tensor, a: Tensor, b: Maybe, weight: Maybe, projected: Maybe, neighbors: Maybe, norm: Tensor, *others: float
) -> tuple[Tensor, ...]:
    needed = weight is None or others[-1]
    return _empty_like(a if needed else None, a), _empty_like(b, a), _empty_like(weight, a), torch.empty_like(norm)


def _fake_frame_pool(x: Tensor, mean: Tensor, frame: Tensor) -> tuple[Tensor, ...]:
    shape = (x.shape[0], 3, x.shape[3] + mean.shape[2])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _fake_frame_pool_backward(
    grad_max: Tensor, grad_mean: Tensor, argmax: Tensor, x: Tensor, mean: Tensor, frame: Tensor
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(mean), torch.empty_like(frame)


# ------------------------------------------------------------------------------------------------------------ gradients


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.tensor_positions = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.save_for_backward(*(inputs[i] for i in ctx.tensor_positions))
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]


def _saved_inputs(ctx: Any) -> list[Any]:
    inputs = list(ctx.others)
    for position, tensor in zip(ctx.tensor_positions, ctx.saved_tensors, strict=True):
        inputs[position] = tensor
    return inputs


def _project_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, Maybe]:
    x, weight = ctx.saved_tensors
    grad_x = _ops.project(grad, weight.mT) if ctx.needs_input_grad[0] else None
    if not ctx.needs_input_grad[1]:
        return grad_x, None
    rows, gradients = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    with torch.autocast(x.device.type, enabled=False):  # BLAS is faster with the longer rows last
        longer = weight.shape[1] >= weight.shape[0]
        return grad_x, rows.mT @ gradients if longer else (gradients.mT @ rows).mT


def _length_sums_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
    a, b, weight, *others = _saved_inputs(ctx)
    if weight is not None:
        raise RuntimeError("length_sums has no gradient through a weight: pass the projected features as `a`")
    grad_a, grad_b = _ops.length_sums_backward(grad, a, b, *others)
    return grad_a, None if b is None else grad_b, *[None] * 4


def _norm_leaky_relu_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
    inputs = _saved_inputs(ctx)
    # Where the forward pass used float64 for an `a` in float32, the backward pass uses float32.
    narrow = [x.to(grad.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    found = _ops.norm_leaky_relu_backward(grad, *narrow, ctx.needs_input_grad[0])
    gradients: list[Maybe] = [None] * len(inputs)
    for position, gradient in zip((0, 1, 2, 5), found, strict=True):  # a, b, weight, norm
        if ctx.needs_input_grad[position]:
            gradients[position] = gradient.to(inputs[position].dtype)
    return tuple(gradients)


def _save_for_frame_pool(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    argmax = output[2]
    ctx.save_for_backward(argmax, *inputs)
    ctx.mark_non_differentiable(argmax)


def _frame_pool_backward(ctx: Any, grad_max: Tensor, grad_mean: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _ops.frame_pool_backward(grad_max, grad_mean, *ctx.saved_tensors)
    return gradients


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError('the native kernels have no second derivatives: choose vector_neurons.kernels.use("eager")')


def register() -> None:
    """Define the operators in torch; once, before an implementation is loaded."""
    if hasattr(_ops, "norm_leaky_relu"):  # the module is being reloaded
        return
    for name, schema in SCHEMAS.items():
        torch.library.define(f"vector_neurons::{name}", schema)
    fakes: tuple[Callable[..., Any], ...] = (
        _fake_knn_canonical, _fake_nearest_canonical, _fake_project, _fake_length_sums, _fake_length_sums_backward,
        _fake_norm_leaky_relu, _fake_norm_leaky_relu_backward, _fake_frame_pool, _fake_frame_pool_backward,
        *frame_ops.FAKES, *max_ops.FAKES,
    )  # fmt: skip
    for fake in fakes:
        torch.library.register_fake(f"vector_neurons::{fake.__name__.removeprefix('_fake_')}", fake)
    torch.library.register_autograd("vector_neurons::project", _project_backward, setup_context=_save_inputs)
    torch.library.register_autograd("vector_neurons::length_sums", _length_sums_backward, setup_context=_save_inputs)
    torch.library.register_autograd(
        "vector_neurons::norm_leaky_relu", _norm_leaky_relu_backward, setup_context=_save_inputs
    )
    torch.library.register_autograd(
        "vector_neurons::frame_pool", _frame_pool_backward, setup_context=_save_for_frame_pool
    )
    for more in (frame_ops, max_ops):
        more.register_gradients(_save_inputs, _saved_inputs)
    differentiable = (*frame_ops.DIFFERENTIABLE, *max_ops.DIFFERENTIABLE)
    for name in ("length_sums", "frame_pool", "norm_leaky_relu", *differentiable):
        torch.library.register_autograd(f"vector_neurons::{name}_backward", _no_second_derivative)
