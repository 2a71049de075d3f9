"""Edge convolutions and attention on features of both kinds."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Unpack

import torch
from torch import Tensor, nn

from ..geometry.neighbors import edge_features, knn
from ..typing import BlockOptions, Mask, Neighbors, Pool
from ._masked import mask_like
from ._range import MAX_CROSSABLE, MAX_SQUARABLE, in_float64, needs_float64
from .attention import keys_to_attend
from .edge_conv import EdgeConvBase
from .features import Channels, Features
from .hybrid_block import Block, Linear, check_features
from .hybrid_layers import POOLS


class EdgeConv(nn.Module):
    """Edge convolution of both kinds: a `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbors m of n.

    Without a graph, neighbors are the nearest in the space of scalars and coordinates of vectors together.

    Arguments as in the vector layer; channels are pairs, and `cross` adds products of vectors.

    Shape:
        - x: `(B, N, S)` and `(B, N, 3, C)`
        - neighbors: `(B, N, K)`, indices of points
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) (with `cross` to SO(3) only) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.lift(torch.randn(2, 10, 3))
    >>> vn.nn.hybrid.EdgeConv((0, 1), (16, 6), k=4)(x).channels
    Channels(scalars=16, vectors=6)
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int] | Sequence[tuple[int, int]],
        k: int = 20,
        *,
        cross: bool = False,
        pool: Pool = "mean",
        include_self: bool = True,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"an edge convolution needs k >= 1 neighbors, got {k}")
        if pool not in POOLS:
            raise ValueError(f"unknown pool {pool!r}: choose one of {', '.join(POOLS)}")
        pairs = [out_channels] if isinstance(out_channels[0], int) else out_channels
        widths = [Channels(*pair) for pair in pairs]  # type: ignore[misc]
        self.in_channels, self.out_channels, self.k = Channels(*in_channels), widths[-1], k
        self.cross, self.include_self = cross, include_self
        products = Channels(0, in_channels[1] if cross else 0)
        chain = [2 * self.in_channels + products, *widths]
        self.blocks = nn.ModuleList(Block(a, b, **options) for a, b in pairwise(chain))
        self.pool = POOLS[pool](self.out_channels)

    def forward(self, x: Features, neighbors: Neighbors | None = None, mask: Mask | None = None) -> Features:
        check_features(self, x, self.in_channels, rank=3)
        if neighbors is None:
            neighbors = knn(x.flat(), self.k, include_self=self.include_self, mask=mask)
        else:
            EdgeConvBase._check_graph(neighbors, x.vectors)
        return self.convolve(x, neighbors, mask)

    def convolve(self, x: Features, neighbors: Tensor, mask: Mask | None) -> Features:
        """Blocks on the edges of the graph, and the pool."""
        if needs_float64(x.vectors, MAX_CROSSABLE if self.cross else MAX_SQUARABLE):
            return Features(*in_float64(self.convolve, x, neighbors, mask))
        edges = Features(edge_features(x.scalars, neighbors), edge_features(x.vectors, neighbors, cross=self.cross))
        for block in self.blocks:
            edges = block(edges, mask)
        pooled: Features = self.pool(edges)
        return pooled

    def extra_repr(self) -> str:
        return f"{tuple(self.in_channels)}, {tuple(self.out_channels)}, k={self.k}, cross={self.cross}"


class Attention(nn.Module):
    """Multi-head attention among the elements of a sample, or from them to those of a context, of both kinds.

    The score of a query and a key is the inner product of their scalars plus that of their vectors, which no rotation
    changes, divided by the root of the number of floats per head. Values of both kinds have the same weights.

    Args:
        channels: scalars and vectors in and out, both divisible by `heads`.
        heads: attention heads.
        context_channels: scalars and vectors of the context, by default those of x.

    Shape:
        - x, out: `(B, N, S)` and `(B, N, 3, C)`
        - context: `(B, M, S_context)` and `(B, M, 3, C_context)`, optional; by default x itself
        - mask: of the context, `(B, M)`, True at points and False at padding, optional

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Attention((8, 4), heads=2)(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(
        self, channels: tuple[int, int], heads: int = 4, *, context_channels: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        for number, kind in zip(channels, Channels._fields, strict=True):
            if heads < 1 or number % heads:
                raise ValueError(f"{number} {kind} do not divide among {heads} heads")
        self.channels, self.heads = channels, heads
        self.context_channels = channels if context_channels is None else context_channels
        self.query = Linear(channels, channels)
        self.key, self.value = (Linear(self.context_channels, channels) for _ in range(2))
        self.out = Linear(channels, channels)

    def forward(self, x: Features, context: Features | None = None, mask: Mask | None = None) -> Features:
        check_features(self, x, self.channels, rank=3)
        context = x if context is None else context
        check_features(self, context, self.context_channels, rank=3)
        inputs = _QueriesAndKeys(*x, *context)
        if needs_float64(x.vectors) or needs_float64(context.vectors):
            return Features(*in_float64(self.mix, inputs, mask))
        return self.mix(inputs, mask)

    def mix(self, inputs: "_QueriesAndKeys", mask: Mask | None) -> Features:
        """Project, attend, project."""
        x, context = Features(*inputs[:2]), Features(*inputs[2:])

        def split(y: Tensor) -> Tensor:  # (B, N, ..., C) → (B, heads, N, ..., C / heads)
            return torch.unflatten(y, -1, (self.heads, y.shape[-1] // self.heads)).movedim(-2, 1)

        def join(y: Tensor) -> Tensor:
            return y.movedim(1, -2).flatten(-2)

        query, key, value = self.query(x).map(split), self.key(context), self.value(context)
        attn_mask = None
        if mask is not None:
            # Padding may hold anything: a weight of 0 would not remove NaN.
            key, value = (y.map(lambda z: z.where(mask_like(mask, z.ndim), 0)) for y in (key, value))
            attn_mask = keys_to_attend(mask)
        keys, values = key.map(split).flat(), value.map(split).flat()
        mixed = nn.functional.scaled_dot_product_attention(query.flat(), keys, values, attn_mask=attn_mask)
        scalars, vectors = mixed.tensor_split([query.scalars.shape[-1]], dim=-1)
        result: Features = self.out(Features(join(scalars), join(vectors.reshape(query.vectors.shape))))
        return result


class _QueriesAndKeys(NamedTuple):
    """Both kinds of the features that attend, and of those they attend to."""

    scalars: Tensor
    vectors: Tensor
    context_scalars: Tensor
    context_vectors: Tensor
