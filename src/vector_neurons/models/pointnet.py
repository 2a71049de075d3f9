"""PointNet and VN-PointNet: shared layers at every point, and one pool over all points."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ..geometry.neighbors import knn
from ..nn._factored import ConcatGlobal
from ..nn._masked import masked_max
from ..nn.features import AnyChannels, cat, cat_overall
from ..nn.head import Head
from ..typing import Mask, Neurons, Pool
from .base import Classifier, Encoding, Segmenter
from .inputs import Inputs, JoinScalars, input_channels, inputs_of, lift_all, pool_invariants
from .options import LayerOptions, kit_of, projected_channels

NEGATIVE_SLOPE = 0.0  # PointNet's non-linearity is ReLU


class TransformNet(nn.Module):
    """PointNet's T-Net: transforms the features of each point by a function of the whole cloud.

    The scalar one predicts a matrix and multiplies each feature by it; the vector one predicts vectors, which rotate
    with the cloud, and concatenates them to each feature; the hybrid one does so with both kinds. With `edge=k` it
    starts with two layers on the edges of a graph, as in DGCNN.
    """

    def __init__(
        self,
        channels: AnyChannels,
        *,
        neurons: Neurons = "scalar",
        edge: int | None = None,
        pool: Pool = "max",
        **options: Any,
    ) -> None:
        super().__init__()
        kit = kit_of(neurons)
        if edge is None:
            widths = [channels, *map(kit.width, (64, 128, 1024))]
            self.edges = None
        else:
            self.edges = kit.EdgeConv(channels, [kit.width(64), kit.width(128)], k=edge, pool=pool, **options)
            widths = [kit.width(128), kit.width(1024)]
        self.every = nn.ModuleList(kit.Block(a, b, **options) for a, b in pairwise(widths))
        self.pool, self.block_pool = kit.POOLS[pool](widths[-1]), kit.block_pool
        self.fixed = channels if isinstance(channels, int) and neurons == "scalar" else None
        out = channels if self.fixed is None else self.fixed**2
        if options.get("norm") == "instance":
            options["norm"] = "none"  # a whole cloud has no elements left to normalize over
        self.overall = kit.MLP([widths[-1], kit.width(512), kit.width(256), out], **options)
        self.out_channels: Any = channels if self.fixed is not None else 2 * channels
        if edge is not None:
            nn.init.zeros_(self.overall[-1].weight)  # DGCNN's starts as the identity

    def forward(self, x: Any, mask: Mask | None = None) -> Any:
        """Transform features `(B, N, ...)`."""
        y = x if self.edges is None else self.edges(x, None, mask)
        *first, last = self.every
        for block in first:
            y = block(y, mask)
        predicted = self.overall(self.block_pool(last, self.pool, y, mask))
        if self.fixed is None:
            return cat_overall(x, predicted)
        identity = torch.eye(self.fixed, dtype=x.dtype, device=x.device)
        return x @ (predicted.view(-1, self.fixed, self.fixed) + identity)


class Encoder(nn.Module):
    """Point-wise blocks around a T-Net, an embedding, and its invariant layer.

    Vector and hybrid networks start with an edge convolution: a lifted cloud has one vector per point, of which linear
    maps only make multiples, so nothing could tell a point from its direction. The scalar one starts with the classical
    input transform.
    """

    def __init__(
        self,
        neurons: Neurons,
        widths: Sequence[Sequence[int]],
        embedding: int,
        *,
        k: int,
        inputs: Inputs,
        layers: LayerOptions,
    ) -> None:
        super().__init__()
        kit, vector, options = kit_of(neurons), neurons != "scalar", layers.block(NEGATIVE_SLOPE)
        self.lift, self.inputs, self.k = kit.lift, inputs, k
        pool, (before, after) = layers.pool_of(neurons), widths
        # The classical network keeps its biases beside the norms.
        block: dict[str, Any] = {**options} if vector else {**options, "bias": True}
        channels = input_channels(neurons, inputs)
        self.turn = None if vector else TransformNet(3, neurons=neurons, pool=pool, **block)
        self.stem = kit.EdgeConv(channels, kit.width(64), k=k, cross=True, pool=pool, **options) if vector else None
        chain = [kit.width(64) if vector else channels, *map(kit.width, before)]
        self.before = nn.ModuleList(kit.Block(a, b, **block) for a, b in pairwise(chain))
        self.transform = TransformNet(chain[-1], neurons=neurons, pool=pool, **block)
        chain = [self.transform.out_channels, *map(kit.width, after)]
        self.after = nn.ModuleList(kit.Block(a, b, **block) for a, b in pairwise(chain))
        out = kit.width(embedding)
        self.embed = kit.Linear(chain[-1], out)
        self.norm = kit.NORMS[layers.norm](out)
        if neurons == "vector" and layers.norm in ("batch", "log-batch"):
            self.norm.eps = layers.eps
        self.level_channels = sum(map(kit.width, [*before, *after]))
        self.read = layers.invariant(neurons, out, NEGATIVE_SLOPE)
        self.out_channels: int = self.read.out_channels

    def forward(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> tuple[Any, Any]:
        """Compute the concatenated levels and the embedding."""
        levels = []
        if self.turn is not None:
            points = self.turn(points, mask)
        x = lift_all(self.lift, points, vectors, self.inputs, scalars)
        if self.stem is not None:
            x = self.stem(x, knn(points, self.k, mask=mask), mask)
        for block in self.before:
            x = block(x, mask)
            levels.append(x)
        x = self.transform(x, mask)
        for block in self.after:
            x = block(x, mask)
            levels.append(x)
        return cat(levels), self.norm(self.embed(x), mask)


class PointNet(Classifier):
    """PointNet and VN-PointNet for classification.

    Args:
        classes: number of logits.
        neurons: `"vector"` is VN-PointNet, `"scalar"` the classical network with its two T-Nets, `"hybrid"` has scalars
            beside vectors.
        k: neighbors per point in the edge convolution with which vector and hybrid networks start.
        widths: channels of the blocks before and after the feature transform, counted in scalars; vector neurons take
            a third, hybrid ones both kinds (`nn.hybrid.width`).
        embedding: channels before the pool over points, counted in scalars.
        hidden: widths of the head.
        dropout: of the head.
        inputs: further vectors (normals) and scalars (colors) of each point.
        layers: options of all layers, see `LayerOptions`.

    Shape:
        - points: `(B, N, 3)`
        - vectors: `(B, N, 3, inputs.vectors)`, scalars: `(B, N, inputs.scalars)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - out: `(B, classes)`

    Vector and hybrid neurons: invariant to SO(3) (edges use cross products, so not to reflections) and permutations.

    >>> vn.models.PointNet(10, k=4, widths=((6,), (12,)), embedding=24)(torch.randn(2, 16, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 40,
        *,
        neurons: Neurons = "vector",
        k: int = 20,
        widths: Sequence[Sequence[int]] = ((64,), (128,)),
        embedding: int = 1024,
        hidden: Sequence[int] = (512, 256),
        dropout: float = 0.4,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
        layers: LayerOptions | Mapping[str, Any] = LayerOptions(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        inputs, layers = inputs_of(inputs), LayerOptions.of(layers)
        self.encoder = Encoder(neurons, widths, embedding, k=k, inputs=inputs, layers=layers)
        scalar_layers: dict[str, Any] = {"negative_slope": NEGATIVE_SLOPE, "norm": layers.head_norm}
        self.join = JoinScalars(neurons, self.encoder.out_channels, inputs, **scalar_layers)
        rates = [*[0.0] * (len(hidden) - 1), dropout]
        head_widths = [self.encoder.out_channels, *hidden, classes]
        self.head = Head(head_widths, dropout=rates, bias=[True] * (len(hidden) + 1), **scalar_layers)

    def encode_masked(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        _, features = self.encoder(points, vectors, scalars, mask)
        largest, _, frame = pool_invariants(self.encoder.read, self.join, features, scalars, mask)
        return Encoding(features, frame, largest)


class PointNetSegmenter(Segmenter):
    """PointNet and VN-PointNet for part segmentation.

    Args:
        parts: number of logits per point.
        categories: number of categories of shapes, which the network is told.
        neurons, k, widths, embedding, hidden, dropout, inputs, layers: as in `PointNet`.

    Shape:
        - points: `(B, N, 3)`
        - category: `(B,)`, indices
        - vectors, scalars, lengths: as in `PointNet`
        - out: `(B, N, parts)`

    Vector and hybrid neurons: invariant to SO(3), equivariant to permutations.

    >>> network = vn.models.PointNetSegmenter(50, 16, k=4, widths=((6,), (12,)), embedding=24)
    >>> network(torch.randn(2, 16, 3), torch.tensor([0, 5])).shape
    torch.Size([2, 16, 50])
    """

    def __init__(
        self,
        parts: int = 50,
        categories: int = 16,
        *,
        neurons: Neurons = "vector",
        k: int = 20,
        widths: Sequence[Sequence[int]] = ((64, 128, 128), (512,)),
        embedding: int = 2048,
        hidden: Sequence[int] = (256, 256, 128),
        dropout: float = 0.0,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
        layers: LayerOptions | Mapping[str, Any] = LayerOptions(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        inputs, layers = inputs_of(inputs), LayerOptions.of(layers)
        self.categories = categories
        self.encoder = Encoder(neurons, widths, embedding, k=k, inputs=inputs, layers=layers)
        scalar_layers: dict[str, Any] = {"negative_slope": NEGATIVE_SLOPE, "norm": layers.head_norm}
        self.join = JoinScalars(neurons, self.encoder.out_channels, inputs, **scalar_layers)
        local = projected_channels(neurons, self.encoder.level_channels)
        head_widths = [2 * self.encoder.out_channels + categories + local, *hidden, parts]
        rates, bias = [dropout] * len(hidden), [True] * (len(hidden) + 1)
        self.head = Head(head_widths, dropout=rates, bias=bias, **scalar_layers)

    def segment_masked(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        levels, embedded = self.encoder(points, vectors, scalars, mask)
        invariants, frame = self.encoder.read(embedded, mask, return_frame=True)
        invariants = self.join(invariants, scalars, mask)
        overall = masked_max(invariants, mask)
        kind = nn.functional.one_hot(category, self.categories).to(overall.dtype)
        own = torch.cat([self.encoder.read.project(levels, frame), invariants], dim=-1)
        return self.head(ConcatGlobal(torch.cat([overall, kind], dim=-1), own), mask)
