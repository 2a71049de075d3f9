"""Refuse features whose axes stand in the wrong place, in one line that says what to do."""

from torch import Tensor, nn


def check_vectors(layer: nn.Module, x: Tensor, channels: int, *, rank: int = 2) -> None:
    """Refuse the one mistake people make: the vector axis in the wrong place."""
    shape = tuple(x.shape)
    if x.ndim >= rank and shape[-1] == channels:
        return
    if channels == 1 and shape[-1] in (2, 3):
        hint = "; make vectors of a cloud with lift(points)"
    elif x.ndim >= 2 and shape[-2] == channels:
        hint = "; the vector axis stands before the channels: pass x.mT"
    elif x.ndim >= 4 and shape[1] == channels:
        hint = (
            "; the reference's order (B, C, 3, N, ...) needs x.movedim((1, 2), (-1, -2)), or vector_neurons.compat.vnn"
        )
    else:
        hint = ""
    axes = ", ".join(["B", "N", "K"][: rank - 2]) + ", " if rank > 2 else "..., "
    raise ValueError(f"{type(layer).__name__} takes vectors ({axes}3, {channels}), got {shape}{hint}")


def hooked(layer: nn.Module) -> bool:
    """Whether somebody listens to what goes into or comes out of this layer."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def check_scalars(layer: nn.Module, x: Tensor, channels: int, *, rank: int = 1) -> None:
    """Refuse features whose channels do not stand last."""
    if x.ndim >= rank and x.shape[-1] == channels:
        return
    axes = ", ".join(["B", "N", "K"][: rank - 1]) + ", " if rank > 1 else "..., "
    raise ValueError(f"{type(layer).__name__} takes features ({axes}{channels}), got {tuple(x.shape)}")
