"""Operators of convolutions in local frames and of scalar blocks: schemas, shapes and gradients. CPU only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Maybe = Tensor | None
_ops = torch.ops.vector_neurons
_FRAME = "Tensor offset, Tensor vectors, Tensor frame, Tensor weight, Tensor? own, Tensor neighbors"

SCHEMAS = {
    "farthest_canonical": "(Tensor x, Tensor first, Tensor tolerance, int n) -> Tensor",
    "column_moments": "(Tensor x) -> Tensor",
    "scalar_block": "(Tensor x, Tensor weight, Tensor norm, int group, float negative_slope) -> (Tensor, Tensor)",
    "scalar_norm": "(Tensor x, Tensor norm, int group, float negative_slope, SymInt batch) -> (Tensor, Tensor, Tensor)",
    "scalar_norm_backward": "(Tensor grad, Tensor grad_max, Tensor argmax, Tensor x, Tensor norm, int group, "
    "float negative_slope, SymInt batch) -> (Tensor, Tensor)",
    "frame_project": "(Tensor x, Tensor frame) -> Tensor",
    "frame_project_backward": "(Tensor grad, Tensor x, Tensor frame) -> (Tensor, Tensor)",
    "frame_linear": f"({_FRAME}, Tensor? norm, float negative_slope) -> Tensor",
    "frame_linear_backward": f"(Tensor grad, {_FRAME}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "frame_mean": "(Tensor weights, Tensor offset, Tensor vectors, Tensor neighbors) -> Tensor",
    "frame_mean_backward": "(Tensor grad, Tensor weights, Tensor offset, Tensor vectors, Tensor neighbors) "
    "-> (Tensor, Tensor, Tensor)",
}
DIFFERENTIABLE = ("scalar_norm", "frame_project", "frame_linear", "frame_mean")  # each with its `_backward`


def scalar_norm(
    x: Tensor, norm: Tensor, *, group: int = 0, negative_slope: float, batch: int = 0
) -> tuple[Tensor, Tensor]:
    """Normalize the columns of x and apply the leaky ReLU; also the maxima over groups of consecutive rows.

    Args:
        x: rows.
        norm: scale, shift, center and inverse variance of each column: `z = scale (x - center) + shift`.
        group: number of rows of a group; 0 computes no maxima.
        negative_slope: of the leaky ReLU.
        batch: number of rows if center and variance are the statistics of these very rows, through which the gradient
            then flows as well; otherwise 0.

    Shape:
        - x, first result: `(rows, channels)`
        - norm: `(4, channels)`
        - second result: `(rows / group, channels)`, empty without groups
    """
    out, largest, _ = _ops.scalar_norm(x, norm, group, negative_slope, batch)
    return out, largest


# --------------------------------------------------------------------------------------------------------------- shapes


def _fake_farthest_canonical(x: Tensor, first: Tensor, tolerance: Tensor, n: int) -> Tensor:
    return x.new_empty((x.shape[0], n), dtype=torch.int64)


def _fake_column_moments(x: Tensor) -> Tensor:
    return x.new_empty((2, x.shape[1]), dtype=torch.float64)


def _fake_scalar_block(x: Tensor, weight: Tensor, norm: Tensor, group: int, _: float) -> tuple[Tensor, Tensor]:
    channels = weight.shape[1]
    return x.new_empty((x.shape[0], channels)), x.new_empty((x.shape[0] // group if group else 0, channels))


def _fake_scalar_norm(x: Tensor, norm: Tensor, group: int, *_: float) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0] // group if group else 0, x.shape[1])
    return torch.empty_like(x), x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _fake_scalar_norm_backward(
    grad: Tensor, grad_max: Tensor, argmax: Tensor, x: Tensor, norm: Tensor, *_: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(norm)


def _fake_frame_project(x: Tensor, frame: Tensor) -> Tensor:
    return torch.empty_like(x)


def _fake_frame_project_backward(grad: Tensor, x: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(frame)


def _fake_frame_linear(
    offset: Tensor, vectors: Tensor, frame: Tensor, weight: Tensor, own: Maybe, neighbors: Tensor, *_: Any
) -> Tensor:
    return offset.new_empty((*neighbors.shape, weight.shape[1]))


def _fake_frame_linear_backward(
    grad: Tensor, offset: Tensor, vectors: Tensor, frame: Tensor, weight: Tensor, own: Maybe, neighbors: Tensor
) -> tuple[Tensor, ...]:
    shapes = (offset.shape, vectors.shape, frame.shape, weight.shape, (0,) if own is None else own.shape)
    return tuple(offset.new_empty(shape) for shape in shapes)


def _fake_frame_mean(weights: Tensor, offset: Tensor, vectors: Tensor, neighbors: Tensor) -> Tensor:
    return offset.new_empty((*offset.shape[:2], 3, weights.shape[-1]))


def _fake_frame_mean_backward(
    grad: Tensor, weights: Tensor, offset: Tensor, vectors: Tensor, neighbors: Tensor
) -> tuple[Tensor, ...]:
    return torch.empty_like(weights), torch.empty_like(offset), torch.empty_like(vectors)


FAKES: tuple[Callable[..., Any], ...] = (
    _fake_farthest_canonical, _fake_column_moments, _fake_scalar_block, _fake_scalar_norm, _fake_scalar_norm_backward,
    _fake_frame_project, _fake_frame_project_backward, _fake_frame_linear, _fake_frame_linear_backward,
    _fake_frame_mean, _fake_frame_mean_backward,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------ gradients


def _save_for_scalar_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, norm, *ctx.others = inputs
    ctx.save_for_backward(output[2], x, norm)
    ctx.mark_non_differentiable(output[2])


def _scalar_norm_backward(ctx: Any, grad: Tensor, grad_max: Tensor, _: Tensor) -> tuple[Maybe, ...]:
    grad_x, grad_norm = _ops.scalar_norm_backward(grad, grad_max, *ctx.saved_tensors, *ctx.others)
    return grad_x, grad_norm, None, None, None


def register_gradients(save: Callable[..., None], saved: Callable[[Any], list[Any]]) -> None:
    """Define the gradients of the operators, with functions that save and return their arguments."""

    def of_frame_linear(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        *inputs, norm, _ = saved(ctx)
        if norm is not None:
            raise RuntimeError("frame_linear with a norm has no gradient: apply the norm to its result")
        *gradients, of_own = _ops.frame_linear_backward(grad, *inputs)
        return *gradients, None if inputs[4] is None else of_own, None, None, None

    def of_frame_project(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        gradients: tuple[Tensor, ...] = _ops.frame_project_backward(grad, *saved(ctx))
        return gradients

    def of_frame_mean(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        return *_ops.frame_mean_backward(grad, *saved(ctx)), None

    torch.library.register_autograd("vector_neurons::frame_project", of_frame_project, setup_context=save)
    torch.library.register_autograd("vector_neurons::frame_linear", of_frame_linear, setup_context=save)
    torch.library.register_autograd("vector_neurons::frame_mean", of_frame_mean, setup_context=save)
    torch.library.register_autograd(
        "vector_neurons::scalar_norm", _scalar_norm_backward, setup_context=_save_for_scalar_norm
    )
