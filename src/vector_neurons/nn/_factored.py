"""Factored inputs: concatenated features that a linear map takes apart instead of having them built.

An edge convolution maps `[x_m - x_n, x_n]` of every edge, and there are k times as many edges as points:
`Θ(x_m - x_n) + Φ x_n = Θ x_m + (Φ - Θ) x_n` needs products at points only, then a gather and a sum. Likewise
`W [V_n; V̄] = W₁ V_n + W₂ V̄` needs the second product once per cloud. The results are equal up to rounding. `Linear`
takes these in place of a tensor.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..geometry.neighbors import gather
from . import functional as VF

BUILD_MAX_CHANNELS = 3  # edges of so few channels are built: cheap, and their small differences keep a digit


class EdgeInput(NamedTuple):
    """The features `[x_m - x_n, x_n]` of every edge of a graph."""

    x: Tensor
    neighbors: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every edge by `weight` `(out, 2 C)`."""
        difference, own = weight.tensor_split(2, dim=1)
        return gather(VF.linear(self.x, difference), self.neighbors) + VF.linear(self.x, own - difference).unsqueeze(2)


class ConcatMean(NamedTuple):
    """The features of every element, concatenated with their mean over the elements."""

    x: Tensor
    mean: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every element by `weight` `(out, 2 C)`."""
        own, overall = weight.tensor_split(2, dim=1)
        return VF.linear(self.x, own) + VF.linear(self.mean, overall)

    def concat(self) -> Tensor:
        """Build the concatenation, for layers that cannot take it apart."""
        return torch.cat([self.x, self.mean.expand_as(self.x)], dim=-1)


class ConcatGlobal(NamedTuple):
    """The features `overall` `(B, C)` of a cloud, repeated for each of its elements, and the element's own."""

    overall: Tensor
    x: Tensor

    def linear(self, weight: Tensor) -> Tensor:
        """Map every element by `weight` `(out, global channels + own channels)`."""
        split = self.overall.shape[-1]
        return F.linear(self.x, weight[:, split:]) + F.linear(self.overall, weight[:, :split]).unsqueeze(1)
