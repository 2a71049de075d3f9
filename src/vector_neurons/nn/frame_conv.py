"""Convolutions whose centers express their neighbors in learned local frames."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import gather
from ..typing import Mask, Norm
from . import _dispatch, _dispatch_scalar, scalar
from . import functional as VF
from ._checks import check_scalars, check_vectors
from ._masked import masked_mean
from .features import Features
from .frame import frame_layer
from .linear import Linear


class FrameConv(nn.Module):
    """Convolution whose centers express their neighbors in a learned local frame (set abstraction).

    For center n and neighbor m at offset `d = x_m - x_n`, with the frame `T_n` of the center's vectors, the message is
    `e = MLP([s_m, T_nᵀ d, ‖d‖, T_nᵀ V_m])`. Scalars out are its maximum over m; vectors out are the means over m of
    `w(e) ⊗ d` and `w(e) ⊙ (W V_m)`. Offsets are in units of the cloud's RMS offset, so the scale does not matter.

    Args:
        in_channels: scalars and vectors in; scalars may be 0.
        out_channels: scalars and vectors out; half of the vectors (rounded up) come from offsets.
        hidden: width of the MLP's first layer; by default that of the scalars out.
        norm: of the MLP, `"batch"`, `"layer"` or `"none"`.
        negative_slope: of its leaky ReLUs.
        orthonormal: as in `Frame`.
        fixed: use the axes of space as frame, for a scalar counterpart.

    Shape:
        - points: `(B, N, 3)`
        - x: `(B, N, S)` and `(B, N, 3, C)`
        - neighbors: `(B, M, K)`, indices of points; the first neighbor of a center is the center itself, as in `knn`
        - mask: `(B, M)`, True at centers and False at padding, optional
        - out: `(B, M, S_out)` and `(B, M, 3, C_out)`

    Equivariant to O(3) (with `orthonormal` to SO(3) only), permutations and translations: scalars are invariant,
    vectors rotate.

    >>> points, layer = torch.randn(2, 10, 3), vn.nn.hybrid.FrameConv((0, 1), (16, 6))
    >>> x = vn.nn.hybrid.Features(torch.zeros(2, 10, 0), vn.lift(points))
    >>> layer(points, x, vn.knn(points, 4)[:, :5]).scalars.shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        hidden: int | None = None,
        norm: Norm = "batch",
        negative_slope: float = 0.1,
        orthonormal: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, (scalars, vectors) = in_channels, in_channels
        self.frame = frame_layer(vectors, orthonormal=orthonormal, fixed=fixed)
        widths = [scalars + 4 + 3 * vectors, hidden or out_channels[0], out_channels[0]]
        self.message = nn.ModuleList(
            scalar.Block(a, b, norm=norm, negative_slope=negative_slope) for a, b in pairwise(widths)
        )
        self.from_features = out_channels[1] // 2
        self.weight = scalar.Linear(out_channels[0], out_channels[1], bias=False)
        self.linear = Linear(vectors, self.from_features)

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        x: Features,
        neighbors: Int[Tensor, "batch centers neighbors"],
        mask: Bool[Tensor, "batch centers"] | None = None,
    ) -> Features:
        check_scalars(self, x.scalars, self.in_channels[0], rank=3)
        check_vectors(self, x.vectors, self.in_channels[1], rank=4)
        offset = gather(points, neighbors) - gather(points, neighbors[..., :1])  # B M K 3
        offset = offset / rms_length(offset, mask)
        frame = self.frame(x.gather(neighbors[..., 0]).vectors, mask)  # B M 3 3
        first: scalar.Block
        last: scalar.Block
        first, last = self.message  # type: ignore[assignment]
        e, largest = last.with_max(self._first_block(first, offset, x, frame, neighbors, mask), mask)
        return Features(largest, self._means(self.weight(e), offset, self.linear(x.vectors), neighbors))

    @staticmethod
    def _first_block(
        block: scalar.Block, offset: Tensor, x: Features, frame: Tensor, neighbors: Tensor, mask: Mask | None
    ) -> Tensor:
        """The first block of the messages; scalars are mapped at the points, before they are gathered."""
        weight, bias, scalars = block.linear.weight, block.linear.bias, x.scalars.shape[-1]
        on_scalars, on_seen = weight.tensor_split([scalars], dim=1)
        own = nn.functional.linear(x.scalars, on_scalars, bias) if scalars or bias is not None else None
        if _dispatch.frames_fusable(x.vectors):
            norm = block.constant_norm(x.vectors, mask)
            inputs = (offset, x.vectors, frame, on_seen, own, neighbors)
            mapped = _dispatch.frame_linear(*inputs, norm, block.negative_slope)
            return mapped if norm is not None else block.activate(mapped, mask)
        both = torch.cat([offset.unsqueeze(-1), gather(x.vectors, neighbors)], dim=-1)
        seen = torch.cat([VF.project_onto_frame(both, frame.unsqueeze(2)), VF.norm(offset.unsqueeze(-1))], dim=-1)
        mapped = _dispatch_scalar.scalar_linear(seen, on_seen, None)
        return block.activate(mapped if own is None else mapped + gather(own, neighbors), mask)

    def _means(self, weights: Tensor, offset: Tensor, v: Tensor, neighbors: Tensor) -> Tensor:
        """Weighted means over the neighbors of their offsets and of their vectors."""
        if _dispatch.frames_fusable(v):
            return _dispatch.frame_mean(weights, offset, v, neighbors)
        on_offsets, on_features = weights.tensor_split([weights.shape[-1] - v.shape[-1]], dim=-1)
        directions = offset.mT @ on_offsets / offset.shape[2]
        mixed = (on_features.unsqueeze(-2) * gather(v, neighbors)).mean(2)
        return torch.cat([directions, mixed], dim=-1)


def rms_length(offset: Float[Tensor, "batch points k 3"], mask: Mask | None) -> Float[Tensor, "batch 1 1 1"]:
    """RMS length of all offsets of a cloud, 1 where they vanish."""
    mean = 3 * masked_mean(offset.square(), [1, 2, 3], mask)  # one sum: over three coordinates alone it would be slow
    return mean.where(mean > 0, 1).sqrt()
