"""Checks of irregular graphs: edges `(2, E)`, and the cloud of each point, `batch` `(N,)`."""

import torch
from torch import Tensor, nn

from ._range import is_concrete


def check_edge_index(layer: nn.Module, edge_index: Tensor, x: Tensor, mask: Tensor | None, *, rank: int) -> None:
    """Refuse a graph that is not one of the rows of `x`, which has this rank."""
    name, shape = type(layer).__name__, tuple(x.shape)
    if x.ndim != rank:
        expected = "(N, 3, C)" if rank == 3 else "(N, C)"
        raise ValueError(f"{name} on an edge_index (2, E) takes x {expected}, all clouds in one graph, got {shape}")
    if edge_index.dtype != torch.int64 or edge_index.ndim != 2 or len(edge_index) != 2:
        found = f"{edge_index.dtype} {tuple(edge_index.shape)}"
        hint = ": pass edge_index.mT" if edge_index.ndim == 2 and edge_index.shape[1] == 2 != len(edge_index) else ""
        raise ValueError(f"{name} takes an edge_index (2, E) of int64, sources and targets, got {found}{hint}")
    if mask is not None:
        raise ValueError(f"{name} on an edge_index takes no mask: leave padding out of x and of the graph")
    if edge_index.numel() and is_concrete(edge_index) and not 0 <= edge_index.min() <= edge_index.max() < x.shape[0]:
        raise ValueError(f"{name}: edge_index must hold numbers of the points of x, 0 to {x.shape[0] - 1}")


def check_batch(
    layer: nn.Module, batch: Tensor | None, x: Tensor, mask: Tensor | None, size: int | None, *, rank: int
) -> tuple[Tensor, int]:
    """Refuse a vector of clouds that does not fit the rows of `x`, which has this rank; give it and their number."""
    name, shape = type(layer).__name__, tuple(x.shape)
    if batch is None:
        raise ValueError(f"{name} takes size, the number of clouds, only with batch, the cloud of each point")
    if x.ndim != rank:
        expected = "(N, 3, C)" if rank == 3 else "(N, C)"
        raise ValueError(f"{name} with batch (N,) takes x {expected}, the points of all clouds, got {shape}")
    if batch.dtype != torch.int64 or batch.shape != x.shape[:1]:
        found = f"{batch.dtype} {tuple(batch.shape)}"
        raise ValueError(f"{name} takes batch ({shape[0]},) of int64, the cloud of each point, got {found}")
    if mask is not None:
        raise ValueError(f"{name} takes batch or mask, not both: with batch there is no padding")
    if size is None:
        size = int(batch.max()) + 1 if batch.numel() else 0
    if batch.numel() and is_concrete(batch) and not 0 <= batch.min() <= batch.max() < size:
        raise ValueError(f"{name}: batch must hold numbers of clouds, 0 to {size - 1}")
    return batch, size
