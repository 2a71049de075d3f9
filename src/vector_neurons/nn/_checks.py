"""Check the shape of a layer's input, with an error that says what to change; find layers with hooks."""

from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)


def check_vectors(layer: nn.Module, x: Tensor, channels: int | None, *, rank: int = 2) -> None:
    """Refuse features whose vector axis is in the wrong place. `channels=None` accepts any number."""
    shape = tuple(x.shape)
    if x.ndim >= rank and channels in (None, shape[-1]):
        return
    if channels is None:
        hint = ""
    elif channels == 1 and shape[-1] in (2, 3):
        hint = "; make vectors of a cloud with lift(points)"
    elif x.ndim >= 2 and shape[-2] == channels:
        hint = "; the vector axis stands before the channels: pass x.mT"
    elif x.ndim >= 4 and shape[1] == channels:
        hint = (
            "; the reference's order (B, C, 3, N, ...) needs x.movedim((1, 2), (-1, -2)), or vector_neurons.compat.vnn"
        )
    else:
        hint = ""
    axes = _axes(rank - 2)
    raise ValueError(f"{type(layer).__name__} takes vectors ({axes}3, {channels or 'C'}), got {shape}{hint}")


def check_scalars(layer: nn.Module, x: Tensor, channels: int | None, *, rank: int = 1) -> None:
    """Refuse features whose channels are not the last axis. `channels=None` accepts any number."""
    if x.ndim >= rank and channels in (None, x.shape[-1]):
        return
    axes = _axes(rank - 1)
    raise ValueError(f"{type(layer).__name__} takes features ({axes}{channels or 'C'}), got {tuple(x.shape)}")


def _axes(leading: int) -> str:
    return ", ".join(["B", "N", "K"][:leading]) + ", " if leading else "..., "


def hooked(layer: nn.Module) -> bool:
    """Whether hooks are attached to this layer, other than those marked `_vn_passive`, which only record."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    everywhere = (_global_forward_hooks, _global_forward_pre_hooks, _global_backward_hooks, _global_backward_pre_hooks)
    return any(everywhere) or any(
        not getattr(hook, "_vn_passive", False) for attached in hooks for hook in attached.values()
    )
