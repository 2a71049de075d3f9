"""What networks take: clouds, padded or not, with vectors and scalars of their points, and how these enter."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..nn import hybrid, scalar
from ..nn._masked import mask_like, masked_max, masked_mean
from ..nn._range import is_concrete
from ..nn.features import Channels, Features
from ..typing import Mask, Neurons, Norm
from .options import kit_of


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


def inputs_of(inputs: Inputs | Mapping[str, int]) -> Inputs:
    """Inputs as given, or as read from a saved config."""
    checked = Inputs(**inputs) if isinstance(inputs, Mapping) else Inputs(*inputs)
    if min(checked) < 0:
        raise ValueError(f"numbers of input channels must not be negative, got {checked}")
    return checked


def mask_of(points: Float[Tensor, "batch points 3"], lengths: Int[Tensor, " batch"] | None) -> Mask | None:
    """The mask of points: True at the first `lengths[b]` of cloud b, False at padding."""
    if points.ndim != 3 or points.shape[-1] != 3:
        raise ValueError(f"a network takes clouds (B, N, 3), got {tuple(points.shape)}")
    if lengths is None:
        return None
    if lengths.shape != points.shape[:1]:
        raise ValueError(f"{len(points)} clouds need as many lengths, got {tuple(lengths.shape)}")
    # Reading the values would break a compiled graph.
    if is_concrete(lengths) and lengths.numel() and not (lengths.min() >= 1 and lengths.max() <= points.shape[1]):
        raise ValueError(f"lengths of clouds padded to {points.shape[1]} points must be 1 to {points.shape[1]}")
    return first_mask(lengths.to(points.device), points.shape[1])


def first_mask(counts: Int[Tensor, " batch"], points: int) -> Mask:
    """A mask that is True at the first `counts[b]` of the points of cloud b."""
    return torch.arange(points, device=counts.device) < counts.unsqueeze(-1)


def zero_padding(x: Tensor | None, mask: Mask | None) -> Tensor | None:
    """Set padding to zero, whatever it holds: 0 · NaN would be NaN."""
    return x if x is None or mask is None else x.where(mask_like(mask, x.ndim), 0)


def input_channels(neurons: Neurons, inputs: Inputs) -> Any:
    """Channels of the features that `lift_all` makes."""
    channels = kit_of(neurons).width(3) * (1 + inputs.vectors)
    return channels + Channels(inputs.scalars, 0) if neurons == "hybrid" else channels


def lift_all(
    lift: Callable[..., Any], points: Tensor, vectors: Tensor | None, inputs: Inputs, scalars: Tensor | None = None
) -> Any:
    """Lift the points and their further vectors `(B, N, 3, V)` to features.

    Hybrid features start with the scalars of the points; other networks mix these in later, by `JoinScalars`.
    """
    given = 0 if vectors is None else vectors.shape[-1]
    if given != inputs.vectors:
        hint = "; one vector per point is (B, N, 3, 1)" if vectors is not None and vectors.ndim == 3 else ""
        raise ValueError(f"the network was built for {inputs.vectors} further vectors per point, got {given}{hint}")
    clouds = (points, *(() if vectors is None else vectors.unbind(-1)))
    if lift is not hybrid.lift:
        return lift(*clouds)
    check_scalar_inputs(scalars, inputs.scalars)
    return lift(*clouds, scalars=scalars)


def check_scalar_inputs(scalars: Tensor | None, expected: int) -> None:
    """Refuse another number of scalars than the network was built for."""
    given = 0 if scalars is None else scalars.shape[-1]
    if given != expected:
        raise ValueError(f"the network was built for {expected} scalars per point, got {given}")


class JoinScalars(nn.Module):
    """Mix scalars of the points into the invariants, whose number stays the same; hybrid features have them already."""

    def __init__(self, neurons: Neurons, channels: int, inputs: Inputs, *, negative_slope: float, norm: Norm) -> None:
        super().__init__()
        self.scalars, self.block = inputs.scalars, None
        if inputs.scalars and neurons != "hybrid":
            self.block = scalar.Block(channels + inputs.scalars, channels, negative_slope=negative_slope, norm=norm)

    def forward(self, x: Tensor, scalars: Tensor | None, mask: Mask | None) -> Tensor:
        check_scalar_inputs(scalars, self.scalars)
        return x if scalars is None or self.block is None else self.block(torch.cat([x, scalars], dim=-1), mask)


def pool_invariants(
    invariant: nn.Module, join: JoinScalars, x: Tensor | Features, scalars: Tensor | None, mask: Mask | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Maximum and mean over the points of the invariants of x, with scalars mixed in, and the frames."""
    check_scalar_inputs(scalars, join.scalars)
    if join.block is None:  # projection and pool in one kernel
        return invariant(x, mask, pool=True)
    invariants, frame = invariant(x, mask, return_frame=True)
    invariants = join(invariants, scalars, mask)
    return masked_max(invariants, mask), masked_mean(invariants, [1], mask).squeeze(1), frame
