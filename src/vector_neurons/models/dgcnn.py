"""DGCNN and VN-DGCNN: edge convolutions on a graph that is recomputed from the features."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry.neighbors import knn
from ..nn import scalar
from ..nn._factored import ConcatGlobal
from ..nn.features import cat
from ..nn.head import Head
from ..typing import Mask, Neurons
from .base import Classifier, Encoding, Segmenter
from .inputs import Inputs, JoinScalars, input_channels, inputs_of, lift_all, pool_invariants
from .options import LayerOptions, kit_of, projected_channels
from .pointnet import TransformNet

NEGATIVE_SLOPE = 0.2
Graph = Literal["feature", "coordinates"]


class Trunk(nn.Module):
    """Edge convolutions, whose outputs are concatenated and embedded."""

    def __init__(
        self,
        neurons: Neurons,
        widths: Sequence[int | Sequence[int]],
        embedding: int,
        *,
        k: int,
        graph: Graph,
        inputs: Inputs,
        layers: LayerOptions,
    ) -> None:
        super().__init__()
        if graph not in ("feature", "coordinates"):
            raise ValueError(f'unknown graph {graph!r}: choose "feature" or "coordinates"')
        kit, options = kit_of(neurons), layers.block(NEGATIVE_SLOPE)
        self.lift, self.inputs, self.graph, self.k = kit.lift, inputs, graph, k
        channels, levels = input_channels(neurons, inputs), []
        convolutions = []
        for width in widths:
            out = [kit.width(w) for w in ([width] if isinstance(width, int) else width)]
            convolutions.append(kit.EdgeConv(channels, out, k=k, pool=layers.pool_of(neurons), **options))
            channels = out[-1]
            levels.append(channels)
        self.convolutions = nn.ModuleList(convolutions)
        self.level_channels = sum(levels)
        self.embed = kit.Block(self.level_channels, kit.width(embedding), shared_direction=True, **options)

    def forward(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> tuple[Any, Any]:
        """Compute the concatenated levels and the embedding."""
        neighbors = knn(points, self.k, mask=mask) if self.graph == "coordinates" else None
        x, levels = lift_all(self.lift, points, vectors, self.inputs, scalars), []
        for convolution in self.convolutions:
            x = convolution(x, neighbors, mask)
            levels.append(x)
        concatenated = cat(levels)
        return concatenated, self.embed(concatenated, mask)


class Encoder(Trunk):
    """A trunk and the invariant layer of its embedding."""

    def __init__(
        self,
        neurons: Neurons,
        widths: Sequence[int | Sequence[int]],
        embedding: int,
        *,
        layers: LayerOptions,
        **more: Any,
    ) -> None:
        super().__init__(neurons, widths, embedding, layers=layers, **more)
        self.read = layers.invariant(neurons, kit_of(neurons).width(embedding), NEGATIVE_SLOPE)
        self.out_channels: int = self.read.out_channels


class DGCNN(Classifier):
    """DGCNN and VN-DGCNN for classification.

    Args:
        classes: number of logits.
        neurons: `"vector"` is VN-DGCNN, `"scalar"` the classical network, `"hybrid"` has scalars beside vectors.
        k: neighbors per point.
        widths: channels of the edge convolutions, counted in scalars; vector neurons take a third, hybrid ones both
            kinds (`nn.hybrid.width`).
        embedding: channels before the pool over points, counted in scalars.
        hidden: widths of the head.
        dropout: of the head.
        graph: `"feature"` recomputes the graph before each layer, `"coordinates"` keeps that of the points.
        inputs: further vectors (normals) and scalars (colors) of each point.
        layers: options of all layers, see `LayerOptions`.

    Shape:
        - points: `(B, N, 3)`
        - vectors: `(B, N, 3, inputs.vectors)`, scalars: `(B, N, inputs.scalars)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - out: `(B, classes)`

    Vector and hybrid neurons: invariant to O(3) and permutations.

    >>> vn.models.DGCNN(10, k=4, widths=(6, 6), embedding=12)(torch.randn(2, 16, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 40,
        *,
        neurons: Neurons = "vector",
        k: int = 20,
        widths: Sequence[int] = (64, 64, 128, 256),
        embedding: int = 1024,
        hidden: Sequence[int] = (512, 256),
        dropout: float = 0.5,
        graph: Graph = "feature",
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
        layers: LayerOptions | Mapping[str, Any] = LayerOptions(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        inputs, layers = inputs_of(inputs), LayerOptions.of(layers)
        self.encoder = Encoder(neurons, widths, embedding, k=k, graph=graph, inputs=inputs, layers=layers)
        scalar_layers: dict[str, Any] = {"negative_slope": NEGATIVE_SLOPE, "norm": layers.head_norm}
        self.join = JoinScalars(neurons, self.encoder.out_channels, inputs, **scalar_layers)
        # The classical network has no bias before its first norm; the vector network's code has.
        bias = [neurons != "scalar", *[True] * len(hidden)]
        widths = [2 * self.encoder.out_channels, *hidden, classes]
        self.head = Head(widths, dropout=[dropout] * len(hidden), bias=bias, **scalar_layers)

    def encode_masked(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        _, features = self.encoder(points, vectors, scalars, mask)
        largest, mean, frame = pool_invariants(self.encoder.read, self.join, features, scalars, mask)
        return Encoding(features, frame, torch.cat([largest, mean], dim=-1))


class DGCNNSegmenter(Segmenter):
    """DGCNN and VN-DGCNN for part segmentation.

    The scalar network first transforms its points by a learned 3 × 3 matrix.

    Args:
        parts: number of logits per point.
        categories: number of categories of shapes, which the network is told.
        neurons, k, widths, embedding, hidden, dropout, graph, inputs, layers: as in `DGCNN`.

    Shape:
        - points: `(B, N, 3)`
        - category: `(B,)`, indices
        - vectors, scalars, lengths: as in `DGCNN`
        - out: `(B, N, parts)`

    Vector and hybrid neurons: invariant to O(3), equivariant to permutations.

    >>> network = vn.models.DGCNNSegmenter(50, 16, k=4, widths=((6, 6), (6,)), embedding=12)
    >>> network(torch.randn(2, 16, 3), torch.tensor([0, 5])).shape
    torch.Size([2, 16, 50])
    """

    def __init__(
        self,
        parts: int = 50,
        categories: int = 16,
        *,
        neurons: Neurons = "vector",
        k: int = 40,
        widths: Sequence[Sequence[int]] = ((64, 64), (64, 64), (64,)),
        embedding: int = 1024,
        hidden: Sequence[int] = (256, 256, 128),
        dropout: float = 0.5,
        graph: Graph = "feature",
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
        layers: LayerOptions | Mapping[str, Any] = LayerOptions(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        inputs, layers = inputs_of(inputs), LayerOptions.of(layers)
        self.categories = categories
        self.encoder = Encoder(neurons, widths, embedding, k=k, graph=graph, inputs=inputs, layers=layers)
        scalar_layers: dict[str, Any] = {"negative_slope": NEGATIVE_SLOPE, "norm": layers.head_norm}
        self.join = JoinScalars(neurons, self.encoder.out_channels, inputs, **scalar_layers)
        self.turn = TransformNet(3, edge=k) if neurons == "scalar" else None
        self.category = scalar.Block(categories, 64, bias=False, **scalar_layers)
        local = projected_channels(neurons, self.encoder.level_channels)
        head_widths = [self.encoder.out_channels + 64 + local + inputs.scalars, *hidden, parts]
        rates, bias = [*[dropout] * (len(hidden) - 1), 0.0], [False] * (len(hidden) + 1)
        self.head = Head(head_widths, dropout=rates, bias=bias, **scalar_layers)

    def segment_masked(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        if self.turn is not None:
            points = self.turn(points, mask)
        levels, embedded = self.encoder(points, vectors, scalars, mask)
        overall, _, frame = pool_invariants(self.encoder.read, self.join, embedded, scalars, mask)
        kind = self.category(nn.functional.one_hot(category, self.categories).to(overall.dtype))
        own = [self.encoder.read.project(levels, frame), *([] if scalars is None else [scalars])]
        return self.head(ConcatGlobal(torch.cat([overall, kind], dim=-1), torch.cat(own, dim=-1)), mask)
