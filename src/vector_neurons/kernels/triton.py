"""The operators of `native/moments.cpp` and `bend.cpp` on CUDA, in Triton: the same schemas, the same mathematics.

Import it only where triton is installed. On edges, gradients of `a` are added atomically, in no fixed order, so their
last bits vary from run to run. Sums over all rows are left by each program and added up in float64, always in the same
order.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from . import triton_programs as programs

Maybe = Tensor | None

TILE = 256  # elements of a tile: two a thread, with which the backward pass still fits into registers in float64
FEW = 16  # rows a unit where they do not belong together; more would start too few programs, fewer leave too many sums


class _Launch:
    """Divides the rows among programs, `per` rows a unit, and starts them."""

    def __init__(self, a: Tensor, index: Maybe, per: int) -> None:
        clouds, points, _, width = a.shape
        share = points if index is None else index.shape[2]
        per_cloud = points if index is None else index.shape[1] * share
        self.a, self.sizes = a, (clouds * per_cloud, per, per_cloud, points, share, width)
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
        return self.a.new_empty((self.programs, 2, self.a.shape[3]), dtype=torch.float64)


def _unit(index: Maybe) -> int:
    return FEW if index is None else index.shape[2]  # all edges of a point: their gradients at the point add up


def _contiguous(*tensors: Maybe) -> list[Any]:
    return [None if x is None else x.contiguous() for x in tensors]


def _empty(b: Maybe, index: Maybe) -> Maybe:
    return None if b is None or index is None else torch.empty_like(b)


def _second(b: Maybe, found: Maybe, first: Tensor) -> Tensor:
    """Gradient of `b`: on edges what the kernel found, else the sum over the points of a cloud; empty without `b`."""
    return first.new_empty(0) if b is None else first.sum(1, keepdim=True) if found is None else found


def _directions(ka: Maybe, channels: int) -> tuple[int, int, int]:
    """Width of the directions, its block, and how many are not padding."""
    width = 1 if ka is None else ka.shape[3]
    return width, triton.next_power_of_2(width), 1 if width == 1 else channels


def _mapped(a: Tensor, b: Maybe) -> tuple[Tensor, Maybe]:
    """A weight in place of `b` is applied here: the images of few channels are large, but only cost memory."""
    return (a @ b, None) if b is not None and b.ndim == 2 else (a, b)


def _unmapped(a: Tensor, b: Maybe, ga: Tensor, gb: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of what `_mapped` was given, from those of what it gave."""
    return (ga @ b.mT, a.flatten(0, 2).mT @ ga.flatten(0, 2)) if b is not None and b.ndim == 2 else (ga, gb)


def moments(a: Tensor, b: Maybe, index: Maybe, pool: int, eps: float) -> Tensor:
    """Sums of n and n² over all rows, `(2, width)` in float64."""
    a, b, index = _contiguous(*_mapped(a, b), index)
    launch = _Launch(a, index, _unit(index))
    partial = launch.partial()
    launch(programs.moments, [a, b, index, partial], eps=eps)
    return partial.sum(0)


def moments_backward(grad: Tensor, a: Tensor, b: Maybe, index: Maybe, pool: int, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of `a` and `b`."""
    given = a, b
    grad, a, b, index = _contiguous(grad.to(a.dtype), *_mapped(a, b), index)
    ga, gb = torch.zeros_like(a), _empty(b, index)
    _Launch(a, index, _unit(index))(programs.moments_back, [grad, a, b, index, ga, gb], eps=eps)
    return _unmapped(*given, ga, _second(b, gb, ga))


def bend(
    qa: Tensor, qb: Maybe, ka: Maybe, kb: Maybe, index: Maybe, norm: Tensor,
    channels: int, pool: int, slope: float, eps: float,
) -> Tensor:  # fmt: skip
    """Normalise the lengths of q, bend it along k, average groups of `pool` rows: `(groups, 3, channels)`."""
    (qa, qb), (ka, kb) = _mapped(qa, qb), (None, None) if ka is None else _mapped(ka, kb)
    tensors = _contiguous(qa, qb, ka, kb, index, norm)
    launch = _Launch(qa, index, pool)
    out = qa.new_empty((launch.sizes[0] // pool, 3, channels))
    width, block, count = _directions(ka, channels)
    launch(programs.bend, [*tensors, out], width, count, channels, slope=slope, eps=eps, BK=block)
    return out


def bend_backward(
    grad: Tensor, qa: Tensor, qb: Maybe, ka: Maybe, kb: Maybe, index: Maybe, norm: Tensor,
    channels: int, pool: int, slope: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of `qa`, `qb`, `ka`, `kb` and `norm`."""
    q, k = (qa, qb), (ka, kb)
    (qa, qb), (ka, kb) = _mapped(qa, qb), (None, None) if ka is None else _mapped(ka, kb)
    tensors = grad, qa, qb, ka, kb, index, norm = _contiguous(grad, qa, qb, ka, kb, index, norm)
    gqa, gka = torch.zeros_like(qa), qa.new_empty(0) if ka is None else torch.zeros_like(ka)
    gqb, gkb = _empty(qb, index), _empty(kb, index)
    launch = _Launch(qa, index, _unit(index))
    partial = launch.partial()
    width, block, count = _directions(ka, channels)
    launch(programs.bend_back, [*tensors, gqa, gqb, gka, gkb, partial], width, count, channels, pool,
           slope=slope, eps=eps, BK=block)  # fmt: skip
    scale, shift = partial.sum(0)
    # Gradients of scale, shift and centre; the floor is a constant.
    gnorm = torch.stack([scale, shift, -norm[0] * shift, torch.zeros_like(shift)]).to(qa.dtype)
    gk = gka, _second(kb, gkb, gka)
    gka, gkb = gk if k[0] is None else _unmapped(k[0], k[1], *gk)
    return *_unmapped(*q, gqa, _second(qb, gqb, gqa)), gka, gkb, gnorm


def probe() -> None:
    """Compile one kernel, and fail where Triton cannot: it needs a C compiler, a driver and a GPU that it knows."""
    programs.moments.warmup(torch.float32, None, None, torch.float64, *[1] * 6, eps=0.0, tiny=1.0, G=1, B=8, grid=(1,))


def register(device: str = "cuda") -> None:
    """Make these the operators' bodies on a device: the GPU, or in Triton's interpreter the CPU."""
    for body in (moments, moments_backward, bend, bend_backward):
        torch.library.impl(f"vector_neurons::{body.__name__}", device, body)
