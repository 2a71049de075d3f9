"""The layers of `vn_layers.py` and its copies, transcribed in plain torch in their own axis order [B, C, 3, N, ...].

Slow, and independent of the library: what its compat layers are compared with. Names and parameters are the authors'.
"""

import torch
from torch import nn

EPS = 1e-6


def mix(linear, x):
    """A linear map of the channels, which stand second."""
    return torch.einsum("oc,bc...->bo...", linear.weight, x)


def dot(a, b):
    return (a * b).sum(2, keepdim=True)


def length(x):
    return dot(x, x).sqrt()


def direction(channels, out, shared):
    return nn.Linear(channels, 1 if shared else out, bias=False)


def leaky(q, d, slope):
    across = q - dot(q, d) / (dot(d, d) + EPS) * d
    return slope * q + (1 - slope) * torch.where(dot(q, d) >= 0, q, across)


class VNLinear(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x):
        return mix(self.map_to_feat, x)


VNSimpleLinear = VNLinear


class VNLeakyReLU(nn.Module):
    def __init__(self, in_channels, share_nonlinearity=False, negative_slope=0.2):
        super().__init__()
        self.map_to_dir = direction(in_channels, in_channels, share_nonlinearity)
        self.slope = negative_slope

    def forward(self, x):
        return leaky(x, mix(self.map_to_dir, x), self.slope)


class VNBatchNorm(nn.Module):
    def __init__(self, num_features, dim):
        super().__init__()
        self.bn = (nn.BatchNorm2d if dim == 5 else nn.BatchNorm1d)(num_features)

    def forward(self, x):
        size = length(x).squeeze(2) + EPS
        return x * (self.bn(size) / size).unsqueeze(2)


class VNLinearLeakyReLU(nn.Module):
    def __init__(
        self, in_channels, out_channels, dim=5, share_nonlinearity=False, negative_slope=0.2, use_batchnorm=True
    ):
        super().__init__()
        self.map_to_feat = nn.Linear(in_channels, out_channels, bias=False)
        self.batchnorm = VNBatchNorm(out_channels, dim) if use_batchnorm else None
        self.map_to_dir = direction(in_channels, out_channels, share_nonlinearity)
        self.slope = negative_slope

    def forward(self, x):
        q = mix(self.map_to_feat, x)
        q = q if self.batchnorm is None else self.batchnorm(q)
        return leaky(q, mix(self.map_to_dir, x), self.slope)


class VNLinearAndLeakyReLU(nn.Module):
    def __init__(self, in_channels, out_channels, dim=5, share_nonlinearity=False, negative_slope=0.2):
        super().__init__()
        self.linear = VNLinear(in_channels, out_channels)
        self.batchnorm = VNBatchNorm(out_channels, dim)
        self.leaky_relu = VNLeakyReLU(out_channels, share_nonlinearity, negative_slope)

    def forward(self, x):
        return self.leaky_relu(self.batchnorm(self.linear(x)))


class VNMaxPool(nn.Module):
    def __init__(self, in_channels, share_nonlinearity=False):
        super().__init__()
        self.map_to_dir = direction(in_channels, in_channels, share_nonlinearity)

    def forward(self, x):
        reach = dot(x, mix(self.map_to_dir, x))
        best = reach.argmax(-1, keepdim=True).expand(*x.shape[:-1], 1)
        return x.gather(-1, best).squeeze(-1)


def mean_pool(x, dim=-1, keepdim=False):
    return x.sum(dim, keepdim=keepdim) / x.shape[dim]


class VNStdFeature(nn.Module):
    def __init__(
        self,
        in_channels,
        dim=4,
        normalize_frame=False,
        share_nonlinearity=False,
        negative_slope=0.2,
        use_batchnorm=True,
    ):
        super().__init__()
        more = {"dim": dim, "share_nonlinearity": share_nonlinearity, "negative_slope": negative_slope}
        more["use_batchnorm"] = use_batchnorm
        self.vn1 = VNLinearLeakyReLU(in_channels, in_channels // 2, **more)
        self.vn2 = VNLinearLeakyReLU(in_channels // 2, in_channels // 4, **more)
        self.vn_lin = nn.Linear(in_channels // 4, 2 if normalize_frame else 3, bias=False)
        self.normalize_frame = normalize_frame

    def forward(self, x):
        z = mix(self.vn_lin, self.vn2(self.vn1(x)))
        if self.normalize_frame:
            v, w = z[:, 0], z[:, 1]
            u = v / (v.norm(dim=1, keepdim=True) + EPS)
            w = w - (w * u).sum(1, keepdim=True) * u
            w = w / (w.norm(dim=1, keepdim=True) + EPS)
            z = torch.stack([u, w, torch.linalg.cross(u, w, dim=1)], dim=1)
        return torch.einsum("bij...,bkj...->bik...", x, z), z.transpose(1, 2)


class VNResnetBlockFC(nn.Module):
    def __init__(self, size_in, size_out=None, size_h=None, negative_slope=0.2):
        super().__init__()
        size_out = size_out or size_in
        size_h = size_h or min(size_in, size_out)
        self.fc_0, self.fc_1 = VNLinear(size_in, size_h), VNLinear(size_h, size_out)
        self.actvn_0 = VNLeakyReLU(size_in, negative_slope=negative_slope)
        self.actvn_1 = VNLeakyReLU(size_h, negative_slope=negative_slope)
        self.shortcut = VNLinear(size_in, size_out) if size_in != size_out else None

    def forward(self, x):
        net = self.fc_1(self.actvn_1(self.fc_0(self.actvn_0(x))))
        return net + (x if self.shortcut is None else self.shortcut(x))


class VNLayerNorm(nn.Module):
    def __init__(self, dim, eps=EPS):
        super().__init__()
        self.eps, self.ln = eps, nn.Module()
        self.ln.gamma = nn.Parameter(torch.ones(dim))
        self.ln.register_buffer("beta", torch.zeros(dim))

    def forward(self, x):
        size = length(x)
        mean, variance = size.mean(1, keepdim=True), size.var(1, unbiased=False, keepdim=True)
        per_channel = [1, -1] + [1] * (x.ndim - 2)
        new = (size - mean) / (variance + 1e-5).sqrt() * self.ln.gamma.view(per_channel)
        return x / size.clamp_min(self.eps) * (new + self.ln.beta.view(per_channel))


class VNSoftplus(nn.Module):
    def __init__(self, in_channels, share_nonlinearity=False, negative_slope=0.0):
        super().__init__()
        self.map_to_dir = direction(in_channels, in_channels, share_nonlinearity)
        self.slope = negative_slope

    def forward(self, x):
        d = mix(self.map_to_dir, x)
        angle = torch.acos(dot(x, d) / (length(x) * length(d) + EPS))
        share = torch.cos(angle / 2) ** 2
        across = x - dot(x, d) / (dot(d, d) + EPS) * d
        return self.slope * x + (1 - self.slope) * (share * x + (1 - share) * across)


class VNBilinear(nn.Module):
    def __init__(self, in_channels1, in_channels2, out_channels):
        super().__init__()
        self.map_to_feat = nn.Bilinear(in_channels1, in_channels2, out_channels, bias=False)

    def forward(self, x, labels):
        return self.map_to_feat(x.transpose(1, -1), labels.repeat(1, 3, 1)).transpose(1, -1)


class VNMeanPool(nn.Module):
    def __init__(self, kernel=2):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        groups = list(x.split(self.kernel, dim=-1))
        if self.kernel != 2 and groups[-1].shape[-1] != self.kernel:
            groups.pop()
        return torch.stack([group.mean(-1) for group in groups], dim=-1)


def knn(x, k):
    distance = (x[:, :, :, None] - x[:, :, None]).square().sum(1)
    return distance.topk(k, largest=False).indices


def _around(x, k, idx, x_coord=None):
    """Every point's neighbors, [B, C, 3, N, k]."""
    if idx is None:
        idx = knn(x.flatten(1, 2) if x_coord is None else x_coord, k)
    return torch.stack([sample[:, :, rows] for sample, rows in zip(x, idx, strict=True)])


def get_graph_feature(x, k=20, idx=None, x_coord=None):
    near = _around(x, k, idx, x_coord)
    own = x.unsqueeze(-1).expand_as(near)
    return torch.cat([near - own, own], 1)


def get_graph_feature_cross(x, k=20, idx=None):
    near = _around(x, k, idx)
    own = x.unsqueeze(-1).expand_as(near)
    return torch.cat([near - own, own, torch.linalg.cross(near, own, dim=2)], 1)


def get_graph_mean(x, k=20, idx=None):
    return mean_pool(_around(x, k, idx)) - x


def get_shell_mean_cross(x, k=10, nk=4, idx_all=None):
    near = _around(x, nk * k, idx_all)
    means = [mean_pool(near[..., i * k : (i + 1) * k]) - x for i in range(nk)]
    return torch.cat([t for g in means for t in (g, torch.linalg.cross(g, x, dim=2))], 1)
