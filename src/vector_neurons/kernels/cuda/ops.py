"""The operators of `native/length_sums.cpp` and `norm_leaky_relu.cpp` on CUDA, in Triton: the same schemas, the same mathematics.

Import it only where triton is installed. On edges, gradients of `a` are added atomically, in no fixed order, so their
last bits vary from run to run. Sums over all rows are left by each program and added up in float64, always in the same
order.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from . import programs

Maybe = Tensor | None

TILE = 256  # elements of a tile: two a thread, with which the backward pass still fits into registers in float64
FEW = 16  # rows a unit where they do not belong together; more would start too few programs, fewer leave too many sums


class _Launch:
    """Divides the rows among programs, `per` rows a unit, and starts them."""

    def __init__(self, a: Tensor, index: Maybe, per: int, width: int) -> None:
        clouds, points, _, columns = a.shape
        share = points if index is None else index.shape[2]
        per_cloud = points if index is None else index.shape[1] * share
        self.a, self.sizes = a, (clouds * per_cloud, per, per_cloud, points, share, columns, width)
        self.block = triton.next_power_of_2(width)
        self.tile = max(1, TILE // self.block)
        self.programs = triton.cdiv(clouds * per_cloud, per * self.tile)

    def __call__(self, kernel: Any, tensors: list[Any], *sizes: int, **constants: Any) -> None:
        constants |= {"tiny": torch.finfo(self.a.dtype).tiny ** 0.5, "G": self.tile, "B": self.block}
        device: Any = torch.cuda.device_of  # Triton starts programs on the current device, wherever the tensors are
        with device(self.a):
            warps = min(8, max(4, self.block // 64))
            kernel[(self.programs,)](*tensors, *self.sizes, *sizes, **constants, num_warps=warps)

    def partial(self) -> Tensor:
        """Room for two sums of every program."""
        return self.a.new_empty((self.programs, 2, self.sizes[-1]), dtype=torch.float64)


def _unit(index: Maybe) -> int:
    return FEW if index is None else index.shape[2]  # all edges of a point: their gradients at the point add up


def _contiguous(*tensors: Maybe) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _zeros(b: Maybe, index: Maybe) -> Maybe:
    return None if b is None or index is None else torch.zeros_like(b)


def _second(b: Maybe, found: Maybe, first: Tensor) -> Tensor:
    """Gradient of `b`: on edges what the kernel found, else the sum over the points of a cloud; empty without `b`."""
    return first.new_empty(0) if b is None else first.sum(1, keepdim=True) if found is None else found


def _directions(directions: int, channels: int) -> tuple[int, int, int]:
    """Width of the directions, how many are not padding, and the block they need."""
    return directions, 1 if directions == 1 else channels, triton.next_power_of_2(directions) if directions else 0


def _mapped(a: Tensor, weight: Maybe, images: Maybe = None) -> Tensor:
    """A weight is applied here: images only cost memory."""
    if images is not None:
        return images.view(*a.shape[:3], -1)
    return a if weight is None else a.to(weight.dtype) @ weight


def length_sums(a: Tensor, b: Maybe, weight: Maybe, index: Maybe, width: int, eps: float) -> Tensor:
    """Sums of n and n² over all rows, `(2, width)` in float64."""
    a, b, index = _contiguous(_mapped(a, weight), b, index)
    launch = _Launch(a, index, _unit(index), width)
    partial = launch.partial()
    launch(programs.length_sums, [a, b, index, partial], eps=eps)
    return partial.sum(0)


def length_sums_backward(grad: Tensor, a: Tensor, b: Maybe, index: Maybe, width: int, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of `a` and `b`."""
    grad, a, b, index = _contiguous(grad.to(a.dtype), a, b, index)
    ga, gb = torch.zeros_like(a), _zeros(b, index)
    _Launch(a, index, _unit(index), width)(programs.length_sums_back, [grad, a, b, index, ga, gb], eps=eps)
    return ga, _second(b, gb, ga)


def norm_leaky_relu(
    a: Tensor, b: Maybe, weight: Maybe, images: Maybe, index: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, slope: float, eps: float, batch: int,
) -> Tensor:  # fmt: skip
    """Normalise lengths, bend along directions, average groups of `pool` rows: `(groups, 3, channels)`."""
    tensors = _contiguous(_mapped(a, weight, images), b, index, norm)
    launch = _Launch(tensors[0], index, pool, norm.shape[1])
    out = a.new_empty((launch.sizes[0] // pool, 3, channels))
    width, count, block = _directions(directions, channels)
    launch(programs.norm_leaky_relu, [*tensors, out], width, count, channels, slope=slope, eps=eps, BK=block)
    return out


def norm_leaky_relu_backward(
    grad: Tensor, a: Tensor, b: Maybe, weight: Maybe, images: Maybe, index: Maybe, norm: Tensor,
    directions: int, channels: int, pool: int, slope: float, eps: float, batch: int, of_a: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `a`, `b`, `weight` and `norm`."""
    grad, rows, b, index, norm = _contiguous(grad, _mapped(a, weight, images), b, index, norm)
    ga, gb = torch.zeros_like(rows), _zeros(b, index)
    launch = _Launch(rows, index, _unit(index), norm.shape[1])
    width, count, block = _directions(directions, channels)

    def sums(*to: Maybe) -> tuple[Tensor, Tensor]:
        partial = launch.partial()
        launch(programs.norm_leaky_relu_back, [grad, rows, b, index, norm, *to, partial], width, count, channels, pool,
               slope=slope, eps=eps, BK=block)  # fmt: skip
        scale, shift = partial.sum(0)
        return scale, shift

    more = None
    if batch:  # each length has its part in the statistics, hence in the gradients of centre and scale
        scale, shift = sums(None, None, None)
        more = (torch.stack([shift, scale * norm[4]]) * norm[0] / -batch).to(a.dtype)
    scale, shift = sums(more, ga, gb)
    # Gradients of scale and shift, and of a centre that is not the batch's; the rest are constants.
    none = torch.zeros_like(shift)
    gnorm = torch.stack([scale, shift, none if batch else -norm[0] * shift, none, none]).to(a.dtype)
    gb = _second(b, gb, ga)
    if weight is None:
        return ga, gb, a.new_empty(0), gnorm
    return ga @ weight.mT if of_a else a.new_empty(0), gb, a.flatten(0, 2).mT @ ga.flatten(0, 2), gnorm


def probe() -> None:
    """Compile one kernel, and fail where Triton cannot: it needs a C compiler, a driver and a GPU that it knows."""
    programs.length_sums.warmup(torch.float32, None, None, torch.float64, *[1] * 7, eps=0.0, tiny=1.0, G=1, B=8, grid=(1,))


def register(device: str = "cuda") -> None:
    """Make these the operators' bodies on a device: the GPU, or in Triton's interpreter the CPU."""
    torch.library.impl("vector_neurons::project", device, torch.matmul)  # of graphs that were exported on a CPU
    for body in (length_sums, length_sums_backward, norm_leaky_relu, norm_leaky_relu_backward):
        torch.library.impl(f"vector_neurons::{body.__name__}", device, body)
