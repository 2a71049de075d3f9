"""The authors' four networks, transcribed independently of the library: what its models are compared with.

Plain functions of a state dict with the authors' parameter names, in their axis order (batch, channel, 3, point,
neighbor), without dropout. States with ``pool…`` weights pool by VN max, others by the mean. In training the
statistics of the batch are used; the running ones in the state stay as they are.
"""

import torch
from torch import Generator, Tensor

State = dict[str, Tensor]

EPS = 1e-6  # the authors' guard of divisions by lengths
BN_EPS = 1e-5  # torch's default in batch norm


class _Layers:
    """The layers of a state dict, called by name."""

    def __init__(self, state: State, slope: float, training: bool) -> None:
        self.state, self.slope, self.training = state, slope, training

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Mix channels (axis 1); the kernel axis of a 1x1 convolution is dropped."""
        return torch.einsum("oc,bc...->bo...", self.state[f"{name}.weight"].flatten(1), x)

    def affine(self, name: str, x: Tensor) -> Tensor:
        return self.linear(name, x) + _along_channels(self.state[f"{name}.bias"], x)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Scalar batch norm over every axis but the channels, with the biased variance."""
        if self.training:
            others = [axis for axis in range(x.dim()) if axis != 1]
            mean = x.mean(others)
            var = (x - _along_channels(mean, x)).square().mean(others)  # x.var sums less accurately
        else:
            mean, var = self.state[f"{name}.running_mean"], self.state[f"{name}.running_var"]
        scale = self.state[f"{name}.weight"] / (var + BN_EPS).sqrt()
        centred, bias = x - _along_channels(mean, x), _along_channels(self.state[f"{name}.bias"], x)
        return centred * _along_channels(scale, x) + bias

    def vector_norm(self, name: str, v: Tensor) -> Tensor:
        """Batch norm of the lengths; a negative normalised length turns the vector round."""
        length = torch.linalg.vector_norm(v, dim=2) + EPS
        return v * (self.norm(f"{name}.bn", length) / length).unsqueeze(2)

    def block(self, name: str, v: Tensor) -> Tensor:
        """Linear, batch norm of lengths, leaky ReLU against a learned direction (per channel or shared)."""
        q = self.vector_norm(f"{name}.batchnorm", self.linear(f"{name}.map_to_feat", v))
        d = self.linear(f"{name}.map_to_dir", v)
        qd, dd = (q * d).sum(2, keepdim=True), (d * d).sum(2, keepdim=True)
        return torch.where(qd < 0, q - (1 - self.slope) * qd / (dd + EPS) * d, q)

    def pool(self, name: str, v: Tensor) -> Tensor:
        """Over the last axis: the mean, or per channel the vector that reaches furthest along its direction."""
        if f"{name}.map_to_dir.weight" not in self.state:
            return v.mean(-1)
        reach = (self.linear(f"{name}.map_to_dir", v) * v).sum(2, keepdim=True)  # (B, C, 1, ..., K)
        return v.gather(-1, reach.argmax(-1, keepdim=True).expand(*v.shape[:-1], 1)).squeeze(-1)

    def frame(self, name: str, v: Tensor) -> Tensor:
        """Three learned vectors per point: (B, 3 vectors, 3, N)."""
        return self.linear(f"{name}.vn_lin", self.block(f"{name}.vn2", self.block(f"{name}.vn1", v)))

    def feature_transform(self, name: str, v: Tensor) -> Tensor:
        """A global vector feature with as many channels as the input, repeated on every point."""
        g = self.block(f"{name}.conv3", self.block(f"{name}.conv2", self.block(f"{name}.conv1", v)))
        g = self.block(f"{name}.fc2", self.block(f"{name}.fc1", self.pool(f"{name}.pool", g)))  # (B, 85, 3)
        return self.linear(f"{name}.fc3.map_to_feat", g).unsqueeze(-1).expand_as(v)

    def dense(self, name: str, norm: str, x: Tensor, bias: bool = True) -> Tensor:
        """A scalar layer: affine (or linear), batch norm, leaky ReLU."""
        x = self.norm(norm, self.affine(name, x) if bias else self.linear(name, x))
        return torch.where(x < 0, self.slope * x, x)


def _along_channels(per_channel: Tensor, x: Tensor) -> Tensor:
    return per_channel.reshape(1, -1, *[1] * (x.dim() - 2))


def _edges(v: Tensor, k: int, cross: bool = False) -> Tensor:
    """(B, C, 3, N) -> (B, 2C or 3C, 3, N, k): [x_m - x_n, x_n] and x_m x x_n, over the k nearest m of n, n included."""
    flat = v.flatten(1, 2).transpose(1, 2)  # (B, N, 3C)
    distance = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distance.topk(k, largest=False).indices  # (B, N, k)
    index = nearest.flatten(1)[:, None, None].expand(*v.shape[:3], -1)
    neighbor = v.gather(3, index).unflatten(3, nearest.shape[1:])
    centre = v.unsqueeze(-1).expand_as(neighbor)
    parts = [neighbor - centre, centre] + ([torch.linalg.cross(neighbor, centre, dim=2)] if cross else [])
    return torch.cat(parts, 1)


def _with_mean(v: Tensor) -> Tensor:
    return torch.cat([v, v.mean(-1, keepdim=True).expand_as(v)], 1)


def _in_frame(v: Tensor, frame: Tensor) -> Tensor:
    """Coordinates of every vector in the frame of its point, channel by channel: (B, 3C, N)."""
    return torch.einsum("bijn,bkjn->bikn", v, frame).flatten(1, 2)


def vn_dgcnn_cls(state: State, points: Tensor, *, k: int = 20, training: bool = False) -> Tensor:
    """Points (B, 3, N) to logits (B, classes)."""
    net = _Layers(state, 0.2, training)
    v, levels = points.unsqueeze(1), []
    for i in (1, 2, 3, 4):
        v = net.pool(f"pool{i}", net.block(f"conv{i}", _edges(v, k)))
        levels.append(v)
    v = _with_mean(net.block("conv5", torch.cat(levels, 1)))
    x = _in_frame(v, net.frame("std_feature", v))  # (B, 2046, N)
    x = torch.cat([x.amax(-1), x.mean(-1)], 1)
    x = net.dense("linear2", "bn2", net.dense("linear1", "bn1", x))
    return net.affine("linear3", x)


def vn_dgcnn_partseg(state: State, points: Tensor, category: Tensor, *, k: int = 40, training: bool = False) -> Tensor:
    """Points (B, 3, N) and one-hot category (B, 16) to logits (B, parts, N)."""
    net = _Layers(state, 0.2, training)
    v1 = net.pool("pool1", net.block("conv2", net.block("conv1", _edges(points.unsqueeze(1), k))))
    v2 = net.pool("pool2", net.block("conv4", net.block("conv3", _edges(v1, k))))
    v3 = net.pool("pool3", net.block("conv5", _edges(v2, k)))
    v123 = torch.cat([v1, v2, v3], 1)
    v = _with_mean(net.block("conv6", v123))
    frame = net.frame("std_feature", v)
    whole = _in_frame(v, frame).amax(-1)  # (B, 2046)
    kind = net.dense("conv7.0", "bn7", category.to(points).unsqueeze(-1), bias=False).squeeze(-1)  # (B, 64)
    shared = torch.cat([whole, kind], 1).unsqueeze(-1).expand(-1, -1, points.shape[-1])
    x = torch.cat([shared, _in_frame(v123, frame)], 1)  # (B, 2299, N)
    for i in (8, 9, 10):
        x = net.dense(f"conv{i}.0", f"bn{i}", x, bias=False)
    return net.linear("conv11", x)


def vn_pointnet_cls(state: State, points: Tensor, *, k: int = 20, training: bool = False) -> Tensor:
    """Points (B, 3, N) to log-probabilities (B, classes)."""
    net = _Layers(state, 0.0, training)
    v = net.pool("feat.pool", net.block("feat.conv_pos", _edges(points.unsqueeze(1), k, cross=True)))
    v = net.block("feat.conv1", v)
    v = net.block("feat.conv2", torch.cat([v, net.feature_transform("feat.fstn", v)], 1))
    v = _with_mean(net.vector_norm("feat.bn3", net.linear("feat.conv3.map_to_feat", v)))
    x = _in_frame(v, net.frame("feat.std_feature", v)).amax(-1)  # (B, 2046)
    x = net.dense("fc2", "bn2", net.dense("fc1", "bn1", x))
    return net.affine("fc3", x).log_softmax(1)


def vn_pointnet_partseg(
    state: State, points: Tensor, category: Tensor, *, k: int = 20, training: bool = False
) -> Tensor:
    """Points (B, 3, N) and one-hot category (B, 16) to log-probabilities (B, N, parts)."""
    net = _Layers(state, 0.0, training)
    v = net.pool("pool", net.block("conv_pos", _edges(points.unsqueeze(1), k, cross=True)))
    v1 = net.block("conv1", v)
    v2 = net.block("conv2", v1)
    v3 = net.block("conv3", v2)
    v4 = net.block("conv4", torch.cat([v3, net.feature_transform("fstn", v3)], 1))
    v = _with_mean(net.vector_norm("bn5", net.linear("conv5.map_to_feat", v4)))
    frame = net.frame("std_feature", v)
    own = _in_frame(v, frame)  # (B, 4092, N)
    shared = torch.cat([own.amax(-1), category.to(points)], 1).unsqueeze(-1).expand(-1, -1, points.shape[-1])
    x = torch.cat([shared, _in_frame(torch.cat([v1, v2, v3, v4], 1), frame), own], 1)  # (B, 9025, N)
    for i in (1, 2, 3):
        x = net.dense(f"convs{i}", f"bns{i}", x)
    return net.affine("convs4", x).transpose(1, 2).log_softmax(-1)


# Kind of layer, then of each its name, channels in, channels out.
_LAYERS = {
    "vn_dgcnn_cls": """
    block conv1 2 21, conv2 42 21, conv3 42 42, conv4 84 85; shared conv5 169 341; frame std_feature 682 3
    pool pool1 21 21, pool2 21 21, pool3 42 42, pool4 85 85
    affine linear1 4092 512, linear2 512 256, linear3 256 classes; norm bn1 512 512, bn2 256 256""",
    "vn_dgcnn_partseg": """
    block conv1 2 21, conv2 21 21, conv3 42 21, conv4 21 21, conv5 42 21; shared conv6 63 341; frame std_feature 682 3
    pool pool1 21 21, pool2 21 21, pool3 21 21; norm bn7 64 64, bn8 256 256, bn9 256 256, bn10 128 128
    kernel conv7.0 16 64, conv8.0 2299 256, conv9.0 256 256, conv10.0 256 128, conv11 128 classes""",
    "vn_pointnet_cls": """
    block feat.conv_pos 3 21, feat.conv1 21 21, feat.conv2 42 42; pool feat.pool 21 21; transform feat.fstn 21 21
    linear feat.conv3 42 341; lengths feat.bn3.bn 341 341; frame feat.std_feature 682 3
    affine fc1 2046 512, fc2 512 256, fc3 256 classes; norm bn1 512 512, bn2 256 256""",
    "vn_pointnet_partseg": """
    block conv_pos 3 21, conv1 21 21, conv2 21 42, conv3 42 42, conv4 84 170; pool pool 21 21; transform fstn 42 42
    linear conv5 170 682; lengths bn5.bn 682 682; frame std_feature 1364 3
    convolution convs1 9025 256, convs2 256 256, convs3 256 128, convs4 128 classes
    norm bns1 256 256, bns2 256 256, bns3 128 128""",
}


def _read(table: str) -> list[tuple[str, str, int, int]]:
    """Rows of kind, name, channels in, channels out; a frame and a transform are written out as their layers."""
    rows = []
    for kind, layers in (part.split(maxsplit=1) for part in table.strip().replace("\n", ";").split(";")):
        for name, i, o in ((n, int(i), int(o)) for n, i, o in (layer.split() for layer in layers.split(", "))):
            if kind == "frame":
                rows += _read(f"block {name}.vn1 {i} {i // 2}, {name}.vn2 {i // 2} {i // 4}")
                rows += _read(f"matrix {name}.vn_lin {i // 4} {o}")
            elif kind == "transform":
                rows += _read(f"block {name}.conv1 {i} 21, {name}.conv2 21 42, {name}.conv3 42 341")
                rows += _read(f"pool {name}.pool 341 341; linear {name}.fc3 85 {o}")
                rows += _read(f"block {name}.fc1 341 170, {name}.fc2 170 85")
            else:
                rows.append((kind, name, i, o))
    return rows


def _draw(kind: str, i: int, o: int, generator: Generator | None) -> State:
    """The tensors of one layer: weights that keep the scale, batch norms that have seen data."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(o, generator=generator, dtype=torch.float64)

    if kind in ("norm", "lengths"):
        mean = uniform(0.7, 1.3) if kind == "lengths" else 0.3 * normal(o)
        drawn = {"weight": uniform(0.5, 1.5), "bias": 0.5 * normal(o), "running_mean": mean}
        return drawn | {"running_var": uniform(0.5, 1.5), "num_batches_tracked": torch.tensor(7)}
    if kind in ("block", "shared"):
        norm = {f"batchnorm.bn.{leaf}": t for leaf, t in _draw("lengths", o, o, generator).items()}
        direction = normal(1 if kind == "shared" else o, i) / i**0.5
        return {"map_to_feat.weight": normal(o, i) / i**0.5, "map_to_dir.weight": direction} | norm
    shape = (o, i, 1) if kind in ("kernel", "convolution") else (o, i)
    leaf = {"linear": "map_to_feat.weight", "pool": "map_to_dir.weight"}.get(kind, "weight")
    bias = {"bias": 0.1 * normal(o)} if kind in ("affine", "convolution") else {}
    return {leaf: normal(*shape) / i**0.5} | bias


def random_state(
    network: str, *, classes: int = 0, pooling: str = "mean", generator: Generator | None = None, dtype=torch.float64
) -> State:
    """The authors' names and shapes; `pooling` is "mean" or "max"; `classes` is 40, or 50 parts, unless given."""
    assert pooling in ("mean", "max")
    classes = classes or (50 if network.endswith("partseg") else 40)
    state: State = {}
    for kind, name, i, o in _read(_LAYERS[network].replace("classes", str(classes))):
        if kind == "pool" and pooling == "mean":
            continue
        drawn = {leaf: t.to(dtype if t.dim() else t.dtype) for leaf, t in _draw(kind, i, o, generator).items()}
        state |= {f"{name}.{leaf}": t for leaf, t in drawn.items()}
        if network == "vn_dgcnn_partseg" and kind == "norm":  # registered twice: bn8 is also conv8.1
            state |= {f"{name.replace('bn', 'conv')}.1.{leaf}": t for leaf, t in drawn.items()}
    return state


def parameter_count(state: State) -> int:
    """Entries of all parameters; buffers left out, tensors under two names counted once."""
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    return sum({id(t): t.numel() for key, t in state.items() if not key.endswith(buffers)}.values())
