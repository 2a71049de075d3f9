"""Decoders of occupancy networks: logits of query points, from the code of a cloud."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..geometry.neighbors import gather
from ..nn import functional as VF
from ..nn import scalar, vector

RELU: dict[str, Any] = {"norm": "none", "negative_slope": 0.0}
MIN_DISTANCE = 0.01  # points nearer than this have equal weights; clouds have radius 1

CodeInvariants = Literal["frame", "product"]


class Code(NamedTuple):
    """Codes of clouds.

    `overall` is `(B, 3, C)`, or scalars `(B, C)` for a plain decoder. A local decoder also uses the `points`
    `(B, N, 3)` and the features `vectors` `(B, N, 3, V)` of each.
    """

    overall: Tensor
    points: Tensor | None = None
    vectors: Tensor | None = None


class PlainQueries(nn.Module):
    """`φ(x) + ψ(z)` of query points x and a code z of scalars: not invariant."""

    def __init__(self, code: int, width: int) -> None:
        super().__init__()
        self.place, self.code, self.num_scalars = nn.Linear(3, width), nn.Linear(code, width), code

    def scalars(self, code: Float[Tensor, "batch channels"]) -> Float[Tensor, "batch channels"]:
        """The code itself."""
        return code

    def forward(self, code: Tensor, scalars: Tensor, queries: Tensor) -> Tensor:
        return torch.add(self.place(queries), self.code(scalars).unsqueeze(1))


class InvariantQueries(nn.Module):
    """A linear map of `‖x‖²`, `⟨x, Z⟩` and invariants of Z, for query points x: no rotation of x and Z changes it.

    The invariants are VN-In(Z), as the paper writes, or `⟨Z, W Z⟩` channel by channel, as its code does ("product").
    """

    def __init__(self, channels: int, width: int, invariants: CodeInvariants, eps: float | None = None) -> None:
        super().__init__()
        if invariants not in ("frame", "product"):
            raise ValueError(f'unknown invariants {invariants!r} of a code: choose "frame" or "product"')
        self.channels, frame = channels, invariants == "frame"
        self.read = vector.Invariant(channels, mean=False, norm="none", eps=eps) if frame else None
        self.partner = None if frame else vector.Linear(channels, channels)
        self.num_scalars = 3 * channels if frame else channels
        self.linear = nn.Linear(1 + channels + self.num_scalars, width)

    def scalars(self, code: Float[Tensor, "batch 3 channels"]) -> Float[Tensor, "batch invariants"]:
        """Invariants of the code."""
        if self.partner is not None:
            return torch.sum(code * self.partner(code), dim=-2)
        assert self.read is not None
        return self.read(code)

    def forward(self, code: Tensor, scalars: Tensor, queries: Tensor) -> Tensor:
        # ⟨x, Z⟩ is not computed for all channels: W ⟨x, Z⟩ = ⟨x, Z Wᵀ⟩ has fewer.
        square, product, own = torch.split(self.linear.weight, [1, self.channels, self.num_scalars], dim=1)
        constant = F.linear(scalars, own, self.linear.bias).unsqueeze(1)
        squares = queries.square().sum(-1, keepdim=True)
        return torch.add(queries @ VF.linear(code, product), squares * square.squeeze(-1)) + constant


class LocalQueries(nn.Module):
    """Invariant features of a query point from the points of the cloud nearest to it, as wide as the first layer.

    For each of them: the distance, and the offset `r` from it projected onto its vector features, `⟨r, U⟩`, one of
    which may be a surface normal. The average is weighted by inverse distance. Beyond the paper, whose decoder has one
    code for all query points.
    """

    def __init__(self, channels: int, width: int, nearest: int, *, vectors: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.nearest = nearest
        self.vectors = vector.Linear(channels, vectors)
        self.each, self.all = nn.Linear(vectors + 1, hidden), nn.Linear(hidden, width)

    def forward(self, points: Tensor, vectors: Tensor, queries: Tensor) -> Tensor:
        with torch.no_grad():
            # By differences: independent of the number of points, which may be dynamic in an exported graph.
            distances = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
            neighbors = distances.topk(self.nearest, largest=False).indices
        offset = queries.unsqueeze(2) - gather(points, neighbors)
        distance = offset.norm(dim=-1, keepdim=True)
        projected = (offset.unsqueeze(-2) @ gather(vectors, neighbors)).squeeze(-2)
        features = self.each(torch.cat([projected, distance], dim=-1)).relu()
        weight = 1 / (distance + MIN_DISTANCE)
        return self.all((features * weight).sum(-2) / weight.sum(-2))


class ConditionalNorm(nn.Module):
    """Batch norm whose scale and shift are functions of the code."""

    def __init__(self, num_scalars: int, width: int) -> None:
        super().__init__()
        self.norm = scalar.BatchNorm(width)
        self.norm.bn.requires_grad_(False)  # its own scale and shift stay 1 and 0
        self.scale, self.shift = nn.Linear(num_scalars, width), nn.Linear(num_scalars, width)
        for linear, start in ((self.scale, 1.0), (self.shift, 0.0)):
            nn.init.zeros_(linear.weight)
            nn.init.constant_(linear.bias, start)

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        scale, shift = (linear(scalars).unsqueeze(1) for linear in (self.scale, self.shift))
        return torch.addcmul(shift, self.norm(x), scale)


class ConditionalBlock(nn.Module):
    """A `ResidualBlock` with a conditional norm before each ReLU."""

    def __init__(self, num_scalars: int, width: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = ConditionalNorm(num_scalars, width), ConditionalNorm(num_scalars, width)
        self.linear_in, self.linear_out = nn.Linear(width, width), nn.Linear(width, width)
        nn.init.zeros_(self.linear_out.weight)

    def forward(self, x: Tensor, scalars: Tensor) -> Tensor:
        hidden = self.linear_in(self.norm_in(x, scalars).relu())
        return x + self.linear_out(self.norm_out(hidden, scalars).relu())


class Decoder(nn.Module):
    """Logits of query points, from a code: a first layer on both, ResNet blocks, a last layer.

    With `conditional`, norms that depend on the code precede all ReLUs, as in OccNet's stronger decoder (whose first
    layer takes the query point alone).
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
            stack: list[nn.Module] = [ConditionalBlock(queries.num_scalars, width) for _ in range(blocks)]
        else:
            stack = [scalar.ResidualBlock(width, **RELU) for _ in range(blocks)]
        self.blocks = nn.ModuleList(stack)
        self.norm = ConditionalNorm(queries.num_scalars, width) if conditional else None
        self.logits = nn.Linear(width, 1)

    def forward(self, code: Code, queries: Tensor) -> Tensor:
        scalars = self.queries.scalars(code.overall)
        x = self.queries(code.overall, scalars, queries)
        if self.local is not None:
            x = x + self.local(code.points, code.vectors, queries)
        for block in self.blocks:
            x = block(x, scalars) if self.conditional else block(x)
        if self.norm is not None:
            x = self.norm(x, scalars)
        return self.logits(x.relu()).squeeze(-1)
