"""What all networks share: options, inputs, encodings, and the arguments they were built with."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..nn import KITS, scalar
from ..nn._masked import mask_like, masked_max, masked_mean
from ..nn._range import MAX_CROSSABLE, RangeError, is_concrete, max_abs, out_of_range
from ..typing import BlockOptions, DirectionSource, Mask, Neurons, Norm, Pool


class Inputs(NamedTuple):
    """Channels of each point beside its coordinates.

    Args:
        vectors: vectors per point that rotate with the cloud, such as normals.
        scalars: scalars per point that no rotation changes, such as colors.

    >>> vn.models.DGCNN(inputs=vn.models.Inputs(vectors=1)).arguments["inputs"]
    Inputs(vectors=1, scalars=0)
    """

    vectors: int = 0
    scalars: int = 0


@dataclass(frozen=True)
class LayerOptions:
    """How the layers of a network are built; the ablations of the paper.

    Args:
        norm: of every block: `"batch"`, `"log-batch"`, `"layer"`, `"instance"` or `"none"`.
        direction: of every non-linearity, from a block's `"input"` or `"output"` (the paper's detached form, best there).
        pool: over neighbors, `"mean"` or `"max"`; by default mean for vector neurons, max for scalar ones.
        frame: how the invariant layer learns its frame, `"mlp"` or `"linear"`.
        mean: whether the frame also depends on the mean over the cloud.
        project_mean: whether the mean is projected onto the frame as well, as in the authors' code; by default if
            there is a mean.
        eps: the authors' absolute eps (1e-6), for outputs identical to theirs, see `Block`.

    >>> network = vn.models.DGCNN(layers=vn.models.LayerOptions(direction="output"))
    """

    norm: Norm = "batch"
    direction: DirectionSource = "input"
    pool: Pool | None = None
    frame: Literal["mlp", "linear"] = "mlp"
    mean: bool = True
    project_mean: bool | None = None
    eps: float | None = None

    @classmethod
    def of(cls, options: "LayerOptions | Mapping[str, Any]") -> "LayerOptions":
        """Options as given, or as read from a saved config."""
        return cls(**options) if isinstance(options, Mapping) else options

    def block(self, negative_slope: float) -> BlockOptions:
        """The options of a block."""
        return {
            "norm": self.norm,
            "direction": self.direction,
            "negative_slope": negative_slope,
            "eps": self.eps,
        }

    def pool_of(self, neurons: Neurons) -> Pool:
        """The pool over neighbors."""
        return self.pool or ("mean" if neurons == "vector" else "max")

    def invariant(self, neurons: Neurons, channels: int, negative_slope: float) -> Any:
        """The invariant layer."""
        project_mean = self.mean if self.project_mean is None else self.project_mean
        return kit_of(neurons).Invariant(
            channels, frame=self.frame, mean=self.mean, project_mean=project_mean, **self.block(negative_slope)
        )

    @property
    def lift_all(lift: Callable[..., Tensor], points: Tensor, vectors: Tensor | None, inputs: Inputs) -> Tensor:
    """Lift the points and their further vectors `(B, N, 3, V)` to features."""
    given = 0 if vectors is None else vectors.shape[-1]
    if given != inputs.vectors:
        hint = "; one vector per point is (B, N, 3, 1)" if vectors is not None and vectors.ndim == 3 else ""
        raise ValueError(f"the network was built for {inputs.vectors} further vectors per point, got {given}{hint}")
    return lift(points, *(() if vectors is None else vectors.unbind(-1)))


class JoinScalars(nn.Module):
    """Mix scalars of the points into the invariants, whose number stays the same."""

    def __init__(self, channels: int, inputs: Inputs, *, negative_slope: float, norm: Norm) -> None:
        super().__init__()
        self.scalars = inputs.scalars
        if inputs.scalars:
            self.block = scalar.Block(channels + inputs.scalars, channels, negative_slope=negative_slope, norm=norm)

    def forward(self, x: Tensor, scalars: Tensor | None, mask: Mask | None) -> Tensor:
        self.check(scalars)
        return x if scalars is None else self.block(torch.cat([x, scalars], dim=-1), mask)

    def check(self, scalars: Tensor | None) -> None:
        """Refuse another number of scalars than the network was built for."""
        given = 0 if scalars is None else scalars.shape[-1]
        if given != self.scalars:
            raise ValueError(f"the network was built for {self.scalars} scalars per point, got {given}")


def pool_invariants(
    invariant: nn.Module, join: JoinScalars, x: Tensor, scalars: Tensor | None, mask: Mask | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Maximum and mean over the points of the invariants of x, with scalars mixed in, and the frames."""
    join.check(scalars)
    if scalars is None:  # projection and pool in one kernel
        return invariant(x, mask, pool=True)
    invariants, frame = invariant(x, mask, return_frame=True)
    invariants = join(invariants, scalars, mask)
    return masked_max(invariants, mask), masked_mean(invariants, [1], mask).squeeze(1), frame
