"""Operators of blocks on CUDA, in Triton: schemas and mathematics are those of `../cpu/*.cpp`. Experimental.

They were compiled, and run in Triton's interpreter, but never on a GPU. Import this module only where triton is
installed. On edges, gradients of `a` are added atomically, in no fixed order, so their last bits vary from run to run.
Sums over all rows are deterministic: each program stores partial sums, which are added in float64 in a fixed order.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from ..._constants import RELATIVE_FLOOR
from . import programs

Maybe = Tensor | None

TILE = 256  # elements of a tile: two per thread, so that the backward pass in float64 still fits into registers
ROWS_PER_UNIT = 16  # without a graph; more would start too few programs, fewer would leave too many partial sums


class _Launch:
    """Divides the rows among programs, in units of `per_unit` rows, and launches them."""

    def __init__(self, a: Tensor, neighbors: Maybe, per_unit: int, width: int) -> None:
        clouds, points, _, columns = a.shape
        per_b = points if neighbors is None else neighbors.shape[2]
        per_cloud = points if neighbors is None else neighbors.shape[1] * per_b
        self.a, self.sizes = a, (clouds * per_cloud, per_unit, per_cloud, points, per_b, columns, width)
        self.block = triton.next_power_of_2(width)
        self.tile = max(1, TILE // self.block)
        self.programs = triton.cdiv(clouds * per_cloud, per_unit * self.tile)

    def __call__(self, kernel: Any, tensors: list[Any], *sizes: int, **constants: Any) -> None:
        constants |= {"tiny": torch.finfo(self.a.dtype).tiny ** 0.5, "G": self.tile, "B": self.block}
        device: Any = torch.cuda.device_of  # Triton launches on the current device, which need not be the tensors'
        with device(self.a):
            warps = min(8, max(4, self.block // 64))
            kernel[(self.programs,)](*tensors, *self.sizes, *sizes, **constants, num_warps=warps)

    def partial_sums(self) -> Tensor:
        """An uninitialized tensor for two sums of every program."""
        return self.a.new_empty((self.programs, 2, self.sizes[-1]), dtype=torch.float64)


def _rows_per_unit(neighbors: Maybe) -> int:
    # All edges of a point, so that their gradients at the point add up in registers.
    return ROWS_PER_UNIT if neighbors is None else neighbors.shape[2]


def _contiguous(*tensors: Maybe) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _zeros_for_edges(b: Maybe, neighbors: Maybe) -> Maybe:
    return None if b is None or neighbors is None else torch.zeros_like(b)


def _grad_b(b: Maybe, on_edges: Maybe, grad_a: Tensor) -> Tensor:
    """Gradient of `b`: on edges what the kernel computed, else the sum over a cloud's points; empty without `b`."""
    return grad_a.new_empty(0) if b is None else grad_a.sum(1, keepdim=True) if on_edges is None else on_edges


def _directions(directions: int, channels: int) -> tuple[int, int, int]:
    """Width of the directions, how many are not padding, and the block they need."""
    return directions, 1 if directions == 1 else channels, triton.next_power_of_2(directions) if directions else 0


def _projected(a: Tensor, weight: Maybe, projected: Maybe = None) -> Tensor:
    """The projected features, which are stored here: that costs memory only."""
    if projected is not None:
        return projected.view(*a.shape[:3], -1)
    return a if weight is None else a.to(weight.dtype) @ weight


def length_sums(a: Tensor, b: Maybe, weight: Maybe, neighbors: Maybe, width: int, eps: float) -> Tensor:
    """Sums of n and n² over all rows, `(2, width)` in float64."""
    a, b, neighbors = _contiguous(_projected(a, weight), b, neighbors)
    launch = _Launch(a, neighbors, _rows_per_unit(neighbors), width)
    partial = launch.partial_sums()
    launch(programs.length_sums, [a, b, neighbors, partial], eps=eps)
    return partial.sum(0)


def length_sums_backward(
    grad: Tensor, a: Tensor, b: Maybe, neighbors: Maybe, width: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Gradients of `a` and `b`."""
    grad, a, b, neighbors = _contiguous(grad.to(a.dtype), a, b, neighbors)
    ga, gb = torch.zeros_like(a), _zeros_for_edges(b, neighbors)
    launch = _Launch(a, neighbors, _rows_per_unit(neighbors), width)
    launch(programs.length_sums_backward, [grad, a, b, neighbors, ga, gb], eps=eps)
    return ga, _grad_b(b, gb, ga)


def norm_leaky_relu(
    a: Tensor, b: Maybe, weight: Maybe, projected: Maybe, neighbors: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, negative_slope: float, eps: float, batch: int,
) -> Tensor:  # fmt: skip
    """Norm of lengths, leaky ReLU along directions, mean over groups of `pool` rows: `(groups, 3, channels)`."""
    tensors = _contiguous(_projected(a, weight, projected), b, neighbors, norm)
    launch = _Launch(tensors[0], neighbors, pool, norm.shape[1])
    out = a.new_empty((launch.sizes[0] // pool, 3, channels))
    width, count, block = _directions(directions, channels)
    launch(programs.norm_leaky_relu, [*tensors, out], width, count, channels,
           negative_slope=negative_slope, eps=eps, relative_floor=RELATIVE_FLOOR, BK=block)  # fmt: skip
    return out


def norm_leaky_relu_backward(
    grad: Tensor, a: Tensor, b: Maybe, weight: Maybe, projected: Maybe, neighbors: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, negative_slope: float, eps: float, batch: int, needs_grad_a: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `a`, `b`, `weight` and `norm`."""
    grad, rows, b, neighbors, norm = _contiguous(grad, _projected(a, weight, projected), b, neighbors, norm)
    ga, gb = torch.zeros_like(rows), _zeros_for_edges(b, neighbors)
    launch = _Launch(rows, neighbors, _rows_per_unit(neighbors), norm.shape[1])
    width, count, block = _directions(directions, channels)

    def sums(*to: Maybe) -> tuple[Tensor, Tensor]:
        partial = launch.partial_sums()
        launch(programs.norm_leaky_relu_backward, [grad, rows, b, neighbors, norm, *to, partial],
               width, count, channels, pool,
               negative_slope=negative_slope, eps=eps, relative_floor=RELATIVE_FLOOR, BK=block)  # fmt: skip
        scale, shift = partial.sum(0)
        return scale, shift

    gradient_terms = None
    if batch:  # each length moves the batch's mean and variance, whose gradients are sums over all rows
        scale, shift = sums(None, None, None)
        gradient_terms = (torch.stack([shift, scale * norm[4]]) * norm[0] / -batch).to(a.dtype)
    scale, shift = sums(gradient_terms, ga, gb)
    # Gradients of scale and shift, and of a center that is not the batch's mean. Floor and inverse variance have none.
    zero = torch.zeros_like(shift)
    gnorm = torch.stack([scale, shift, zero if batch else -norm[0] * shift, zero, zero]).to(a.dtype)
    gb = _grad_b(b, gb, ga)
    if weight is None:
        return ga, gb, a.new_empty(0), gnorm
    return ga @ weight.mT if needs_grad_a else a.new_empty(0), gb, a.flatten(0, 2).mT @ ga.flatten(0, 2), gnorm


def probe() -> None:
    """Compile one kernel; raises where Triton does not work: without a C compiler, a driver or a supported GPU."""
    programs.length_sums.warmup(
        torch.float32, None, None, torch.float64, *[1] * 7, eps=0.0, tiny=1.0, G=1, B=8, grid=(1,)
    )


def register(device: str = "cuda") -> None:
    """Register these as the operators' implementations on a device: CUDA, or the CPU in Triton's interpreter."""
    torch.library.impl("vector_neurons::project", device, torch.matmul)  # for graphs that were exported on a CPU
    for implementation in (length_sums, length_sums_backward, norm_leaky_relu, norm_leaky_relu_backward):
        torch.library.impl(f"vector_neurons::{implementation.__name__}", device, implementation)
