"""What vector and scalar neurons have in common, written once over a kit's own `Linear`, `Block` and pools."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Unpack

from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.neighbours import knn
from ..typing import BlockOptions, Neighbours, Pool


class MLPBase(nn.Sequential):
    """Blocks from width to width, and a plain linear map to the last."""

    linear: ClassVar[type[nn.Module]]
    block: ClassVar[type[nn.Module]]

    def __init__(self, widths: Sequence[int], **options: Unpack[BlockOptions]) -> None:
        if len(widths) < 2:
            raise ValueError(f"an MLP needs at least an input and an output width, got {list(widths)}")
        blocks = [self.block(a, b, **options) for a, b in pairwise(widths[:-1])]
        super().__init__(*blocks, self.linear(*widths[-2:]))


class EdgeConvBase(nn.Module, ABC):
    """Edges of a graph, a block on each, a pool over each point's neighbours."""

    block_type: ClassVar[type[nn.Module]]
    pools: ClassVar[dict[Pool, type[nn.Module]]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        k: int = 20,
        *,
        cross: bool = False,
        pool: Pool = "mean",
        include_self: bool = True,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"an edge convolution needs k >= 1 neighbours, got {k}")
        self.in_channels, self.out_channels, self.k = in_channels, out_channels, k
        self.cross, self.include_self = cross, include_self
        self.block = self.block_type(in_channels * (3 if cross else 2), out_channels, **options)
        self.pool = self.pools[pool](out_channels)

    def forward(
        self, x: Float[Tensor, "batch points *feature"], neighbours: Neighbours | None = None
    ) -> Float[Tensor, "batch points *out"]:
        self.check(x)
        if neighbours is None:
            neighbours = knn(x, self.k, include_self=self.include_self)
        pooled: Tensor = self.pool(self.block(self.edges(x, neighbours)))
        return pooled

    @abstractmethod
    def check(self, x: Tensor) -> None:
        """Refuse features of the wrong shape."""

    @abstractmethod
    def edges(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Features of every edge."""

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, k={self.k}, cross={self.cross}"
