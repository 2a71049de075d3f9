"""The shape vocabulary. Count `batch`, `points`, `neighbors` from the left; `dim` (3) and `channels` from the right.

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
NewVectors = Float[Tensor, "... dim out"]  # of a layer that changes the number of channels
Directions = Float[Tensor, "... dim #channels"]  # one for each channel, or one for all
Scalars = Float[Tensor, "... channels"]
NewScalars = Float[Tensor, "... out"]
Frames = Float[Tensor, "... dim vectors"]
Matrices = Float[Tensor, "*batch dim dim"]
Mask = Bool[Tensor, "batch points"]  # True where a point exists; False where a shorter cloud was padded
Neighbors = Int[Tensor, "batch points neighbors"]

Neurons = Literal["vector", "scalar", "hybrid"]
Rotations = Literal["I", "z", "SO3"]
Norm = Literal["batch", "log-batch", "layer", "instance", "none"]
DirectionSource = Literal["input", "output"]
Pool = Literal["mean", "max"]
ActivationName = Literal["relu", "softplus", "gelu", "silu", "tanh"]
ActivationFunction = Callable[[Tensor], Tensor] | ActivationName  # a scalar function, or its name


class BlockOptions(TypedDict, total=False):
    """Options of a `Block`, and of the layers made of blocks (`MLP`, `EdgeConv`, `Invariant`)."""

    norm: Norm
    direction: DirectionSource
    negative_slope: float
    activation: ActivationFunction | None
    shared_direction: bool
    eps: float | None


__all__ = [
    "ActivationFunction",
    "ActivationName",
    "BlockOptions",
    "DirectionSource",
    "Directions",
    "Frames",
    "Mask",
    "Matrices",
    "Neighbors",
    "Neurons",
    "NewScalars",
    "NewVectors",
    "Norm",
    "Points",
    "Pool",
    "Rotations",
    "Scalars",
    "Vectors",
]
