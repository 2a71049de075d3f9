"""Operators of maxima of scalars, over neighbors and over points: schemas, shapes and gradients. CPU only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Maybe = Tensor | None
_ops = torch.ops.vector_neurons
_EDGE_NORM = (
    "Tensor projected, Tensor neighbors, Tensor largest, Tensor argmax, Tensor sums, Tensor moments, Tensor norm, "
    "float negative_slope, SymInt batch"
)

SCHEMAS = {
    "edge_max": "(Tensor projected, Tensor neighbors, Tensor sign, Tensor? center) -> (Tensor, Tensor, Tensor, Tensor)",
    "edge_norm": f"({_EDGE_NORM}) -> Tensor",
    "edge_norm_backward": f"(Tensor grad, {_EDGE_NORM}) -> (Tensor, Tensor)",
    "max_mean": "(Tensor x) -> (Tensor, Tensor, Tensor)",
    "product_argmax": "(Tensor x, Tensor weight, Tensor sign) -> Tensor",
    "max_mean_backward": "(Tensor grad_max, Tensor grad_mean, Tensor argmax, SymInt rows) -> Tensor",
}
DIFFERENTIABLE = ("edge_norm", "max_mean")  # each with its `_backward`


def edge_max(
    projected: Tensor, neighbors: Tensor, sign: Tensor, center: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of `a_m + b_n - center` over the neighbors m of each point n: the largest, which m has it, the sum; and moments.

    Args:
        projected: a and, behind it, b of every point.
        neighbors: int64.
        sign: channels where it is negative take the smallest instead.
        center: float64; None takes the mean over all edges, and computes their statistics as well.

    Shape:
        - projected: `(clouds, points, 2 channels)`, neighbors: `(clouds, points, k)`
        - largest, index m (int32) and sum: `(clouds, points, channels)`; with a center, the sum is empty
        - moments: `(3, channels)`, float64: over all edges the mean and the biased variance of `a_m + b_n`, and the
          mean of `a_m`; with a center `(0, channels)`
    """
    found: tuple[Tensor, Tensor, Tensor, Tensor] = _ops.edge_max(projected.detach(), neighbors, sign.detach(), center)
    return found


def edge_norm(
    projected: Tensor,
    neighbors: Tensor,
    found: tuple[Tensor, Tensor, Tensor, Tensor],
    norm: Tensor,
    *,
    negative_slope: float,
    batch: int,
) -> Tensor:
    """Norm and leaky ReLU of what `edge_max` found, which is centered already; differentiable in projected and norm.

    Args:
        projected, neighbors: of `edge_max`.
        found: its results.
        norm: `(4, channels)`: scale, shift, center and inverse variance, as in `frame_ops.scalar_norm`.
        negative_slope: of the leaky ReLU.
        batch: number of edges if center and variance are their statistics, through which the gradient then flows as
            well; otherwise 0.
    """
    out: Tensor = _ops.edge_norm(projected, neighbors, *found, norm, negative_slope, batch)
    return out


def product_argmax(x: Tensor, weight: Tensor, sign: Tensor) -> Tensor:
    """Where each channel of `x @ weight` is largest among the rows of a group, or smallest where `sign` is negative.

    Shape:
        - x: `(groups, rows, inputs)`, weight: `(inputs, channels)`, sign: `(channels,)`
        - out: `(groups, channels)`, int64: the first such row
    """
    found: Tensor = _ops.product_argmax(x.detach(), weight.detach(), sign.detach())
    return found


# --------------------------------------------------------------------------------------------------------------- shapes


def _fake_edge_max(
    projected: Tensor, neighbors: Tensor, sign: Tensor, center: Maybe
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (*projected.shape[:2], sign.shape[0])
    return (
        projected.new_empty(shape),
        projected.new_empty(shape, dtype=torch.int32),
        projected.new_empty(shape if center is None else (0,)),
        projected.new_empty((3 if center is None else 0, sign.shape[0]), dtype=torch.float64),
    )


def _fake_edge_norm(projected: Tensor, neighbors: Tensor, largest: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(largest)


def _fake_edge_norm_backward(
    grad: Tensor, projected: Tensor, neighbors: Tensor, largest: Tensor, argmax: Tensor, sums: Tensor, moments: Tensor,
    norm: Tensor, *_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(projected), torch.empty_like(norm)


def _fake_max_mean(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0], x.shape[2])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _fake_product_argmax(x: Tensor, weight: Tensor, sign: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]), dtype=torch.int64)


def _fake_max_mean_backward(grad_max: Tensor, grad_mean: Tensor, argmax: Tensor, rows: int) -> Tensor:
    return grad_max.new_empty((argmax.shape[0], rows, argmax.shape[1]))


FAKES: tuple[Callable[..., Any], ...] = (
    _fake_edge_max, _fake_edge_norm, _fake_edge_norm_backward, _fake_max_mean, _fake_max_mean_backward,
    _fake_product_argmax,
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------ gradients


def _save_for_max_mean(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.rows = inputs[0].shape[1]


def _max_mean_backward(ctx: Any, grad_max: Tensor, grad_mean: Tensor, _: Tensor) -> Tensor:
    gradient: Tensor = _ops.max_mean_backward(grad_max, grad_mean, *ctx.saved_tensors, ctx.rows)
    return gradient


def register_gradients(save: Callable[..., None], saved: Callable[[Any], list[Any]]) -> None:
    """Define the gradients of the operators, with functions that save and return their arguments."""

    def of_edge_norm(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
        grad_projected, grad_norm = _ops.edge_norm_backward(grad, *saved(ctx))
        return grad_projected, *[None] * 5, grad_norm, None, None

    torch.library.register_autograd("vector_neurons::edge_norm", of_edge_norm, setup_context=save)
    torch.library.register_autograd("vector_neurons::max_mean", _max_mean_backward, setup_context=_save_for_max_mean)
