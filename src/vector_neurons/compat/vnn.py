"""The names, axis order `[B, C, 3, N, ...]` and parameter names of the authors' `vn_layers.py` and `vn_dgcnn_util.py`.

Change one import, keep the network and its checkpoints:

    from vector_neurons.compat.vnn import *    # was: from models.vn_layers import *

State dicts load as they are and outputs are the same, eps included. What was broken there works: the detached
`VNLinearAndLeakyReLU` can be built, `normalize_frame` is right at every batch size, nothing asks for CUDA.
"""

from torch import Tensor, nn

from ..geometry import neighbours
from ..nn import functional as VF

EPS = 1e-6


def _ours(x: Tensor) -> Tensor:
    return x.movedim((1, 2), (-1, -2))  # [B, C, 3, N, ...] → (B, N, ..., 3, C)


def _theirs(x: Tensor) -> Tensor:
    return x.movedim((-1, -2), (1, 2))


def _bend(q: Tensor, direction: nn.Linear, source: Tensor, slope: float) -> Tensor:
    return VF.leaky_relu(q, VF.linear(source, direction.weight), slope, eps=EPS)


def _direction(in_channels: int, out_channels: int, shared: bool) -> nn.Linear:
    return nn.Linear(in_channels, 1 if shared else out_channels, bias=False)


class VNLinear(nn.Module):
    """`vector_neurons.Linear`."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return _theirs(VF.linear(_ours(x), self.map_to_feat.weight))


class VNLeakyReLU(nn.Module):
    """`vector_neurons.LeakyReLU`."""

    def __init__(self, in_channels: int, share_nonlinearity: bool = False, negative_slope: float = 0.2) -> None:
        super().__init__()
        self.map_to_dir = _direction(in_channels, in_channels, share_nonlinearity)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        x = _ours(x)
        return _theirs(_bend(x, self.map_to_dir, x, self.negative_slope))


class VNBatchNorm(nn.Module):
    """`vector_neurons.BatchNorm`, with the authors' start (scale 1 about 0). `dim` is accepted and not needed."""

    def __init__(self, num_features: int, dim: int = 5, mode: str = "norm") -> None:
        super().__init__()
        if mode not in ("norm", "log"):
            raise ValueError(f"unknown batch norm mode {mode!r}: choose 'norm' or 'log'")
        self.dim, self.mode = dim, mode
        self.bn = nn.BatchNorm1d(num_features)

    def forward(self, x: Tensor) -> Tensor:
        return _theirs(VF.batch_norm(_ours(x), self.bn, log=self.mode == "log", eps=EPS))


class VNLinearLeakyReLU(nn.Module):
    """`vector_neurons.Block` with the built-in non-linearity."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dim: int = 5,
        share_nonlinearity: bool = False,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.dim, self.negative_slope = dim, negative_slope
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)
        self.batchnorm = VNBatchNorm(out_channels, dim=dim)
        self.map_to_dir = _direction(in_channels, out_channels, share_nonlinearity)

    def forward(self, x: Tensor) -> Tensor:
        x = _ours(x)
        q = VF.batch_norm(VF.linear(x, self.map_to_feat.weight), self.batchnorm.bn, eps=EPS)
        return _theirs(_bend(q, self.map_to_dir, x, self.negative_slope))


class VNLinearAndLeakyReLU(nn.Module):
    """`vector_neurons.Block` with the detached non-linearity."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dim: int = 5,
        share_nonlinearity: bool = False,
        use_batchnorm: str = "norm",
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.dim, self.share_nonlinearity, self.negative_slope = dim, share_nonlinearity, negative_slope
        self.use_batchnorm = use_batchnorm
        self.linear = VNLinear(in_channels, out_channels)
        self.leaky_relu = VNLeakyReLU(out_channels, share_nonlinearity, negative_slope)
        if use_batchnorm != "none":
            self.batchnorm = VNBatchNorm(out_channels, dim=dim, mode=use_batchnorm)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.use_batchnorm != "none":
            x = self.batchnorm(x)
        bent: Tensor = self.leaky_relu(x)
        return bent


class VNMaxPool(nn.Module):
    """`vector_neurons.MaxPool` over the last axis."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.map_to_dir = nn.Linear(in_channels, in_channels, bias=False).requires_grad_(False)  # a choice has none

    def forward(self, x: Tensor) -> Tensor:
        x = _ours(x)
        return _theirs(VF.max_pool(x, VF.linear(x, self.map_to_dir.weight)))


def mean_pool(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """`vector_neurons.MeanPool`: the mean over the last axis."""
    return x.mean(dim=dim, keepdim=keepdim)


class VNStdFeature(nn.Module):
    """`vector_neurons.Invariant`: gives the features in the frame, `[B, C, 3, N]`, and the frame `[B, 3, 3, N]`."""

    def __init__(
        self,
        in_channels: int,
        dim: int = 4,
        normalize_frame: bool = False,
        share_nonlinearity: bool = False,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        self.dim, self.normalize_frame = dim, normalize_frame
        half, quarter = in_channels // 2, in_channels // 4
        self.vn1 = VNLinearLeakyReLU(in_channels, half, dim, share_nonlinearity, negative_slope)
        self.vn2 = VNLinearLeakyReLU(half, quarter, dim, share_nonlinearity, negative_slope)
        self.vn_lin = nn.Linear(quarter, 2 if normalize_frame else 3, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frame = VF.linear(_ours(self.vn2(self.vn1(x))), self.vn_lin.weight)
        if self.normalize_frame:
            frame = VF.orthonormal_frame(frame, eps=EPS)
        read = VF.invariant_product(_ours(x), frame)
        return _theirs(read), frame.movedim((-2, -1), (1, 2))


def knn(x: Tensor, k: int) -> Tensor:
    """`vector_neurons.knn` of points `[B, D, N]`: indices `[B, N, k]`."""
    return neighbours.knn(x.mT, k)


def get_graph_feature(x: Tensor, k: int = 20, idx: Tensor | None = None, x_coord: Tensor | None = None) -> Tensor:
    """Edges `[x_m - x_n, x_n]` of vectors `[B, C, 3, N]`, as `[B, 2 C, 3, N, K]`.

    The graph is `idx`, or that of the coordinates `x_coord` `[B, 3, N]`, or that of the features themselves.
    """
    if idx is None and x_coord is not None:
        idx = knn(x_coord.flatten(1, -2), k)
    return _graph(x, k, idx, cross=False)


def get_graph_feature_cross(x: Tensor, k: int = 20, idx: Tensor | None = None) -> Tensor:
    """Edges `[x_m - x_n, x_n, x_m × x_n]` of vectors `[B, C, 3, N]`, as `[B, 3 C, 3, N, K]`."""
    return _graph(x, k, idx, cross=True)


def _graph(x: Tensor, k: int, idx: Tensor | None, cross: bool) -> Tensor:
    x = _ours(x)
    if idx is None:
        idx = neighbours.knn(x, k)
    return _theirs(neighbours.edge_features(x, idx, cross=cross))


__all__ = [
    "EPS",
    "VNBatchNorm",
    "VNLeakyReLU",
    "VNLinear",
    "VNLinearAndLeakyReLU",
    "VNLinearLeakyReLU",
    "VNMaxPool",
    "VNStdFeature",
    "get_graph_feature",
    "get_graph_feature_cross",
    "knn",
    "mean_pool",
]
