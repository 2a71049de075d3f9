"""DGCNN and VN-DGCNN: edge convolutions on a graph that follows the features."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry.neighbours import knn
from ..nn import scalar
from ..nn.head import Head
from ..nn.unbuilt import Everywhere
from ..typing import BlockOptions, Mask, Neurons, Nonlinearity, Norm, Pool
from .base import (
    Classifier,
    Encoding,
    Inputs,
    JoinScalars,
    Segmenter,
    head_norm,
    kit_of,
    lift_all,
    read_inputs,
)
from .pointnet import TransformNet

SLOPE = 0.2


class Trunk(nn.Module):
    """Edge convolutions, all their outputs joined and embedded."""

    def __init__(
        self,
        neurons: Neurons,
        widths: Sequence[int | Sequence[int]],
        embedding: int,
        *,
        k: int,
        pool: Pool | None,
        graph: Literal["feature", "coordinates"],
        inputs: Inputs,
        options: BlockOptions,
    ) -> None:
        super().__init__()
        if graph not in ("feature", "coordinates"):
            raise ValueError(f'unknown graph {graph!r}: choose "feature" or "coordinates"')
        kit = kit_of(neurons)
        self.lift, self.inputs, self.graph, self.k = kit.lift, inputs, graph, k
        pool = pool or ("mean" if neurons == "vector" else "max")
        channels, levels = kit.width(3) * (1 + inputs.vectors), []
        convolutions = []
        for width in widths:
            out = [kit.width(w) for w in ([width] if isinstance(width, int) else width)]
            convolutions.append(kit.EdgeConv(channels, out, k=k, pool=pool, **options))
            channels = out[-1]
            levels.append(channels)
        self.convolutions = nn.ModuleList(convolutions)
        self.level_channels, out = sum(levels), kit.width(embedding)
        self.embed = kit.Block(self.level_channels, out, shared_direction=True, **options)

    def forward(self, points: Tensor, vectors: Tensor | None, mask: Mask | None) -> tuple[Tensor, Tensor]:
        """Give the joined levels and the embedding."""
        neighbours = knn(points, self.k, mask=mask) if self.graph == "coordinates" else None
        x, levels = lift_all(self.lift, points, vectors, self.inputs), []
        for convolution in self.convolutions:
            x = convolution(x, neighbours, mask)
            levels.append(x)
        joined = torch.cat(levels, dim=-1)
        return joined, self.embed(joined, mask)


class Encoder(Trunk):
    """A trunk whose embedding is read in a frame."""

    def __init__(
        self,
        neurons: Neurons,
        widths: Sequence[int | Sequence[int]],
        embedding: int,
        *,
        frame: Literal["mlp", "linear"],
        mean: bool,
        read_mean: bool | None,
        options: BlockOptions,
        **more: Any,
    ) -> None:
        super().__init__(neurons, widths, embedding, options=options, **more)
        kit = kit_of(neurons)
        read_mean = mean if read_mean is None else read_mean
        self.read = kit.Invariant(kit.width(embedding), frame=frame, mean=mean, read_mean=read_mean, **options)
        self.out_channels: int = self.read.out_channels


class DGCNN(Classifier):
    """Classifies clouds `(B, N, 3)`: logits `(B, classes)`.

    `neurons="vector"` is VN-DGCNN, whose logits no rotation or reflection changes; `"scalar"` the classical network,
    with its max pooling. Widths are those of the scalar network, of which vector neurons take a third.
    The ablations of the paper: `nonlinearity` (`"detached"` was best), `pool`, `frame` and `mean` of the invariant
    layer. `graph="coordinates"` keeps one graph for all layers. `read_mean` reads the global mean in the frame as
    well, as the authors' code does (default: if there is a mean); `eps=1e-6` is the authors', see `Block`.
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
        norm: Norm = "batch",
        nonlinearity: Nonlinearity = "built-in",
        pool: Pool | None = None,
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        read_mean: bool | None = None,
        graph: Literal["feature", "coordinates"] = "feature",
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - a named tuple cannot change
        eps: float | None = None,
    ) -> None:
        super().__init__()
        inputs = read_inputs(inputs)
        options: BlockOptions = {"norm": norm, "nonlinearity": nonlinearity, "slope": SLOPE, "eps": eps}
        more: dict[str, Any] = {"k": k, "pool": pool, "graph": graph, "frame": frame, "mean": mean, "inputs": inputs}
        self.encoder = Encoder(neurons, widths, embedding, read_mean=read_mean, options=options, **more)
        self.join = JoinScalars(self.encoder.out_channels, inputs, slope=SLOPE, norm=head_norm(norm))
        # The classical network has no bias before its first norm; the vector network's code has.
        bias = [neurons == "vector", *[True] * len(hidden)]
        widths = [2 * self.encoder.out_channels, *hidden, classes]
        self.head = Head(widths, dropout=[dropout] * len(hidden), bias=bias, slope=SLOPE, norm=head_norm(norm))

    def encode_present(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        _, features = self.encoder(points, vectors, mask)
        largest, mean, frame = self.join.pooled(self.encoder.read, features, scalars, mask)
        return Encoding(features, frame, torch.cat([largest, mean], dim=-1))


class DGCNNSegmenter(Segmenter):
    """Names the part of every point: clouds `(B, N, 3)` and their category, logits `(B, N, parts)`.

    The category is an index `(B,)`. Arguments as in `DGCNN`; the scalar network first turns its points by a learned
    3 × 3 matrix.
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
        norm: Norm = "batch",
        nonlinearity: Nonlinearity = "built-in",
        pool: Pool | None = None,
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        read_mean: bool | None = None,
        graph: Literal["feature", "coordinates"] = "feature",
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - a named tuple cannot change
        eps: float | None = None,
    ) -> None:
        super().__init__()
        inputs = read_inputs(inputs)
        self.categories = categories
        options: BlockOptions = {"norm": norm, "nonlinearity": nonlinearity, "slope": SLOPE, "eps": eps}
        more: dict[str, Any] = {"k": k, "pool": pool, "graph": graph, "frame": frame, "mean": mean, "inputs": inputs}
        self.encoder = Encoder(neurons, widths, embedding, read_mean=read_mean, options=options, **more)
        self.join = JoinScalars(self.encoder.out_channels, inputs, slope=SLOPE, norm=head_norm(norm))
        self.turn = TransformNet(3, edge=k) if neurons == "scalar" else None
        self.category = scalar.Block(categories, 64, slope=SLOPE, norm=head_norm(norm), bias=False)
        local = self.encoder.level_channels * (3 if neurons == "vector" else 1)
        seen = [self.encoder.out_channels + 64 + local + inputs.scalars, *hidden, parts]
        rates, bias = [*[dropout] * (len(hidden) - 1), 0.0], [False] * (len(hidden) + 1)
        self.head = Head(seen, dropout=rates, bias=bias, slope=SLOPE, norm=head_norm(norm))

    def segment_present(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        if self.turn is not None:
            points = self.turn(points, mask)
        levels, embedded = self.encoder(points, vectors, mask)
        overall, _, frame = self.join.pooled(self.encoder.read, embedded, scalars, mask)
        kind = self.category(nn.functional.one_hot(category, self.categories).to(overall.dtype))
        own = [self.encoder.read.read(levels, frame), *([] if scalars is None else [scalars])]
        logits: Tensor = self.head(Everywhere(torch.cat([overall, kind], dim=-1), torch.cat(own, dim=-1)), mask)
        return logits
