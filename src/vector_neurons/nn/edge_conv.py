"""Edge convolutions, as in DGCNN."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.neighbors import edge_features, knn
from ..geometry.segments import EdgeIndex
from ..typing import BlockOptions, Mask, Neighbors, Pool
from ._checks import check_vectors
from ._dispatch import autocast
from ._factored import BUILD_MAX_CHANNELS, EdgeInput
from ._graph import check_edge_index
from ._range import MAX_CROSSABLE, MAX_SQUARABLE, in_float64, is_concrete, needs_float64
from .block import Block
from .pool import POOLS, can_fuse


class EdgeConvBase(nn.Module, ABC):
    """A graph, blocks on its edges, a pool over each point's neighbors; of vector or scalar neurons."""

    rank: ClassVar[int]  # of the features of points, without a batch axis
    block: ClassVar[type[nn.Module]]
    pools: ClassVar[dict[Pool, Callable[[int], nn.Module]]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int | Sequence[int],
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
        if pool not in self.pools:
            raise ValueError(f"unknown pool {pool!r}: choose one of {', '.join(self.pools)}")
        widths = [out_channels] if isinstance(out_channels, int) else list(out_channels)
        self.in_channels, self.out_channels, self.k = in_channels, widths[-1], k
        self.cross, self.include_self = cross, include_self
        edge_channels = in_channels * (3 if cross else 2)
        self.blocks = nn.ModuleList(self.block(a, b, **options) for a, b in pairwise([edge_channels, *widths]))
        self.pool = self.pools[pool](self.out_channels)

    def forward(
        self,
        x: Float[Tensor, "batch *feature"],
        neighbors: Neighbors | EdgeIndex | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "batch *out"]:
        if neighbors is not None and neighbors.ndim != 3:
            check_edge_index(self, neighbors, x, mask, rank=self.rank)
            self.check(x.unsqueeze(0))
            return self.convolve(x, neighbors, mask)
        self.check(x)
        if neighbors is None:
            neighbors = knn(x, self.k, include_self=self.include_self, mask=mask)
        else:
            self._check_graph(neighbors, x)
        return self.convolve(x, neighbors, mask)

    def convolve(self, x: Tensor, neighbors: Tensor, mask: Mask | None) -> Tensor:
        """Blocks on the edges of the graph, and the pool."""
        # Half precision would lose the difference of neighbors in the difference of their projections.
        half = x.dtype in (torch.float16, torch.bfloat16) or autocast(x)
        graph = neighbors.ndim == 2  # the edges of an irregular graph, (2, E)
        build = graph or self.cross or self.in_channels <= BUILD_MAX_CHANNELS or half
        edges = self.edges(x, neighbors) if build else EdgeInput(x, neighbors)
        *first, last = self.blocks
        for block in first:
            edges = block(edges, mask)
        if graph:
            return self.pool(last(edges), batch=neighbors[1], size=x.shape[0])
        return self.block_pool(last, edges, mask)

    @staticmethod
    def _check_graph(neighbors: Tensor, x: Tensor) -> None:
        if neighbors.shape[:2] != x.shape[:2]:
            expected, found = tuple(x.shape[:2]), tuple(neighbors.shape)
            raise ValueError(f"a graph of {expected} clouds and points has neighbors {(*expected, 'k')}, got {found}")
        if not neighbors.numel() or not is_concrete(neighbors):
            return
        if neighbors.min() < 0 or neighbors.max() >= x.shape[1]:
            raise ValueError(f"neighbors must be indices 0 to {x.shape[1] - 1} of the cloud's own points")

    def block_pool(self, block: nn.Module, edges: Tensor | EdgeInput, mask: Mask | None) -> Tensor:
        """The last block, and the pool over neighbors."""
        return self.pool(block(edges, mask))

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse features of the wrong shape."""

    @abstractmethod
    def edges(self, x: Tensor, neighbors: Tensor) -> Tensor:
        """Features of every edge."""

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, k={self.k}, cross={self.cross}"


class EdgeConv(EdgeConvBase):
    """VN edge convolution: a `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbors m of n.

    Args:
        in_channels: vectors in.
        out_channels: vectors out; several widths stack as many blocks on each edge.
        k: neighbors per point, where no graph is given.
        cross: adds the channels `x_m × x_n` to every edge.
        pool: `"mean"` or `"max"`.
        include_self: whether a point is its own first neighbor.
        options: of the blocks.

    Shape:
        - x: `(B, N, 3, in_channels)`
        - neighbors: `(B, N, K)`, indices of points, such as `knn(points, k)`; by default the `k` nearest in the space
          of the features
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, N, 3, out_channels)`
        - on an irregular graph, x: `(N, 3, in_channels)`, neighbors: `(2, E)`, int64, edges from sources m (row 0) to
          targets n (row 1) as in PyTorch Geometric, out: `(N, 3, out_channels)`; a point without incoming edges gets
          zeros

    Equivariant to O(D) and permutations; with `cross` to SO(3) only, in 3-D, and not to scaling.

    >>> vn.EdgeConv(1, 8, k=4)(vn.lift(torch.randn(2, 10, 3))).shape
    torch.Size([2, 10, 3, 8])
    >>> edge_index = torch.tensor([[0, 1, 2, 2], [1, 0, 0, 2]])
    >>> vn.EdgeConv(1, 8)(torch.randn(3, 3, 1), edge_index).shape
    torch.Size([3, 3, 8])
    """

    block, pools, rank = Block, POOLS, 3

    def check(self, x: Tensor) -> None:
        check_vectors(self, x, self.in_channels, rank=4)

    def convolve(self, x: Tensor, neighbors: Tensor, mask: Mask | None) -> Tensor:
        if needs_float64(x, MAX_CROSSABLE if self.cross else MAX_SQUARABLE):
            return in_float64(self.convolve, x, neighbors, mask)
        return super().convolve(x, neighbors, mask)

    def edges(self, x: Tensor, neighbors: Tensor) -> Tensor:
        return edge_features(x, neighbors, cross=self.cross)

    def block_pool(self, block: nn.Module, edges: Tensor | EdgeInput, mask: Mask | None) -> Tensor:
        if can_fuse(block, self.pool, edges):
            return block(edges, mask, mean_pool=True)
        return super().block_pool(block, edges, mask)
