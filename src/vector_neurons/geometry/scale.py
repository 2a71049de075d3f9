"""Powers of two that bring numbers to ordinary size, so that their squares stay in range, without any rounding."""

import torch
from jaxtyping import Float
from torch import Tensor


def power_of_two(x: Float[Tensor, "*shape"], dim: int | tuple[int, ...]) -> Float[Tensor, "*kept"]:
    """By what to multiply so that the largest number along `dim`, which is kept, lies between 1/2 and 1.

    It is 1 where all are zero, or not all are finite.

    >>> power_of_two(torch.tensor([[3.0, -5.0], [0.0, 0.0]]), dim=1).flatten().tolist()
    [0.125, 1.0]
    """
    if not x.numel():
        return torch.ones_like(x.detach().sum(dim, keepdim=True))
    largest = x.detach().abs().amax(dim, keepdim=True)
    most = (
        1020 if x.dtype == torch.float64 else 14 if x.dtype == torch.float16 else 125
    )  # so that it is in range itself
    exponent = torch.frexp(largest).exponent.clamp(-most, most)
    return torch.ldexp(torch.ones_like(largest), -exponent).where((largest > 0) & largest.isfinite(), 1)
