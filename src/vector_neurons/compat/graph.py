"""Graphs and edges in the axis order `[B, C, 3, N, ...]` of the authors' `vn_dgcnn_util.py`."""

import torch
from torch import Tensor

from ..geometry import neighbors


def ours(x: Tensor) -> Tensor:
    """`[B, C, 3, N, ...]` → `(B, N, ..., 3, C)`."""
    return x.movedim((1, 2), (-1, -2))


def theirs(x: Tensor) -> Tensor:
    """`(B, N, ..., 3, C)` → `[B, C, 3, N, ...]`, contiguous: their networks call `.view` on it."""
    return x.movedim((-1, -2), (1, 2)).contiguous()


def knn(x: Tensor, k: int) -> Tensor:
    """`vector_neurons.knn` of points `[B, D, N]`: indices `[B, N, k]`.

    >>> vn.compat.vnn.knn(torch.randn(2, 3, 10), 4).shape
    torch.Size([2, 10, 4])
    """
    return neighbors.knn(x.mT, k)


def get_graph_feature(x: Tensor, k: int = 20, idx: Tensor | None = None, x_coord: Tensor | None = None) -> Tensor:
    """Edges `[x_m - x_n, x_n]` of vectors `[B, C, 3, N]`, as `[B, 2 C, 3, N, K]`.

    The graph is `idx`, or that of the coordinates `x_coord` `[B, 3, N]`, or that of the features themselves.

    >>> vn.compat.vnn.get_graph_feature(torch.randn(2, 1, 3, 10), k=4).shape
    torch.Size([2, 2, 3, 10, 4])
    """
    if idx is None and x_coord is not None:
        idx = knn(x_coord.flatten(1, -2), k)
    return _graph(x, k, idx, cross=False)


def get_graph_feature_cross(x: Tensor, k: int = 20, idx: Tensor | None = None) -> Tensor:
    """Edges `[x_m - x_n, x_n, x_m × x_n]` of vectors `[B, C, 3, N]`, as `[B, 3 C, 3, N, K]`.

    >>> vn.compat.vnn.get_graph_feature_cross(torch.randn(2, 1, 3, 10), k=4).shape
    torch.Size([2, 3, 3, 10, 4])
    """
    return _graph(x, k, idx, cross=True)


def get_graph_mean(x: Tensor, k: int = 20, idx: Tensor | None = None) -> Tensor:
    """The mean of the neighbors of each point, less the point: `[B, C, 3, N]` of vectors `[B, C, 3, N]`.

    >>> vn.compat.vnn.get_graph_mean(torch.randn(2, 1, 3, 10), k=4).shape
    torch.Size([2, 1, 3, 10])
    """
    x = ours(x)
    found = neighbors.knn(x, k) if idx is None else idx
    return theirs(neighbors.gather(x, found).mean(2) - x)


def get_shell_mean_cross(x: Tensor, k: int = 10, nk: int = 4, idx_all: Tensor | None = None) -> Tensor:
    """`get_graph_mean` g of `nk` shells of `k` neighbors, nearest first, each with `g × x`: `[B, 2 nk C, 3, N]`.

    >>> vn.compat.vnn.get_shell_mean_cross(torch.randn(2, 1, 3, 10), k=2, nk=3).shape
    torch.Size([2, 6, 3, 10])
    """
    found = neighbors.knn(ours(x), nk * k) if idx_all is None else idx_all
    means = [get_graph_mean(x, idx=found[..., i * k : (i + 1) * k]) for i in range(nk)]
    return torch.cat([part for g in means for part in (g, torch.linalg.cross(g, x, dim=2))], dim=1)


def _graph(x: Tensor, k: int, idx: Tensor | None, cross: bool) -> Tensor:
    x = ours(x)
    if idx is None:
        idx = neighbors.knn(x, k)
    return theirs(neighbors.edge_features(x, idx, cross=cross))
