"""The shape vocabulary. Count `batch`, `points`, `neighbours` from the left; `dim` (3) and `channels` from the right.

| thing | shape | acts under a rotation R |
|---|---|---|
| points | `(B, N, 3)` | `points @ R.mT` |
| vectors | `(..., 3, C)` | `R @ x` |
| scalars | `(..., C)` | unchanged |
| frames | `(..., 3, 3)`, three vectors as columns | `R @ T` |
"""

from collections.abc import Callable
from typing import Literal, TypedDict

from jaxtyping import Bool, Float, Int
from torch import Tensor

Points = Float[Tensor, "*batch points dim"]
Vectors = Float[Tensor, "... dim channels"]
Directions = Float[Tensor, "... dim #channels"]  # one for each channel, or one for all
Scalars = Float[Tensor, "... channels"]
Frames = Float[Tensor, "... dim vectors"]
Matrices = Float[Tensor, "*batch dim dim"]
Mask = Bool[Tensor, "batch points"]  # True where a point exists; False where a shorter cloud was padded
Neighbours = Int[Tensor, "batch points neighbours"]

Neurons = Literal["vector", "scalar"]
Rotations = Literal["I", "z", "SO3"]
Norm = Literal["batch", "log-batch", "layer", "instance", "none"]
Nonlinearity = Literal["built-in", "detached"]
Pool = Literal["mean", "max"]


class BlockOptions(TypedDict, total=False):
    """How a `Block` is built, and with it everything made of blocks (`MLP`, `EdgeConv`)."""

    norm: Norm
    nonlinearity: Nonlinearity
    slope: float
    activation: Callable[[Tensor], Tensor] | None
    shared_direction: bool
    eps: float | None


__all__ = [
    "BlockOptions",
    "Directions",
    "Frames",
    "Mask",
    "Matrices",
    "Neighbours",
    "Neurons",
    "Nonlinearity",
    "Norm",
    "Points",
    "Pool",
    "Rotations",
    "Scalars",
    "Vectors",
]
