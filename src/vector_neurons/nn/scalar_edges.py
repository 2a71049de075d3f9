"""Edge convolutions and attention on scalar features."""

from torch import Tensor

from ..geometry.neighbors import edge_features
from ..typing import Mask
from ._checks import check_scalars, hooked
from .attention import AttentionBase
from .edge_conv import EdgeConvBase
from .scalar_block import Block
from .scalar_linear import Linear
from .scalar_pool import POOLS, MaxPool


class EdgeConv(EdgeConvBase):
    """DGCNN's edge convolution: `Block` on `[x_m - x_n, x_n]` of every edge, pooled over the neighbors m of n.

    `cross` takes the channels for coordinates of vectors, three by three, and adds their products `x_m × x_n`.

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`, or `(N, C)` with edges `(2, E)`
        - out: `(..., C_out)`

    Not equivariant.

    >>> vn.nn.scalar.EdgeConv(6, 8, k=4)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 8])
    """

    block, pools, rank = Block, POOLS, 2

    def check(self, x: Tensor) -> None:
        check_scalars(self, x, self.in_channels, rank=3)
        if self.cross and self.in_channels % 3:
            raise ValueError(f"cross products need coordinates in threes, got {self.in_channels} channels")

    def convolve(self, x: Tensor, neighbors: Tensor, mask: Mask | None) -> Tensor:
        block, *more = self.blocks
        # The kernel does not call the block and the pool: not if they were replaced or have hooks.
        called = type(self.pool) is not MaxPool or hooked(self.pool) or hooked(block)
        regular = mask is None and neighbors.ndim == 3 and neighbors.numel() > 0
        if type(block) is Block and not (more or called or self.cross) and regular:
            pooled = block.edge_max(x, neighbors)
            if pooled is not None:
                return pooled
        return super().convolve(x, neighbors, mask)

    def edges(self, x: Tensor, neighbors: Tensor) -> Tensor:
        if self.cross:
            vectors = x.view(*x.shape[:-1], -1, 3).mT  # the coordinates of one vector stand together, as lifted
            return edge_features(vectors, neighbors, cross=True).mT.flatten(-2)
        return edge_features(x, neighbors)


class Attention(AttentionBase):
    """Multi-head attention among the elements of a sample, or from them to those of a context.

    Arguments as in the vector layer.

    Shape:
        - x: `(B, N, C)`
        - out: `(B, N, C)`

    Not equivariant.

    >>> vn.nn.scalar.Attention(6, heads=2)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
    """

    linear = Linear

    def check(self, x: Tensor, channels: int) -> None:
        check_scalars(self, x, channels, rank=3)
        if x.ndim > 3:
            raise ValueError(f"Attention takes features (B, N, {channels}), got {tuple(x.shape)}: flatten the axes")
