"""Inputs that are never built: their images under a linear map come from their parts, the same up to rounding.

An edge convolution maps `[x_m - x_n, x_n]` of every edge, and there are k times as many edges as points:
`Θ(x_m - x_n) + Φ x_n = Θ x_m + (Φ - Θ) x_n` needs products at points only, then a gather and a sum. Likewise
`W [V_n; V̄] = W₁ V_n + W₂ V̄` needs the second product once a cloud. `Linear` takes these in place of a tensor.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry.neighbours import gather
from . import functional as VF


class Edges(NamedTuple):
    """The features `[x_m - x_n, x_n]` of every edge of a graph."""

    x: Tensor
    neighbours: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every edge by `weight` `(out, 2 C)`."""
        difference, own = weight.tensor_split(2, dim=1)
        return gather(VF.linear(self.x, difference), self.neighbours) + VF.linear(self.x, own - difference).unsqueeze(2)


class WithMean(NamedTuple):
    """The features of every element, and beside them those of the mean element."""

    x: Tensor
    mean: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every element by `weight` `(out, 2 C)`."""
        own, overall = weight.tensor_split(2, dim=1)
        return VF.linear(self.x, own) + VF.linear(self.mean, overall)

    def build(self) -> Tensor:
        """What it stands for, where there is no way around it."""
        return torch.cat([self.x, self.mean.expand_as(self.x)], dim=-1)


class Everywhere(NamedTuple):
    """The features `overall` `(B, C)` of a cloud, repeated for each of its elements, and beside them its own."""

    overall: Tensor
    x: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every element by `weight` `(out, channels overall + own)`."""
        split = self.overall.shape[-1]
        return F.linear(self.x, weight[:, split:]) + F.linear(self.overall, weight[:, :split]).unsqueeze(1)
