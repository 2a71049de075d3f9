"""The operators: schemas, shapes and gradients. Bodies are in `native/*.cpp` (CPU) and `triton.py` (CUDA)."""

from typing import Any

import torch
from torch import Tensor

Maybe = Tensor | None
_ops = torch.ops.vector_neurons

SCHEMAS = {
    "nearest": "(Tensor x, Tensor present, int k, bool include_self, float ulps) -> Tensor",
    "images": "(Tensor x, Tensor weight) -> Tensor",
    "moments": "(Tensor a, Tensor? b, Tensor? weight, Tensor? index, int width, float eps) -> Tensor",
    "moments_backward": "(Tensor grad, Tensor a, Tensor? b, Tensor? index, int width, float eps) -> (Tensor, Tensor)",
    "bend": "(Tensor a, Tensor? b, Tensor? weight, Tensor? images, Tensor? index, Tensor norm, int directions, "
    "int channels, int pool, float slope, float eps, SymInt batch) -> Tensor",
    "bend_backward": "(Tensor grad, Tensor a, Tensor? b, Tensor? weight, Tensor? images, Tensor? index, Tensor norm, "
    "int directions, int channels, int pool, float slope, float eps, SymInt batch, bool of_a) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "read_pool": "(Tensor x, Tensor mean, Tensor frame) -> (Tensor, Tensor, Tensor)",
    "read_pool_backward": "(Tensor grad_largest, Tensor grad_average, Tensor where, Tensor x, Tensor mean, "
    "Tensor frame) -> (Tensor, Tensor, Tensor)",
}


def _groups(a: Tensor, index: Maybe, pool: int) -> Any:
    rows = a.shape[0] * (a.shape[1] if index is None else index.shape[1] * index.shape[2])
    return rows // pool


def _shape_of_nearest(x: Tensor, present: Tensor, k: int, include_self: bool, ulps: float) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], k), dtype=torch.int64)


def _shape_of_images(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[1]))


def _shape_of_moments(a: Tensor, b: Maybe, weight: Maybe, index: Maybe, width: int, eps: float) -> Tensor:
    return a.new_empty((2, width), dtype=torch.float64)


def _like(x: Maybe, other: Tensor) -> Tensor:
    return other.new_empty(0 if x is None else x.shape)  # contiguous, though a weight may be a transpose


def _shape_of_moments_backward(
    grad: Tensor, a: Tensor, b: Maybe, index: Maybe, width: int, eps: float
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a), _like(b, a)


def _shape_of_bend(
    a: Tensor, b: Maybe, weight: Maybe, images: Maybe, index: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, *_: float,
) -> Tensor:  # fmt: skip
    return a.new_empty((_groups(a, index, pool), 3, channels))


def _shape_of_bend_backward(
    grad: Tensor, a: Tensor, b: Maybe, weight: Maybe, images: Maybe, index: Maybe, norm: Tensor, *others: float
) -> tuple[Tensor, ...]:
    wanted = weight is None or others[-1]
    return _like(a if wanted else None, a), _like(b, a), _like(weight, a), torch.empty_like(norm)


def _shape_of_read_pool(x: Tensor, mean: Tensor, frame: Tensor) -> tuple[Tensor, ...]:
    shape = (x.shape[0], 3, x.shape[3] + mean.shape[2])
    return x.new_empty(shape), x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def _shape_of_read_pool_backward(
    grad_largest: Tensor, grad_average: Tensor, where: Tensor, x: Tensor, mean: Tensor, frame: Tensor
) -> tuple[Tensor, ...]:
    return torch.empty_like(x), torch.empty_like(mean), torch.empty_like(frame)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]


def _kept(ctx: Any) -> list[Any]:
    inputs = list(ctx.others)
    for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
        inputs[place] = tensor
    return inputs


def _images_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, Maybe]:
    x, weight = ctx.saved_tensors
    of_x = _ops.images(grad, weight.mT) if ctx.needs_input_grad[0] else None
    if not ctx.needs_input_grad[1]:
        return of_x, None
    rows, gradients = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    with torch.autocast(x.device.type, enabled=False):  # BLAS is faster with the longer rows last
        longer = weight.shape[1] >= weight.shape[0]
        return of_x, rows.mT @ gradients if longer else (gradients.mT @ rows).mT


def _moments_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
    a, b, weight, *others = _kept(ctx)
    if weight is not None:
        raise RuntimeError("moments of rows that a weight maps have no gradient")
    grad_a, grad_b = _ops.moments_backward(grad, a, b, *others)
    return grad_a, None if b is None else grad_b, *[None] * 4


def _bend_backward(ctx: Any, grad: Tensor) -> tuple[Maybe, ...]:
    inputs = _kept(ctx)
    # What was worked on in float64 although `a` is in float32 has a gradient in float32.
    narrow = [x.to(grad.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    found = _ops.bend_backward(grad, *narrow, ctx.needs_input_grad[0])
    gradients: list[Maybe] = [None] * len(inputs)
    for place, gradient in zip((0, 1, 2, 5), found, strict=True):
        if ctx.needs_input_grad[place]:
            gradients[place] = gradient.to(inputs[place].dtype)
    return tuple(gradients)


def _keep_reading(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(output[2], *inputs)
    ctx.mark_non_differentiable(output[2])


def _read_pool_backward(ctx: Any, largest: Tensor, average: Tensor, where: Tensor) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _ops.read_pool_backward(largest, average, *ctx.saved_tensors)
    return gradients


def _once(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError('the native kernels have no second derivatives: choose vector_neurons.kernels.use("eager")')


def register() -> None:
    """Tell torch; once, before any body is loaded."""
    if hasattr(torch.ops.vector_neurons, "bend"):  # the module is being reloaded
        return
    for name, schema in SCHEMAS.items():
        torch.library.define(f"vector_neurons::{name}", schema)
    register_fake: Any = torch.library.register_fake
    register_fake("vector_neurons::nearest", _shape_of_nearest)
    register_fake("vector_neurons::images", _shape_of_images)
    register_fake("vector_neurons::moments", _shape_of_moments)
    register_fake("vector_neurons::moments_backward", _shape_of_moments_backward)
    register_fake("vector_neurons::bend", _shape_of_bend)
    register_fake("vector_neurons::bend_backward", _shape_of_bend_backward)
    register_fake("vector_neurons::read_pool", _shape_of_read_pool)
    register_fake("vector_neurons::read_pool_backward", _shape_of_read_pool_backward)
    torch.library.register_autograd("vector_neurons::images", _images_backward, setup_context=_keep)
    torch.library.register_autograd("vector_neurons::moments", _moments_backward, setup_context=_keep)
    torch.library.register_autograd("vector_neurons::bend", _bend_backward, setup_context=_keep)
    torch.library.register_autograd("vector_neurons::read_pool", _read_pool_backward, setup_context=_keep_reading)
    for name in ("moments", "read_pool", "bend"):
        torch.library.register_autograd(f"vector_neurons::{name}_backward", _once)
