"""VN-Transformer: attention whose weights are inner products of whole lists of vectors."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry.neighbours import knn
from ..nn.functional import masked_max, masked_mean
from ..nn.head import Head
from ..typing import Mask, Neurons
from .base import Classifier, Encoding, Inputs, JoinScalars, kit_of, lift_all, read_inputs

SLOPE = 0.2


class Attention(nn.Module):
    """Multi-head attention. A query and a key of vectors meet in their Frobenius product, which no rotation changes.

    That product is the ordinary one of the flattened lists, so torch's own attention does the work for both kinds of
    neurons.
    """

    def __init__(self, kit: Any, channels: int, heads: int) -> None:
        super().__init__()
        if channels % heads:
            raise ValueError(f"{channels} channels do not divide among {heads} heads")
        self.heads = heads
        self.query, self.key, self.value, self.out = (kit.Linear(channels, channels) for _ in range(4))

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Mix the features `(B, N, ..., C)` of all points."""

        def split(y: Tensor) -> Tensor:  # (B, N, ..., C) → (B, heads, N, ..., C / heads)
            return torch.unflatten(y, -1, (self.heads, y.shape[-1] // self.heads)).movedim(-2, 1)

        value = split(self.value(x))
        parts = (split(self.query(x)).flatten(3), split(self.key(x)).flatten(3), value.flatten(3))
        seen = None if mask is None else mask[:, None, None]
        mixed = nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen)
        joined: Tensor = self.out(mixed.view(value.shape).movedim(1, -2).flatten(-2))
        return joined


class EncoderLayer(nn.Module):
    """Attention, then a two-layer network at every point; each added to what it was given, each after a layer norm."""

    def __init__(self, kit: Any, channels: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([kit.LayerNorm(channels), kit.LayerNorm(channels)])
        self.attention = Attention(kit, channels, heads)
        self.network = kit.MLP([channels, 2 * channels, channels], norm="none", slope=SLOPE)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Refine the features of all points."""
        x = x + self.attention(self.norms[0](x, mask), mask)
        refined: Tensor = x + self.network(self.norms[1](x, mask), mask)
        return refined


class VNTransformer(Classifier):
    """Classifies clouds `(B, N, 3)` by attention among all points: logits `(B, classes)`.

    An edge convolution on `k` neighbours lifts the points, `layers` encoder layers of `heads` heads refine them, the
    invariant layer reads them, and `pool` (`"mean"`, `"max"`, or `"attention"`, a learned weighted mean) joins the
    points. `width` is that of the scalar twin (`neurons="scalar"`), an ordinary point transformer of the same shape,
    and must divide so that vectors and heads come out whole. No rotation or reflection changes the vector network.
    """

    def __init__(
        self,
        classes: int = 40,
        *,
        neurons: Neurons = "vector",
        k: int = 20,
        width: int = 192,
        heads: int = 4,
        layers: int = 4,
        hidden: int = 256,
        dropout: float = 0.5,
        pool: Literal["mean", "max", "attention"] = "attention",
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - a named tuple cannot change
    ) -> None:
        super().__init__()
        if pool not in ("mean", "max", "attention"):
            raise ValueError(f'unknown pool {pool!r}: choose "mean", "max" or "attention"')
        self.inputs, self.k, self.pool = read_inputs(inputs), k, pool
        kit = kit_of(neurons)
        self.lift = kit.lift
        channels = kit.width(width)
        self.stem = kit.EdgeConv(kit.width(3) * (1 + self.inputs.vectors), channels, k=k, slope=SLOPE)
        self.layers = nn.ModuleList(EncoderLayer(kit, channels, heads) for _ in range(layers))
        self.norm = kit.LayerNorm(channels)
        self.read = kit.Invariant(channels, frame=frame, mean=mean, norm="layer", slope=SLOPE)
        self.join = JoinScalars(self.read.out_channels, self.inputs, slope=SLOPE, norm="layer")
        self.weigh = nn.Linear(self.read.out_channels, 1) if pool == "attention" else None
        widths = [self.read.out_channels, hidden, classes]
        self.head = Head(widths, dropout=[dropout], bias=[True, True], slope=SLOPE, norm="layer")

    def encode_present(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        x = lift_all(self.lift, points, vectors, self.inputs)
        x = self.stem(x, knn(points, self.k, mask=mask), mask)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x, mask)
        invariants, frame = self.read.with_frame(x, mask)
        return Encoding(x, frame, self._pool(self.join(invariants, scalars, mask), mask))

    def _pool(self, x: Tensor, mask: Mask | None) -> Tensor:
        if self.pool == "max":
            return masked_max(x, mask)
        if self.weigh is None:
            return masked_mean(x, [1], mask).squeeze(1)
        score = self.weigh(x)
        if mask is not None:
            score = score.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        pooled: Tensor = (score.softmax(1) * x).sum(1)
        return pooled
