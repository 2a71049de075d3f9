"""Exact scaling by powers of two, so that squares neither overflow nor underflow."""

import torch
from jaxtyping import Float
from torch import Tensor

# For every dtype: an integer of the same size, the bits of the mantissa, the bias of the exponent.
BITS = {
    torch.float32: (torch.int32, 23, 127),
    torch.float64: (torch.int64, 52, 1023),
    torch.float16: (torch.int16, 10, 15),
    torch.bfloat16: (torch.int16, 7, 127),
}


def power_of_two(x: Float[Tensor, "*shape"], dim: int | tuple[int, ...]) -> Float[Tensor, "*kept"]:
    """The power of two that scales the largest absolute value along `dim`, which is kept, to between 1/2 and 1.

    It is 1 where all values are zero or one is not finite.

    >>> vn.geometry.scale.power_of_two(torch.tensor([[3.0, -5.0], [0.0, 0.0]]), dim=1).flatten().tolist()
    [0.125, 1.0]
    """
    if not x.numel():
        return torch.ones_like(x.detach().sum(dim, keepdim=True))
    largest = x.detach().abs().amax(dim, keepdim=True)
    # By the bits of the exponent: torch.frexp is not on every device, and torch.ldexp need not be exact.
    integer, mantissa, bias = BITS[x.dtype]
    exponent = largest.view(integer) >> mantissa
    scale = ((2 * bias - 1 - exponent).clamp(1, 2 * bias) << mantissa).view(x.dtype)
    return scale.where((largest > 0) & largest.isfinite(), 1)
