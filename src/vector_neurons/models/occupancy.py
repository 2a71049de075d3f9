"""Occupancy networks: from a sparse, noisy cloud to a function that says which places lie inside of its shape.

The paper's three methods are three compositions of an encoder and a decoder: OccNet is scalar and plain, the ablation
scalar and invariant, VN-OccNet vector and invariant.
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..geometry.neighbours import gather, knn
from ..nn import functional as VF
from ..nn import scalar, vector
from ..nn.extremes import check_size, readable
from ..nn.unbuilt import Everywhere, WithMean
from ..typing import BlockOptions, Mask, Neurons
from .base import Inputs, Model, kit_of, mask_of
from .dgcnn import Trunk

STEM = 384  # channels of the first edges, counted in scalars: the vector encoder's 128
DGCNN_WIDTHS = (64, 64, 128, 256)
LARGEST = 2.0**40  # coordinate; decoders square products of queries and codes
NEAREST = 0.01  # points nearer than this all count alike; clouds have radius 1

EncoderName = Literal["pointnet", "dgcnn"]
DecoderName = Literal["invariant", "plain"]
CodeInvariants = Literal["frame", "product"]


class Code(NamedTuple):
    """What an encoder knows of clouds.

    `overall` is `(B, 3, C)`, or numbers `(B, C)` of a plain decoder. A local decoder also sees the `points` and what
    each of them has learned, `vectors` `(B, N, 3, V)`.
    """

    overall: Tensor
    points: Tensor | None = None
    vectors: Tensor | None = None


class ResNetBlock(nn.Module):
    """`S x + B a(A a(x))` with ReLUs a; it starts as the linear map S, or as the identity where the widths agree."""

    def __init__(self, neurons: Neurons, in_channels: int, out_channels: int, *, eps: float | None = None) -> None:
        super().__init__()
        kit = kit_of(neurons)
        hidden = min(in_channels, out_channels)
        self.bend_in = kit.LeakyReLU(in_channels, slope=0.0, eps=eps)
        self.linear_in = kit.Linear(in_channels, hidden)
        self.bend_out = kit.LeakyReLU(hidden, slope=0.0, eps=eps)
        self.linear_out = kit.Linear(hidden, out_channels)
        nn.init.zeros_(self.linear_out.weight)
        no_bias = {} if neurons == "vector" else {"bias": False}
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else kit.Linear(in_channels, out_channels, **no_bias)

    def forward(self, x: Tensor | WithMean | Everywhere) -> Tensor:
        change: Tensor = self.linear_out(self.bend_out(self.linear_in(self.bend_in(x))))
        kept: Tensor = self.shortcut(x)
        return kept + change


class ResNetPointNet(nn.Module):
    """Features of every point, from ResNet blocks that each see the pool over all points.

    A cloud lifts to one vector a point, of which linear maps only make multiples: vector neurons begin with edges.
    """

    def __init__(self, neurons: Neurons, width: int, *, k: int, blocks: int = 5, eps: float | None = None) -> None:
        super().__init__()
        kit, self.vector, self.k = kit_of(neurons), neurons == "vector", k
        self.lift, stem, self.stem = kit.lift, kit.width(3), None
        if self.vector:
            stem = kit.width(STEM)
            self.stem = kit.EdgeConv(1, stem, k=k, cross=True, norm="none", slope=0.0, eps=eps)
        self.embed = kit.Linear(stem, 2 * width)
        self.blocks = nn.ModuleList(ResNetBlock(neurons, 2 * width, width, eps=eps) for _ in range(blocks))
        self.pool = kit.POOLS["mean" if self.vector else "max"](width)

    def forward(self, points: Tensor, mask: Mask | None) -> Tensor:
        x: Tensor = self.lift(points)
        if self.stem is not None:
            x = self.stem(x, knn(points, self.k, mask=mask), mask)
        x = self.embed(x)
        for number, block in enumerate(self.blocks):
            x = block(self._with_pool(x, mask) if number else x)
        return x

    def _with_pool(self, x: Tensor, mask: Mask | None) -> WithMean | Everywhere:
        pooled = self.pool(x, mask)
        return WithMean(x, pooled.unsqueeze(1)) if self.vector else Everywhere(pooled, x)


class DGCNNFeatures(Trunk):
    """Features of every point, from the edge convolutions of a DGCNN."""

    def __init__(self, neurons: Neurons, width: int, *, k: int, eps: float | None = None) -> None:
        options: BlockOptions = {"eps": eps}
        more: dict[str, Any] = {"pool": None, "graph": "feature", "inputs": Inputs(), "options": options}
        super().__init__(neurons, DGCNN_WIDTHS, width * (3 if neurons == "vector" else 1), k=k, **more)

    def forward(self, points: Tensor, mask: Mask | None) -> Tensor:  # type: ignore[override]
        embedded: Tensor = super().forward(points, None, mask)[1]
        return embedded


class PlainQueries(nn.Module):
    """`φ(x) + ψ(z)` of places x and a code z of numbers: knows where up is."""

    def __init__(self, code: int, width: int) -> None:
        super().__init__()
        self.place, self.code, self.known = nn.Linear(3, width), nn.Linear(code, width), code

    def numbers(self, code: Float[Tensor, "batch channels"]) -> Float[Tensor, "batch channels"]:
        """What is known of the shape, as numbers."""
        return code

    def forward(self, code: Tensor, numbers: Tensor, queries: Tensor) -> Tensor:
        at, of = self.place(queries), self.code(numbers)
        return torch.add(at, of.unsqueeze(1))


class InvariantQueries(nn.Module):
    """A linear map of `‖x‖²`, `⟨x, Z⟩` and invariants of Z: turning place and code together changes nothing.

    The invariants are VN-In(Z), as the paper writes, or `⟨Z, W Z⟩` channel by channel, as its code does ("product").
    """

    def __init__(self, channels: int, width: int, invariants: CodeInvariants, eps: float | None = None) -> None:
        super().__init__()
        if invariants not in ("frame", "product"):
            raise ValueError(f'unknown invariants {invariants!r} of a code: choose "frame" or "product"')
        self.channels, frame = channels, invariants == "frame"
        self.read = vector.Invariant(channels, mean=False, norm="none", eps=eps) if frame else None
        self.partner = None if frame else vector.Linear(channels, channels)
        self.known = 3 * channels if frame else channels
        self.linear = nn.Linear(1 + channels + self.known, width)

    def numbers(self, code: Float[Tensor, "batch 3 channels"]) -> Float[Tensor, "batch invariants"]:
        """What is known of the shape whatever its pose, as numbers."""
        if self.partner is not None:
            return torch.sum(code * self.partner(code), dim=-2)
        assert self.read is not None
        known: Tensor = self.read(code)
        return known

    def forward(self, code: Tensor, numbers: Tensor, queries: Tensor) -> Tensor:
        # ⟨x, Z⟩ is never built for all channels: its image W ⟨x, Z⟩ = ⟨x, Z Wᵀ⟩ has fewer.
        square, product, known = torch.split(self.linear.weight, [1, self.channels, self.known], dim=1)
        constant = F.linear(numbers, known, self.linear.bias).unsqueeze(1)
        squares = queries.square().sum(-1, keepdim=True)
        return torch.add(queries @ VF.linear(code, product), squares * square.squeeze(-1)) + constant


class LocalQueries(nn.Module):
    """What the nearest points of the cloud say of a place, in as many numbers as the first layer has.

    For each of them: how far it is, and the way `r` from it in the vectors that it has learned, `⟨r, U⟩`, of which one
    may be a normal of the surface. Nearer points count more. Invariant like the rest, and beyond the paper, whose
    decoder has one code for all places.
    """

    def __init__(self, channels: int, width: int, nearest: int, *, vectors: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.nearest = nearest
        self.vectors = vector.Linear(channels, vectors)
        self.each, self.all = nn.Linear(vectors + 1, hidden), nn.Linear(hidden, width)

    def forward(self, points: Tensor, vectors: Tensor, queries: Tensor) -> Tensor:
        with torch.no_grad():
            # By differences: it does not depend on the number of points, which may be free in an exported graph.
            distances = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
            neighbours = distances.topk(self.nearest, largest=False).indices
        way = queries.unsqueeze(2) - gather(points, neighbours)
        distance = way.norm(dim=-1, keepdim=True)
        along = (way.unsqueeze(-2) @ gather(vectors, neighbours)).squeeze(-2)
        said = self.each(torch.cat([along, distance], dim=-1)).relu()
        nearness = 1 / (distance + NEAREST)
        result: Tensor = self.all((said * nearness).sum(-2) / nearness.sum(-2))
        return result


class ConditionalNorm(nn.Module):
    """Batch norm whose scale and shift are read from what is known of the shape."""

    def __init__(self, known: int, width: int) -> None:
        super().__init__()
        self.norm = scalar.BatchNorm(width)
        self.norm.bn.requires_grad_(False)  # its own scale and shift stay 1 and 0
        self.scale, self.shift = nn.Linear(known, width), nn.Linear(known, width)
        for linear, start in ((self.scale, 1.0), (self.shift, 0.0)):
            nn.init.zeros_(linear.weight)
            nn.init.constant_(linear.bias, start)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        scale, shift = (linear(numbers).unsqueeze(1) for linear in (self.scale, self.shift))
        return torch.addcmul(shift, self.norm(x), scale)


class ConditionalBlock(nn.Module):
    """A `ResNetBlock` with a conditional norm before each ReLU."""

    def __init__(self, known: int, width: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = ConditionalNorm(known, width), ConditionalNorm(known, width)
        self.linear_in, self.linear_out = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.linear_out.weight)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        hidden = self.linear_in(self.norm_in(x, numbers).relu())
        change: Tensor = self.linear_out(self.norm_out(hidden, numbers).relu())
        return x + change


class Decoder(nn.Module):
    """Logits of places, from a code: a first layer on both, ResNet blocks, a last layer.

    With `conditional`, norms that depend on the code stand before all ReLUs, as in OccNet's stronger decoder (whose
    first layer sees the place alone).
    """

    def __init__(
        self,
        queries: PlainQueries | InvariantQueries,
        width: int,
        *,
        conditional: bool,
        local: LocalQueries | None = None,
        blocks: int = 5,
    ) -> None:
        super().__init__()
        self.queries, self.conditional, self.local = queries, conditional, local
        if conditional:
            made: list[nn.Module] = [ConditionalBlock(queries.known, width) for _ in range(blocks)]
        else:
            made = [ResNetBlock("scalar", width, width) for _ in range(blocks)]
        self.blocks = nn.ModuleList(made)
        self.norm = ConditionalNorm(queries.known, width) if conditional else None
        self.logits = nn.Linear(width, 1)

    def forward(self, code: Code, queries: Tensor) -> Tensor:
        numbers = self.queries.numbers(code.overall)
        x = self.queries(code.overall, numbers, queries)
        if self.local is not None:
            x = x + self.local(code.points, code.vectors, queries)
        for block in self.blocks:
            x = block(x, numbers) if self.conditional else block(x)
        if self.norm is not None:
            x = self.norm(x, numbers)
        logits: Tensor = self.logits(x.relu()).squeeze(-1)
        return logits


class OccupancyNetwork(Model):
    """Says of places `(B, Q, 3)` whether they lie inside the shapes of clouds `(B, N, 3)`: logits `(B, Q)`.

    `neurons` are those of the encoder, a ResNet-PointNet or a DGCNN. Vector neurons make a code of vectors, which
    turns with the cloud, and an invariant decoder: turn cloud and places together, and the logits stay (VN-OccNet;
    edges have cross products, so reflections change them). Scalar neurons make numbers: with the plain decoder
    that is OccNet, with the invariant one the paper's ablation, which takes the numbers for coordinates of vectors.
    `code` and `hidden` count scalar neurons, of which vector neurons take a third. `invariants` of the code are
    VN-In(Z) (`"frame"`, the paper) or `⟨Z, W Z⟩` (`"product"`, its code). `conditional` is OccNet's decoder with
    conditional batch norm. `local` goes beyond the paper: the decoder also asks so many of the cloud's points, those
    nearest to the place, what they know. `eps=1e-6` is the authors', see `Block`.
    """

    def __init__(
        self,
        *,
        neurons: Neurons = "vector",
        encoder: EncoderName = "pointnet",
        decoder: DecoderName | None = None,
        code: int = 513,
        hidden: int | None = None,
        decoder_hidden: int = 128,
        conditional: bool = False,
        invariants: CodeInvariants = "frame",
        local: int = 0,
        k: int = 20,
        eps: float | None = None,
    ) -> None:
        super().__init__()
        kit, turns = kit_of(neurons), neurons == "vector"
        decoder = decoder or ("invariant" if turns else "plain")
        if encoder not in ("pointnet", "dgcnn") or decoder not in ("invariant", "plain"):
            raise ValueError(
                f'encoders are "pointnet" and "dgcnn", decoders "invariant" and "plain", got {encoder!r}, {decoder!r}'
            )
        if turns and decoder == "plain":
            raise ValueError("a plain decoder takes numbers: vector neurons go with the invariant one")
        if code < 3 or (decoder == "invariant" and code % 3):
            raise ValueError(f"a code has 3 or more channels, that of an invariant decoder whole vectors, got {code}")
        if (hidden is not None and hidden < 3) or decoder_hidden < 1:
            raise ValueError(
                f"layers need channels: hidden 3 or more, decoder_hidden 1, got {hidden}, {decoder_hidden}"
            )
        if local < 0 or (local and not turns):
            raise ValueError(f"a local decoder asks one or more points for their vectors, got {local} and {neurons}")
        # The paper extends the layers of the vector encoder, to twice the third that would be its share.
        width = kit.width(hidden or (2 * 513 if turns else 513))
        encoders = {"pointnet": ResNetPointNet, "dgcnn": DGCNNFeatures}
        self.encoder = encoders[encoder](neurons, width, k=k, eps=eps)
        self.pool = kit.POOLS["mean" if turns else "max"](width)
        self.bend = kit.LeakyReLU(width, slope=0.0, eps=eps)
        self.to_code = kit.Linear(width, kit.width(code))
        self.as_vectors = decoder == "invariant" and not turns
        queries: PlainQueries | InvariantQueries
        if decoder == "plain":
            queries = PlainQueries(code, decoder_hidden)
        else:
            queries = InvariantQueries(code // 3, decoder_hidden, invariants, eps)
        near = LocalQueries(width, decoder_hidden, local) if local else None
        self.decoder = Decoder(queries, decoder_hidden, conditional=conditional, local=near)

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        queries: Float[Tensor, "batch queries 3"],
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch queries"]:
        """Give logits of the queries. Clouds shorter than N say so in `lengths`."""
        return self.decode(self.encode(points, lengths), queries)

    def encode(self, points: Float[Tensor, "batch points 3"], lengths: Int[Tensor, " batch"] | None = None) -> Code:
        """Give the code of each cloud."""
        mask = mask_of(points, lengths)
        local = self.decoder.local
        fewest = points.shape[1]
        if lengths is not None and local is not None and readable(lengths) and lengths.numel():
            fewest = int(lengths.min())
        if local is not None and fewest < local.nearest:
            raise ValueError(f"a decoder that asks {local.nearest} points got a cloud of {fewest}")
        points = points if mask is None else points.where(mask.unsqueeze(-1), 0)
        check_size(points, LARGEST, "clouds")
        features = self.encoder(points, mask)
        overall: Tensor = self.to_code(self.bend(self.pool(features, mask)))
        if self.as_vectors:
            overall = torch.unflatten(overall, -1, (-1, 3)).mT
        if local is None:
            return Code(overall)
        # Padding is where nobody asks for it.
        places = points if mask is None else points.masked_fill(~mask.unsqueeze(-1), torch.inf)
        return Code(overall, places, local.vectors(features))

    def decode(self, code: Code, queries: Float[Tensor, "batch queries 3"]) -> Float[Tensor, "batch queries"]:
        """Give logits of the queries, from the codes of their shapes."""
        count = code.overall.shape[0]
        if queries.ndim != 3 or queries.shape[-1] != 3 or queries.shape[0] != count:
            raise ValueError(f"{count} codes need queries ({count}, Q, 3), got {tuple(queries.shape)}")
        check_size(queries, LARGEST, "queries")
        logits: Tensor = self.decoder(code, queries)
        return logits

    def example(self, points: Tensor) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
        return (points, torch.randn_like(points)), ("points", "points")
