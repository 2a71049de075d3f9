"""PointNet and VN-PointNet: the same few layers at every point, and one pool over all."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..geometry.neighbours import knn
from ..nn.functional import masked_max
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

SLOPE = 0.0  # PointNet's non-linearity is ReLU


class TransformNet(nn.Module):
    """PointNet's T-Net: looks at all points, and changes the features of each by what it saw.

    The scalar one finds a matrix and multiplies each feature by it; the vector one finds vectors, which turn with the
    cloud, and joins them to each feature. With `edge=k` it starts with two layers on the edges of a graph, as in DGCNN.
    """

    def __init__(
        self,
        channels: int,
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
        self.pool, self.pooled = kit.POOLS[pool](widths[-1]), kit.pooled
        self.fixed = channels if neurons == "scalar" else None
        out = channels if self.fixed is None else channels**2
        if options.get("norm") == "instance":
            options["norm"] = "none"  # a whole cloud has no elements left to normalise over
        self.overall = kit.MLP([widths[-1], kit.width(512), kit.width(256), out], **options)
        self.out_channels = channels if self.fixed is not None else 2 * channels
        if edge is not None:
            nn.init.zeros_(self.overall[-1].weight)  # DGCNN's starts as the identity

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """Change features `(B, N, ...)`."""
        y = x if self.edges is None else self.edges(x, None, mask)
        *first, last = self.every
        for block in first:
            y = block(y, mask)
        seen: Tensor = self.overall(self.pooled(last, self.pool, y, mask))
        if self.fixed is None:
            return torch.cat([x, seen.unsqueeze(1).expand_as(x)], dim=-1)
        identity = torch.eye(self.fixed, dtype=x.dtype, device=x.device)
        return x @ (seen.view(-1, self.fixed, self.fixed) + identity)


class Encoder(nn.Module):
    """A stem, layers before and after the feature transform, an embedding, and its reading in a frame.

    The vector stem is an edge convolution: a cloud lifts to one channel, of which linear maps only make multiples, all
    on one line, and no layer could tell a point from its direction. Edges bring in other directions. The scalar
    stem is the classical input transform.
    """

    def __init__(
        self,
        neurons: Neurons,
        before: Sequence[int],
        after: Sequence[int],
        embedding: int,
        *,
        k: int,
        pool: Pool | None,
        frame: Literal["mlp", "linear"],
        mean: bool,
        read_mean: bool | None,
        inputs: Inputs,
        options: BlockOptions,
    ) -> None:
        super().__init__()
        kit, vector = kit_of(neurons), neurons == "vector"
        self.lift, self.inputs, self.k = kit.lift, inputs, k
        pool = pool or ("mean" if vector else "max")
        # The classical network keeps its biases beside the norms.
        layer: dict[str, Any] = {**options} if vector else {**options, "bias": True}
        net: dict[str, Any] = {"neurons": neurons, "pool": pool, **layer}
        channels = kit.width(3) * (1 + inputs.vectors)
        self.turn = None if vector else TransformNet(3, **net)
        self.stem = kit.EdgeConv(channels, kit.width(64), k=k, cross=True, pool=pool, **options) if vector else None
        widths = [kit.width(64) if vector else channels, *map(kit.width, before)]
        self.before = nn.ModuleList(kit.Block(a, b, **layer) for a, b in pairwise(widths))
        self.transform = TransformNet(widths[-1], **net)
        widths = [self.transform.out_channels, *map(kit.width, after)]
        self.after = nn.ModuleList(kit.Block(a, b, **layer) for a, b in pairwise(widths))
        out = kit.width(embedding)
        self.embed = kit.Linear(widths[-1], out)
        self.norm = kit.NORMS[options["norm"]](out)
        if vector and options["norm"] in ("batch", "log-batch"):
            self.norm.eps = options["eps"]
        self.level_channels = sum(map(kit.width, [*before, *after]))
        read_mean = mean if read_mean is None else read_mean
        self.read = kit.Invariant(out, frame=frame, mean=mean, read_mean=read_mean, **options)
        self.out_channels: int = self.read.out_channels

    def forward(self, points: Tensor, vectors: Tensor | None, mask: Mask | None) -> tuple[Tensor, Tensor]:
        """Give the joined levels and the embedding, which `read` reads."""
        levels = []
        if self.turn is not None:
            points = self.turn(points, mask)
        x = lift_all(self.lift, points, vectors, self.inputs)
        if self.stem is not None:
            x = self.stem(x, knn(points, self.k, mask=mask), mask)
        for block in self.before:
            x = block(x, mask)
            levels.append(x)
        x = self.transform(x, mask)
        for block in self.after:
            x = block(x, mask)
            levels.append(x)
        return torch.cat(levels, dim=-1), self.norm(self.embed(x), mask)


class PointNet(Classifier):
    """Classifies clouds `(B, N, 3)`: logits `(B, classes)`.

    `neurons="vector"` is VN-PointNet, whose logits no rotation changes (its edges use cross products, so reflections
    do); `"scalar"` the classical network with its two T-Nets. The vector network starts from an edge convolution
    because one channel in would mean one line out; `k` is its number of neighbours. Widths are those of the scalar
    network. `nonlinearity`, `pool`, `frame`, `mean`, `read_mean` and `eps` as in `DGCNN`.
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
        norm: Norm = "batch",
        nonlinearity: Nonlinearity = "built-in",
        pool: Pool | None = None,
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        read_mean: bool | None = None,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - a named tuple cannot change
        eps: float | None = None,
    ) -> None:
        super().__init__()
        inputs = read_inputs(inputs)
        options: BlockOptions = {"norm": norm, "nonlinearity": nonlinearity, "slope": SLOPE, "eps": eps}
        more: dict[str, Any] = {"k": k, "pool": pool, "frame": frame, "mean": mean, "inputs": inputs}
        before, after = widths
        self.encoder = Encoder(neurons, before, after, embedding, read_mean=read_mean, options=options, **more)
        self.join = JoinScalars(self.encoder.out_channels, inputs, slope=SLOPE, norm=head_norm(norm))
        rates = [*[0.0] * (len(hidden) - 1), dropout]
        seen = [self.encoder.out_channels, *hidden, classes]
        self.head = Head(seen, dropout=rates, bias=[True] * (len(hidden) + 1), slope=SLOPE, norm=head_norm(norm))

    def encode_present(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        _, features = self.encoder(points, vectors, mask)
        largest, _, frame = self.join.pooled(self.encoder.read, features, scalars, mask)
        return Encoding(features, frame, largest)


class PointNetSegmenter(Segmenter):
    """Names the part of every point: clouds `(B, N, 3)` and their category `(B,)`, logits `(B, N, parts)`."""

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
        norm: Norm = "batch",
        nonlinearity: Nonlinearity = "built-in",
        pool: Pool | None = None,
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        read_mean: bool | None = None,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - a named tuple cannot change
        eps: float | None = None,
    ) -> None:
        super().__init__()
        inputs = read_inputs(inputs)
        self.categories = categories
        options: BlockOptions = {"norm": norm, "nonlinearity": nonlinearity, "slope": SLOPE, "eps": eps}
        more: dict[str, Any] = {"k": k, "pool": pool, "frame": frame, "mean": mean, "inputs": inputs}
        before, after = widths
        self.encoder = Encoder(neurons, before, after, embedding, read_mean=read_mean, options=options, **more)
        self.join = JoinScalars(self.encoder.out_channels, inputs, slope=SLOPE, norm=head_norm(norm))
        local = self.encoder.level_channels * (3 if neurons == "vector" else 1)
        seen = [2 * self.encoder.out_channels + categories + local, *hidden, parts]
        self.head = Head(
            seen, dropout=[dropout] * len(hidden), bias=[True] * (len(hidden) + 1), slope=SLOPE, norm=head_norm(norm)
        )

    def segment_present(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        levels, embedded = self.encoder(points, vectors, mask)
        invariants, frame = self.encoder.read.with_frame(embedded, mask)
        invariants = self.join(invariants, scalars, mask)
        overall = masked_max(invariants, mask)
        kind = nn.functional.one_hot(category, self.categories).to(overall.dtype)
        own = torch.cat([self.encoder.read.read(levels, frame), invariants], dim=-1)
        logits: Tensor = self.head(Everywhere(torch.cat([overall, kind], dim=-1), own), mask)
        return logits
