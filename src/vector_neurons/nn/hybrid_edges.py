"""Edge convolutions and attention on features of both kinds."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Unpack

import torch
from torch import Tensor, nn

from ..geometry.neighbors import edge_features, knn
from ..typing import BlockOptions, Mask, Neighbors, Pool
from ._range import MAX_CROSSABLE, MAX_SQUARABLE, in_float64, needs_float64
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
    """Multi-head attention among the points of a cloud, on features of both kinds.

    The score of a query and a key is the inner product of their scalars plus that of their vectors, which no rotation
    changes; values of both kinds are averaged with the same weights.

    Args:
        channels: scalars and vectors in and out, both divisible by `heads`.
        heads: attention heads.

    Shape:
        - x, out: `(B, N, S)` and `(B, N, 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Attention((8, 4), heads=2)(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(self, channels: tuple[int, int], heads: int) -> None:
        super().__init__()
        for number in channels:
            if number % heads:
                raise ValueError(f"{number} channels do not divide among {heads} heads")
        self.channels, self.heads = channels, heads
        self.query, self.key, self.value, self.out = (Linear(channels, channels) for _ in range(4))

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, self.channels, rank=3)

        def split(y: Tensor) -> Tensor:  # (B, N, ..., C) → (B, heads, N, ..., C / heads)
            return torch.unflatten(y, -1, (self.heads, y.shape[-1] // self.heads)).movedim(-2, 1)

        def join(y: Tensor) -> Tensor:
            return y.movedim(1, -2).flatten(-2)

        queries, keys, values = (layer(x).map(split) for layer in (self.query, self.key, self.value))
        attn_mask = None if mask is None else mask[:, None, None]
        mixed = nn.functional.scaled_dot_product_attention(
            queries.flat(), keys.flat(), values.flat(), attn_mask=attn_mask
        )
        scalars, vectors = mixed.tensor_split([values.scalars.shape[-1]], dim=-1)
        result: Features = self.out(Features(join(scalars), join(vectors.reshape(values.vectors.shape))))
        return result
