"""An occupancy network that asks the points near a query, at several scales, instead of one code for all queries."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..geometry.neighbors import gather, knn
from ..geometry.query import ball_query, nearest
from ..geometry.sampling import farthest_points
from ..nn import vector
from ..nn._masked import masked_mean
from ..nn._range import check_magnitude
from ..nn.features import Features
from ..nn.hybrid import HybridBlock
from ..nn.linear import lift
from ..nn.propagation import FeaturePropagation
from ..typing import Mask
from .hierarchy import NEGATIVE_SLOPE, NESTED, Level, Stage, max_and_mean, normalize
from .inputs import first_mask, mask_of
from .occupancy import MAX_COORDINATE, OccupancyModel

HEADS = 4
NEIGHBORS = 12  # of a point, itself included, which tell its spacing and its normal
NORMAL_SCALE = 4.0  # the product of two eigenvalues of sum 1 is at most a quarter
MIN_SPACING = 1e-3  # of points, for clouds of RMS radius 1: duplicates are no closer
OFFSET_SCALE = 4.0  # brings offsets of clouds of RMS radius 1 near a query to the size of other features
MAX_OFFSET = 20.0  # in spacings: farther is equally far


class Scale(NamedTuple):
    """The points of one resolution as a decoder asks them: `(B, M, ...)` each.

    `own` has scalars, already mapped to the decoder's width; `spacing` is the distance to neighboring points.
    """

    points: Tensor
    own: Tensor
    vectors: Tensor
    spacing: Tensor
    mask: Mask | None


class LocalCode(NamedTuple):
    """Codes of clouds: the `center` and `size` that normalize them, points at several scales, the `whole` cloud."""

    center: Tensor
    size: Tensor
    scales: list[Scale]
    whole: Features


class NearPoints(nn.Module):
    """Invariant features of a query from its `k` nearest points of one scale, by attention over them.

    Of a point at offset `r` with scalars `s`, vectors `V`, of which some are projected onto the normal of the point,
    and spacing `h`, the message is `e = MLP([s, ⟨r, V⟩, ⟨r, V⟩ / h, ‖r‖, ‖r‖ / h])`. Weights are the softmax over the
    points of scores of `e` that decrease with the distance, for each of four heads.
    """

    def __init__(self, channels: tuple[int, int], width: int, k: int, vectors: int) -> None:
        super().__init__()
        scalars, own = channels
        self.k = k
        self.vectors = vector.Linear(own, vectors)
        self.own = nn.Linear(scalars, width)
        self.seen = nn.Linear(2 * vectors + 2, width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, HEADS)
        self.out = nn.Linear(width, width)

    def prepare(self, points: Tensor, x: Features, mask: Mask | None) -> Scale:
        """Map the features of the points, once for all queries."""
        found = nearest(points, points, fewer(NEIGHBORS, points), mask=mask)
        spacing, onto_normal = surroundings(gather(points, found) - points.unsqueeze(2))
        free, along = self.vectors(x.vectors).tensor_split(2, dim=-1)
        vectors = torch.cat([free, onto_normal @ along], dim=-1)
        return Scale(points, self.own(x.scalars), vectors, spacing, mask)

    def forward(self, scale: Scale, queries: Tensor) -> Tensor:
        neighbors = nearest(queries, scale.points, fewer(self.k, scale.points), mask=scale.mask)
        offset = queries.unsqueeze(2) - gather(scale.points, neighbors)
        spacing = gather(scale.spacing, neighbors)
        seen = (offset.unsqueeze(-2) @ gather(scale.vectors, neighbors)).squeeze(-2)
        seen = torch.cat([seen, offset.norm(dim=-1, keepdim=True)], dim=-1)
        relative = (seen / spacing).clamp(-MAX_OFFSET, MAX_OFFSET)
        message = self.seen(torch.cat([OFFSET_SCALE * seen, relative], dim=-1)) + gather(scale.own, neighbors)
        # In place: neither a sum nor a linear layer needs its output again, and fresh memory costs more than the ReLU.
        message = self.hidden(message.relu_()).relu_()
        weights = (self.score(message) - relative[..., -1:].log1p()).softmax(2)
        mixed = torch.einsum("bqkh,bqkhc->bqhc", weights, message.unflatten(-1, (HEADS, -1)))
        return self.out(mixed.flatten(-2))


class WholeCloud(nn.Module):
    """Invariant features of a query from one code of the whole cloud, as in the paper: `MLP([s, ‖x‖, ⟨x, Z⟩])`.

    They say what no near point knows: how far a shape goes on behind what a camera sees.
    """

    def __init__(self, channels: tuple[int, int], width: int, codes: tuple[int, int]) -> None:
        super().__init__()
        scalars, vectors = codes
        self.embed = HybridBlock(channels, codes, negative_slope=NEGATIVE_SLOPE)
        self.own = nn.Linear(2 * scalars, width)
        self.seen = nn.Linear(vectors + 1, width, bias=False)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def prepare(self, x: Features, mask: Mask | None) -> Features:
        """Pool the features of the coarsest points, and map their scalars, once for all queries."""
        s, v = self.embed(x, mask)
        return Features(self.own(max_and_mean(s, mask)).unsqueeze(1), masked_mean(v, [1], mask).squeeze(1))

    def forward(self, whole: Features, queries: Tensor) -> Tensor:
        seen = torch.cat([queries @ whole.vectors, queries.norm(dim=-1, keepdim=True)], dim=-1)
        message = self.hidden((self.seen(OFFSET_SCALE * seen) + whole.scalars).relu())
        return self.out(message.relu())


class FrameNetOccupancy(OccupancyModel):
    """Occupancy network with the layers of `FrameNet`: a query asks the points near it, at several scales.

    The encoder has levels of `FrameConv` with at most `centers` points each, a farthest-point sample, so that a cloud
    of more points is seen in more detail and not in smaller pieces; `FeaturePropagation` takes what the coarse levels
    know back to all points. The decoder asks the points near a query at every level, and sees its offset from them in
    their vectors; one code of the whole cloud, as in the paper, tells the rest. Clouds of any number of points can be
    encoded, with normals or without.

    Args:
        k: neighbors per center; a cloud has at least so many points.
        centers: most points of each level.
        width: scalars of the first level, which grow with the level; vectors are a quarter of them.
        decoder_hidden: channels of the decoder.
        near: nearest points that a query asks in the whole cloud, and at each level.
        vectors: vectors of a point in which a query sees its offset.
        blocks: residual blocks of the decoder.

    Shape:
        - points: `(B, N, 3)`
        - queries: `(B, Q, 3)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - normals: `(B, N, 3)`, of length 1, optional
        - out: `(B, Q)`

    Invariant to O(3), translations and scaling of points, normals and queries together, and to permutations.

    >>> network = vn.models.FrameNetOccupancy(k=8, centers=(16, 8), width=16, decoder_hidden=16, near=(4, 4, 4))
    >>> network(torch.randn(2, 32, 3), torch.randn(2, 5, 3)).shape
    torch.Size([2, 5])
    """

    takes_normals = True

    def __init__(
        self,
        *,
        k: int = 16,
        centers: Sequence[int] = (512, 128, 32),
        width: int = 48,
        decoder_hidden: int = 64,
        near: Sequence[int] = (20, 14, 8, 8),
        vectors: int = 16,
        blocks: int = 2,
    ) -> None:
        super().__init__()
        if decoder_hidden < HEADS or decoder_hidden % HEADS:
            raise ValueError(f"decoder_hidden must be a multiple of {HEADS}, got {decoder_hidden}")
        if not centers or min(centers) < 1 or sorted(centers, reverse=True) != list(centers):
            raise ValueError(f"centers are numbers of points, the largest first, got {list(centers)}")
        if len(near) != len(centers) + 1 or min(near) < 1:
            raise ValueError(f"near has {len(centers) + 1} numbers of points, one for each scale, got {list(near)}")
        self.k, self.centers = k, tuple(centers)
        # Of a point: spacing, whether normals are known; means of offsets, its position twice, its normal.
        channels = [(2, 3 + len(NESTED))]
        channels += [(width * (n + 1), width * (n + 1) // 4) for n in range(len(centers))]
        self.levels = nn.ModuleList(Level(a, b, b[0] // 2) for a, b in pairwise(channels))
        fine = [(width, width // 4), *channels[1:]]  # features of the decoder at each scale
        self.finer = nn.ModuleList(
            FeaturePropagation(coarse, own, out, negative_slope=NEGATIVE_SLOPE)
            for coarse, own, out in zip(fine[1:], channels, fine, strict=False)
        )
        self.near = nn.ModuleList(
            NearPoints(one, decoder_hidden, number, vectors) for one, number in zip(fine, near, strict=True)
        )
        self.whole = WholeCloud(channels[-1], decoder_hidden, (4 * width, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Linear(decoder_hidden, decoder_hidden), nn.ReLU(), last)
            for last in (nn.Linear(decoder_hidden, decoder_hidden) for _ in range(blocks))
        )
        self.logits = nn.Linear(decoder_hidden, 1)

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        queries: Float[Tensor, "batch queries 3"],
        lengths: Int[Tensor, " batch"] | None = None,
        normals: Float[Tensor, "batch points 3"] | None = None,
    ) -> Float[Tensor, "batch queries"]:
        """Compute logits of the queries; `lengths` are the numbers of points before padding."""
        return self.decode(self.encode(points, lengths, normals), queries)

    def encode(
        self,
        points: Float[Tensor, "batch points 3"],
        lengths: Int[Tensor, " batch"] | None = None,
        normals: Float[Tensor, "batch points 3"] | None = None,
    ) -> LocalCode:
        """Compute the code of each cloud; `lengths` are the numbers of points before padding."""
        mask = mask_of(points, lengths)
        check_magnitude(points, MAX_COORDINATE, "clouds")
        points, center, size = normalize(points, mask)
        stages = self._stages(points, normals, mask)
        last = stages[-1]
        scales = [last]
        for finer, stage in zip(reversed(self.finer), reversed(stages[:-1]), strict=True):
            coarse = scales[0]
            x = finer(coarse.points, coarse.x, stage.points, stage.x, stage.mask, coarse.mask)
            scales.insert(0, stage._replace(x=x))
        prepared = [cast(NearPoints, near).prepare(*scale) for near, scale in zip(self.near, scales, strict=True)]
        return LocalCode(center, size, prepared, self.whole.prepare(last.x, last.mask))

    def _stages(self, points: Tensor, normals: Tensor | None, mask: Mask | None) -> list[Stage]:
        """Features of all points, and of the centers of every level."""
        neighbors = knn(points, self.k, mask=mask)
        offset = gather(points, neighbors) - points.unsqueeze(2)
        spacing, onto_normal = surroundings(offset)
        means = [(offset[:, :, : max(2, self.k // n)].mean(2) / spacing).unsqueeze(-1) for n in NESTED]
        directions = torch.zeros_like(points) if normals is None else normals
        v = torch.cat([*means, lift(points), onto_normal @ lift(points), lift(directions)], dim=-1)
        s = torch.cat([spacing.log(), torch.full_like(spacing, normals is not None)], dim=-1)
        stages = [Stage(points, Features(s, v), mask)]
        order = farthest_points(points, fewer(self.centers[0], points), mask=mask)
        for level, count in zip(self.levels, self.centers, strict=True):
            count = fewer(count, points)
            # A farthest-point sample begins with that of fewer points: later centers are the first of those before.
            first = order[:, :count] if len(stages) == 1 else torch.arange(count).to(order).expand(order.shape[0], -1)
            here, x, own = stages[-1]
            reduced = None if own is None else first_mask(own.sum(1).clamp(max=count), count)
            found = ball_query(here, math.inf, self.k, first, own)
            x = level(here, x, found, reduced)
            stages.append(Stage(gather(here, first.unsqueeze(-1)).squeeze(2), x, reduced))
        return stages

    def decode(self, code: LocalCode, queries: Float[Tensor, "batch queries 3"]) -> Float[Tensor, "batch queries"]:
        """Compute logits of the queries from the codes of their shapes."""
        self.check_queries(queries, code.center.shape[0])
        queries = (queries - code.center) / code.size
        x = self.whole(code.whole, queries)
        for near, scale in zip(self.near, code.scales, strict=True):
            x = x + near(scale, queries)
        for block in self.blocks:
            x = x + block(x)
        return self.logits(F.relu(x)).squeeze(-1)


def fewer(number: int, points: Tensor) -> int:
    """So many, or as many as a cloud has points; not `min`, which would fix the number in an exported graph."""
    found: int = torch.sym_min(number, points.shape[1])  # type: ignore[no-untyped-call]
    return found


def surroundings(
    offset: Float[Tensor, "batch points k 3"],
) -> tuple[Float[Tensor, "batch points 1"], Float[Tensor, "batch points 3 3"]]:
    """The RMS distance of points to their neighbors, and a matrix that projects onto their normals.

    The matrix is the adjugate of the covariance of the offsets, scaled to trace 1: `λ₁λ₂ n nᵀ` if the neighbors lie in
    a plane of normal n. It needs neither an eigenvector nor its sign.
    """
    with torch.no_grad():
        squares = offset.square().sum((-2, -1)).unsqueeze(-1)
        spacing = (squares / offset.shape[2]).sqrt().clamp(min=MIN_SPACING)
        offset = offset - offset.mean(2, keepdim=True)
        covariance = offset.mT @ offset
        a, b, c = (
            covariance / covariance.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=MIN_SPACING**2)[..., None, None]
        ).unbind(-1)
        cofactors = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], dim=-1)
        return spacing, NORMAL_SCALE * cofactors
