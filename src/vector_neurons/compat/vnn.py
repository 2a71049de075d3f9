"""The names, axis order `[B, C, 3, N, ...]` and parameter names of the authors' `vn_layers.py` and `vn_dgcnn_util.py`.

Change one import, keep the network and its checkpoints:

    from vector_neurons.compat.vnn import *    # was: from models.vn_layers import *

State dicts load as they are and outputs are the same, eps included. What was broken there works: the detached
`VNLinearAndLeakyReLU` can be built, `normalize_frame` is right at every batch size, nothing asks for CUDA.
Layers that later copies of the file added (`layers_equi.py` of vnn-neural-implicits and NDF, and others) stand below
under their names; `docs/coming-from-vn-layers.md` lists them. Every result is contiguous, so that `.view` works on it.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nn import functional as VF
from .graph import (
    get_graph_feature,
    get_graph_feature_cross,
    get_graph_mean,
    get_shell_mean_cross,
    knn,
    ours,
    theirs,
)

EPS = 1e-6


def _check_slope(layer: nn.Module, slope: float) -> None:
    if isinstance(slope, bool):
        raise TypeError(
            f"{type(layer).__name__} got negative_slope={slope}, a flag where a slope is expected: in copies with "
            f"use_batchnorm in this place, write use_batchnorm={slope}"
        )


def _leaky_relu(q: Tensor, direction: nn.Linear, source: Tensor, slope: float) -> Tensor:
    return VF.leaky_relu(q, VF.linear(source, direction.weight), slope, eps=EPS)


def _direction(in_channels: int, out_channels: int, shared: bool) -> nn.Linear:
    return nn.Linear(in_channels, 1 if shared else out_channels, bias=False)


class VNLinear(nn.Module):
    """`vector_neurons.Linear`. Of copies with a bias, only those that have switched it off.

    >>> vn.compat.vnn.VNLinear(4, 8)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 8, 3, 10])
    """

    def __init__(self, in_channels: int, out_channels: int, bias: bool = False, bias_epsilon: float = 0.0) -> None:
        super().__init__()
        if bias or bias_epsilon:
            raise TypeError(
                f"{type(self).__name__} has no bias: a constant vector does not rotate with the input, so the network "
                "would not be equivariant; leave bias and bias_epsilon out"
            )
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return theirs(VF.linear(ours(x), self.map_to_feat.weight))


class VNSimpleLinear(VNLinear):
    """`VNLinear` under the name that copies give it beside a `VNLinear` of their own.

    >>> vn.compat.vnn.VNSimpleLinear(4, 8)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 8, 3, 10])
    """


class VNLeakyReLU(nn.Module):
    """`vector_neurons.LeakyReLU`.

    >>> vn.compat.vnn.VNLeakyReLU(4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3, 10])
    """

    def __init__(self, in_channels: int, share_nonlinearity: bool = False, negative_slope: float = 0.2) -> None:
        super().__init__()
        _check_slope(self, negative_slope)
        self.map_to_dir = _direction(in_channels, in_channels, share_nonlinearity)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        x = ours(x)
        return theirs(_leaky_relu(x, self.map_to_dir, x, self.negative_slope))


class VNBatchNorm(nn.Module):
    """`vector_neurons.BatchNorm`, with the authors' start (scale 1 about 0). `dim` is accepted and not needed.

    >>> vn.compat.vnn.VNBatchNorm(4, dim=4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3, 10])
    """

    def __init__(self, num_features: int, dim: int = 5, mode: str = "norm") -> None:
        super().__init__()
        if mode not in ("norm", "log"):
            raise ValueError(f"unknown batch norm mode {mode!r}: choose 'norm' or 'log'")
        self.dim, self.mode = dim, mode
        self.bn = nn.BatchNorm1d(num_features)

    def forward(self, x: Tensor) -> Tensor:
        return theirs(VF.batch_norm(ours(x), self.bn, log=self.mode == "log", eps=EPS))


class VNLinearLeakyReLU(nn.Module):
    """`vector_neurons.Block` with the built-in non-linearity; `use_batchnorm=False` leaves its norm out.

    >>> vn.compat.vnn.VNLinearLeakyReLU(4, 8, dim=4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 8, 3, 10])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        dim: int = 5,
        share_nonlinearity: bool = False,
        negative_slope: float = 0.2,
        *,
        use_batchnorm: bool = True,
    ) -> None:
        super().__init__()
        _check_slope(self, negative_slope)
        if not isinstance(use_batchnorm, bool):
            raise TypeError(f"VNLinearLeakyReLU takes use_batchnorm=True or False, got {use_batchnorm!r}")
        self.dim, self.negative_slope, self.use_batchnorm = dim, negative_slope, use_batchnorm
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)
        if use_batchnorm:
            self.batchnorm = VNBatchNorm(out_channels, dim=dim)
        self.map_to_dir = _direction(in_channels, out_channels, share_nonlinearity)

    def forward(self, x: Tensor) -> Tensor:
        x = ours(x)
        q = VF.linear(x, self.map_to_feat.weight)
        if self.use_batchnorm:
            q = VF.batch_norm(q, self.batchnorm.bn, eps=EPS)
        return theirs(_leaky_relu(q, self.map_to_dir, x, self.negative_slope))


class VNLinearAndLeakyReLU(nn.Module):
    """`vector_neurons.Block` with the detached non-linearity.

    >>> vn.compat.vnn.VNLinearAndLeakyReLU(4, 8, dim=4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 8, 3, 10])
    """

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
        if use_batchnorm not in ("norm", "log", "none"):
            raise ValueError(f"VNLinearAndLeakyReLU takes use_batchnorm='norm', 'log' or 'none', got {use_batchnorm!r}")
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
        return self.leaky_relu(x)


class VNMaxPool(nn.Module):
    """`vector_neurons.MaxPool` over the last axis.

    >>> vn.compat.vnn.VNMaxPool(4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, in_channels: int, share_nonlinearity: bool = False) -> None:
        super().__init__()
        self.map_to_dir = _direction(in_channels, in_channels, share_nonlinearity)
        self.map_to_dir.requires_grad_(False)  # a choice has no gradient

    def forward(self, x: Tensor) -> Tensor:
        x = ours(x)
        return theirs(VF.max_pool(x, VF.linear(x, self.map_to_dir.weight)))


def mean_pool(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """`vector_neurons.MeanPool`: the mean over the last axis.

    >>> vn.compat.vnn.mean_pool(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3])
    """
    return x.mean(dim=dim, keepdim=keepdim).contiguous()


class VNStdFeature(nn.Module):
    """`vector_neurons.Invariant`: gives the features in the frame, `[B, C, 3, N]`, and the frame `[B, 3, 3, N]`.

    >>> features, frame = vn.compat.vnn.VNStdFeature(8)(torch.randn(2, 8, 3, 10))
    >>> features.shape, frame.shape
    (torch.Size([2, 8, 3, 10]), torch.Size([2, 3, 3, 10]))
    """

    def __init__(
        self,
        in_channels: int,
        dim: int = 4,
        normalize_frame: bool = False,
        share_nonlinearity: bool = False,
        negative_slope: float = 0.2,
        *,
        use_batchnorm: bool = True,
    ) -> None:
        super().__init__()
        _check_slope(self, negative_slope)
        self.dim, self.normalize_frame, self.use_batchnorm = dim, normalize_frame, use_batchnorm
        widths = in_channels, in_channels // 2, in_channels // 4
        self.vn1, self.vn2 = (
            VNLinearLeakyReLU(a, b, dim, share_nonlinearity, negative_slope, use_batchnorm=use_batchnorm)
            for a, b in pairwise(widths)
        )
        self.vn_lin = nn.Linear(widths[-1], 2 if normalize_frame else 3, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frame = VF.linear(ours(self.vn2(self.vn1(x))), self.vn_lin.weight)
        if self.normalize_frame:
            frame = VF.orthonormal_frame(frame, eps=EPS)
        return theirs(VF.invariant_product(ours(x), frame)), frame.movedim((-2, -1), (1, 2)).contiguous()


class VNResnetBlockFC(nn.Module):
    """`S x + B a(A a(x))` with leaky ReLUs a.

    They have slope 0.2 in NDF and its forks; those of vnn-neural-implicits need `negative_slope=0.0`.

    >>> vn.compat.vnn.VNResnetBlockFC(4, 8)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 8, 3, 10])
    """

    def __init__(
        self, size_in: int, size_out: int | None = None, size_h: int | None = None, *, negative_slope: float = 0.2
    ) -> None:
        super().__init__()
        self.size_in, self.size_out = size_in, size_in if size_out is None else size_out
        self.size_h = min(size_in, self.size_out) if size_h is None else size_h
        self.fc_0, self.fc_1 = VNLinear(size_in, self.size_h), VNLinear(self.size_h, self.size_out)
        self.actvn_0 = VNLeakyReLU(size_in, negative_slope=negative_slope)
        self.actvn_1 = VNLeakyReLU(self.size_h, negative_slope=negative_slope)
        self.shortcut = None if size_in == self.size_out else VNLinear(size_in, self.size_out)
        nn.init.zeros_(self.fc_1.map_to_feat.weight)

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        change = self.fc_1(self.actvn_1(self.fc_0(self.actvn_0(x))))
        return kept.contiguous() + change


class _ChannelNorm(nn.Module):
    """Layer norm over the last axis that learns its scale alone, under the names of the copies."""

    beta: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.register_buffer("beta", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class VNLayerNorm(nn.Module):
    """Layer norm of the lengths over the channels of each element, directions kept, as in VN-Transformer.

    >>> vn.compat.vnn.VNLayerNorm(4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3, 10])
    """

    def __init__(self, dim: int, eps: float = EPS) -> None:
        super().__init__()
        self.eps, self.ln = eps, _ChannelNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = ours(x)
        length = VF.norm(x)
        scale = self.ln(length) / length.clamp_min(self.eps)
        return theirs(x * scale.unsqueeze(-2).to(x.dtype))


class VNSoftplus(VNLeakyReLU):
    """A smooth VN-LeakyReLU: removes a share `(1 - cos) / 2` of the part of x along its direction, by their angle.

    >>> vn.compat.vnn.VNSoftplus(4)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3, 10])
    """

    def __init__(self, in_channels: int, share_nonlinearity: bool = False, negative_slope: float = 0.0) -> None:
        super().__init__(in_channels, share_nonlinearity, negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        x = ours(x)
        k = VF.linear(x, self.map_to_dir.weight)
        along = (x * k).sum(-2, keepdim=True)
        lengths = (VF.norm(x) * VF.norm(k)).unsqueeze(-2)
        # cos²(angle / 2), without the arc cosine, whose gradient is infinite where the two are parallel.
        kept = (1 + along / (lengths + EPS)) / 2
        removed = (1 - self.negative_slope) * (1 - kept) * along / (VF.squared_norm(k).unsqueeze(-2) + EPS)
        return theirs((x - removed * k).to(x.dtype))


class VNBilinear(nn.Module):
    """Vectors `[B, C, 3, ...]` mixed by matrices that are linear in the labels `[B, 1, L]` of their samples.

    >>> vn.compat.vnn.VNBilinear(4, 2, 8)(torch.randn(2, 4, 3, 10), torch.randn(2, 1, 2)).shape
    torch.Size([2, 8, 3, 10])
    """

    def __init__(self, in_channels1: int, in_channels2: int, out_channels: int) -> None:
        super().__init__()
        self.map_to_feat = nn.Bilinear(in_channels1, in_channels2, out_channels, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        label = labels.flatten(1).to(x.dtype)
        if label.shape != (x.shape[0], self.map_to_feat.in2_features):
            expected = (x.shape[0], 1, self.map_to_feat.in2_features)
            raise ValueError(f"VNBilinear takes one label for each sample {expected}, got {tuple(labels.shape)}")
        return torch.einsum("ocl,bc...,bl->bo...", self.map_to_feat.weight, x, label).contiguous()


class VNMeanPool(nn.Module):
    """Means of each `kernel` consecutive points of `[B, C, 3, N]`; of an odd number, pairs leave the last one alone.

    >>> vn.compat.vnn.VNMeanPool(2)(torch.randn(2, 4, 3, 10)).shape
    torch.Size([2, 4, 3, 5])
    """

    def __init__(self, kernel: int = 2) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        means = F.avg_pool1d(x.flatten(1, 2), self.kernel, ceil_mode=self.kernel == 2)
        return means.view(*x.shape[:3], -1)


__all__ = [
    "EPS",
    "VNBatchNorm",
    "VNBilinear",
    "VNLayerNorm",
    "VNLeakyReLU",
    "VNLinear",
    "VNLinearAndLeakyReLU",
    "VNLinearLeakyReLU",
    "VNMaxPool",
    "VNMeanPool",
    "VNResnetBlockFC",
    "VNSimpleLinear",
    "VNSoftplus",
    "VNStdFeature",
    "get_graph_feature",
    "get_graph_feature_cross",
    "get_graph_mean",
    "get_shell_mean_cross",
    "knn",
    "mean_pool",
]
