"""Occupancy networks: from a sparse, noisy cloud to a function that tells whether query points are inside its shape.

The paper's three methods are three compositions of an encoder and a decoder: OccNet is scalar and plain, the ablation
scalar and invariant, VN-OccNet vector and invariant.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import knn
from ..nn._factored import ConcatGlobal, ConcatMean
from ..nn._range import check_magnitude, is_concrete
from ..typing import Mask, Neurons
from .base import Model
from .dgcnn import Trunk
from .inputs import Inputs, mask_of
from .occupancy_decoder import RELU, Code, CodeInvariants, Decoder, InvariantQueries, LocalQueries, PlainQueries
from .options import LayerOptions, kit_of

STEM_WIDTH = 384  # channels of the first edge convolution, counted in scalars: 128 vectors
DGCNN_WIDTHS = (64, 64, 128, 256)
MAX_COORDINATE = 2.0**40  # decoders square products of queries and codes

EncoderName = Literal["pointnet", "dgcnn"]
DecoderName = Literal["invariant", "plain"]


class ResNetPointNet(nn.Module):
    """Features of every point, from ResNet blocks with a pool over all points before each.

    A lifted cloud has one vector per point, of which linear maps only make multiples: vector neurons start with an edge
    convolution.
    """

    def __init__(self, neurons: Neurons, width: int, *, k: int, blocks: int = 5, eps: float | None = None) -> None:
        super().__init__()
        kit, self.vector, self.k = kit_of(neurons), neurons == "vector", k
        self.lift, stem, self.stem = kit.lift, kit.width(3), None
        if self.vector:
            stem = kit.width(STEM_WIDTH)
            self.stem = kit.EdgeConv(1, stem, k=k, cross=True, norm="none", negative_slope=0.0, eps=eps)
        self.embed = kit.Linear(stem, 2 * width)
        self.blocks = nn.ModuleList(kit.ResidualBlock(2 * width, width, eps=eps, **RELU) for _ in range(blocks))
        self.pool = kit.POOLS["mean" if self.vector else "max"](width)

    def forward(self, points: Tensor, mask: Mask | None) -> Tensor:
        x: Tensor = self.lift(points)
        if self.stem is not None:
            x = self.stem(x, knn(points, self.k, mask=mask), mask)
        x = self.embed(x)
        for number, block in enumerate(self.blocks):
            x = block(self._with_pool(x, mask) if number else x)
        return x

    def _with_pool(self, x: Tensor, mask: Mask | None) -> ConcatMean | ConcatGlobal:
        pooled = self.pool(x, mask)
        return ConcatMean(x, pooled.unsqueeze(1)) if self.vector else ConcatGlobal(pooled, x)


class DGCNNFeatures(Trunk):
    """Features of every point, from the edge convolutions of a DGCNN."""

    def __init__(self, neurons: Neurons, width: int, *, k: int, eps: float | None = None) -> None:
        embedding, layers = width * (3 if neurons == "vector" else 1), LayerOptions(eps=eps)
        super().__init__(neurons, DGCNN_WIDTHS, embedding, k=k, graph="feature", inputs=Inputs(), layers=layers)

    def forward(self, points: Tensor, mask: Mask | None) -> Tensor:  # type: ignore[override]
        return super().forward(points, None, None, mask)[1]


class OccupancyModel(Model, ABC):
    """Base class of occupancy networks, which encode clouds and decode query points to logits of being inside.

    Attributes:
        takes_normals: whether a cloud may come with normals.

    Shape:
        - points: `(B, N, 3)`
        - queries: `(B, Q, 3)`
        - out: `(B, Q)`

    Invariant to what the network is invariant to, if points and queries move together.

    >>> isinstance(vn.models.OccupancyNetwork(code=12, hidden=24), vn.models.OccupancyModel)
    True
    """

    takes_normals: ClassVar[bool] = False

    @abstractmethod
    def encode(self, points: Any, lengths: Any = None) -> Any:
        """Compute the code of each cloud; `lengths` are the numbers of points before padding."""

    @abstractmethod
    def decode(self, code: Any, queries: Any) -> Any:
        """Compute logits of the queries from the codes of their shapes."""

    @staticmethod
    def check_queries(queries: Tensor, count: int) -> None:
        """Refuse queries that do not fit to so many codes."""
        if queries.ndim != 3 or queries.shape[-1] != 3 or queries.shape[0] != count:
            raise ValueError(f"{count} codes need queries ({count}, Q, 3), got {tuple(queries.shape)}")
        check_magnitude(queries, MAX_COORDINATE, "queries")

    def example(self, points: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
        return (points, torch.randn_like(points)), ("points", "points")


class OccupancyNetwork(OccupancyModel):
    """Occupancy network: whether query points are inside the shapes of point clouds, as logits.

    Vector neurons encode a cloud as vectors, which rotate with it, and the decoder is invariant: VN-OccNet. Scalar
    neurons encode it as scalars: with the plain decoder that is OccNet, with the invariant one the paper's ablation,
    which takes the scalars for coordinates of vectors.

    Args:
        neurons: of the encoder, `"vector"` or `"scalar"`.
        encoder: `"pointnet"` (a ResNet-PointNet) or `"dgcnn"`.
        decoder: `"invariant"`, which vector neurons need and have by default, or `"plain"`.
        code: channels of the code, counted in scalars; vector neurons take a third.
        hidden: channels of the encoder, counted in scalars.
        decoder_hidden: channels of the decoder.
        conditional: OccNet's decoder with conditional batch norm.
        invariants: of the code, VN-In(Z) (`"frame"`, the paper) or `⟨Z, W Z⟩` (`"product"`, its code).
        local: number of nearest points of the cloud whose features the decoder also uses; beyond the paper.
        k: neighbors per point in the encoder.
        eps: the authors' absolute eps (1e-6), see `Block`.

    Shape:
        - points: `(B, N, 3)`
        - queries: `(B, Q, 3)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - out: `(B, Q)`

    Vector neurons: invariant to rotations (SO(3)) of points and queries together.

    >>> network = vn.models.OccupancyNetwork(code=12, hidden=24, decoder_hidden=8, k=4)
    >>> network(torch.randn(2, 16, 3), torch.randn(2, 5, 3)).shape
    torch.Size([2, 5])
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
        kit, vectors = kit_of(neurons), neurons == "vector"
        if neurons == "hybrid":
            raise ValueError('OccupancyNetwork has vector or scalar neurons: choose neurons="vector" or "scalar"')
        decoder = decoder or ("invariant" if vectors else "plain")
        if encoder not in ("pointnet", "dgcnn") or decoder not in ("invariant", "plain"):
            raise ValueError(
                f'encoders are "pointnet" and "dgcnn", decoders "invariant" and "plain", got {encoder!r}, {decoder!r}'
            )
        if vectors and decoder == "plain":
            raise ValueError('a plain decoder takes scalars: vector neurons need decoder="invariant"')
        if code < 3 or (decoder == "invariant" and code % 3):
            raise ValueError(f"code must be 3 or more, with an invariant decoder a multiple of 3, got {code}")
        if (hidden is not None and hidden < 3) or decoder_hidden < 1:
            raise ValueError(
                f"hidden must be 3 or more and decoder_hidden 1 or more, got {hidden} and {decoder_hidden}"
            )
        if local < 0 or (local and not vectors):
            raise ValueError(f"local must be 0 or more, and 0 with scalar neurons, got {local} with {neurons} neurons")
        # The paper doubles the width of the vector encoder beyond its third.
        width = kit.width(hidden or (2 * 513 if vectors else 513))
        encoders = {"pointnet": ResNetPointNet, "dgcnn": DGCNNFeatures}
        self.encoder = encoders[encoder](neurons, width, k=k, eps=eps)
        self.pool = kit.POOLS["mean" if vectors else "max"](width)
        self.activation = kit.LeakyReLU(width, negative_slope=0.0, eps=eps)
        self.to_code = kit.Linear(width, kit.width(code))
        self.as_vectors = decoder == "invariant" and not vectors
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
        """Compute logits of the queries; `lengths` are the numbers of points before padding."""
        return self.decode(self.encode(points, lengths), queries)

    def encode(self, points: Float[Tensor, "batch points 3"], lengths: Int[Tensor, " batch"] | None = None) -> Code:
        """Compute the code of each cloud."""
        mask = mask_of(points, lengths)
        local = self.decoder.local
        fewest = points.shape[1]
        if lengths is not None and local is not None and is_concrete(lengths) and lengths.numel():
            fewest = int(lengths.min())
        if local is not None and fewest < local.nearest:
            raise ValueError(f"the local decoder uses the {local.nearest} nearest points, got a cloud of {fewest}")
        points = points if mask is None else points.where(mask.unsqueeze(-1), 0)
        check_magnitude(points, MAX_COORDINATE, "clouds")
        features = self.encoder(points, mask)
        overall = self.to_code(self.activation(self.pool(features, mask)))
        if self.as_vectors:
            overall = torch.unflatten(overall, -1, (-1, 3)).mT
        if local is None:
            return Code(overall)
        # Padding at infinity is never among the nearest points.
        candidates = points if mask is None else points.masked_fill(~mask.unsqueeze(-1), torch.inf)
        return Code(overall, candidates, local.vectors(features))

    def decode(self, code: Code, queries: Float[Tensor, "batch queries 3"]) -> Float[Tensor, "batch queries"]:
        """Compute logits of the queries from the codes of their shapes."""
        self.check_queries(queries, code.overall.shape[0])
        return self.decoder(code, queries)
