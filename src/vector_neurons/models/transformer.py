"""VN-Transformer: attention whose scores are inner products of vector features."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry.neighbors import knn
from ..nn._masked import masked_max, masked_mean
from ..nn.head import Head
from ..typing import Mask, Neurons
from .base import Classifier, Encoding
from .inputs import Inputs, JoinScalars, input_channels, inputs_of, lift_all
from .options import kit_of

NEGATIVE_SLOPE = 0.2


class EncoderLayer(nn.Module):
    """Attention, then a two-layer MLP at every point; both residual, both after a layer norm."""

    def __init__(self, kit: Any, channels: Any, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([kit.LayerNorm(channels), kit.LayerNorm(channels)])
        self.attention = kit.Attention(channels, heads)
        self.network = kit.MLP([channels, 2 * channels, channels], norm="none", negative_slope=NEGATIVE_SLOPE)

    def forward(self, x: Any, mask: Mask | None = None) -> Any:
        """Refine the features of all points."""
        x = x + self.attention(self.norms[0](x, mask), mask=mask)
        return x + self.network(self.norms[1](x, mask), mask)


class VNTransformer(Classifier):
    """VN-Transformer for classification: attention among all points.

    An edge convolution lifts the points, encoder layers refine them, the invariant layer makes scalars of them, and a
    pool over points precedes the head.

    Args:
        classes: number of logits.
        neurons: `"vector"`, `"scalar"` for an ordinary point transformer of the same shape, or `"hybrid"` with scalars
            beside vectors.
        k: neighbors per point in the edge convolution.
        width: channels, counted in scalars: a multiple of 3 (for vectors; hybrid: 6) times `heads`.
        heads: attention heads.
        depth: encoder layers.
        hidden: width of the head.
        dropout: of the head.
        pool: over points: `"mean"`, `"max"`, or `"attention"`, a learned weighted mean.
        frame: how the invariant layer learns its frame, `"mlp"` or `"linear"`.
        mean: whether the frame also depends on the mean over the cloud.
        inputs: further vectors (normals) and scalars (colors) of each point.

    Shape:
        - points: `(B, N, 3)`
        - vectors: `(B, N, 3, inputs.vectors)`, scalars: `(B, N, inputs.scalars)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - out: `(B, classes)`

    Vector and hybrid neurons: invariant to O(3) and permutations.

    >>> vn.models.VNTransformer(10, k=4, width=12, heads=2, depth=1)(torch.randn(2, 16, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 40,
        *,
        neurons: Neurons = "vector",
        k: int = 20,
        width: int = 192,
        heads: int = 4,
        depth: int = 4,
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
        self.inputs, self.k, self.pool = inputs_of(inputs), k, pool
        kit = kit_of(neurons)
        self.lift = kit.lift
        channels = kit.width(width)
        self.stem = kit.EdgeConv(input_channels(neurons, self.inputs), channels, k=k, negative_slope=NEGATIVE_SLOPE)
        self.layers = nn.ModuleList(EncoderLayer(kit, channels, heads) for _ in range(depth))
        self.norm = kit.LayerNorm(channels)
        self.read = kit.Invariant(channels, frame=frame, mean=mean, norm="layer", negative_slope=NEGATIVE_SLOPE)
        scalar_layers: dict[str, Any] = {"negative_slope": NEGATIVE_SLOPE, "norm": "layer"}
        self.join = JoinScalars(neurons, self.read.out_channels, self.inputs, **scalar_layers)
        self.weigh = nn.Linear(self.read.out_channels, 1) if pool == "attention" else None
        widths = [self.read.out_channels, hidden, classes]
        self.head = Head(widths, dropout=[dropout], bias=[True, True], **scalar_layers)

    def encode_masked(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        x = lift_all(self.lift, points, vectors, self.inputs, scalars)
        x = self.stem(x, knn(points, self.k, mask=mask), mask)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x, mask)
        invariants, frame = self.read(x, mask, return_frame=True)
        return Encoding(x, frame, self._pool(self.join(invariants, scalars, mask), mask))

    def _pool(self, x: Tensor, mask: Mask | None) -> Tensor:
        if self.pool == "max":
            return masked_max(x, mask)
        if self.weigh is None:
            return masked_mean(x, [1], mask).squeeze(1)
        score = self.weigh(x)
        if mask is not None:
            score = score.masked_fill(~mask.unsqueeze(-1), -torch.inf)
        return (score.softmax(1) * x).sum(1)
