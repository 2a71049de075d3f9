"""Scalars beside vectors: features of both kinds, and the layers that mix them.

An invariant scalar stream learns faster than vectors alone; vectors carry the directions, and a learned frame turns
them into scalars wherever they are needed. The idea of VN-In, applied at every layer and every edge.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import gather
from ..typing import Frames, Mask, Norm, Vectors
from . import functional as VF
from . import scalar
from ._checks import check_scalars, check_vectors
from ._masked import masked_mean
from .linear import Linear

SOFT_FLOOR = 0.1  # relative length below which `Frame` shortens vectors instead of normalizing their rounding


class Features(NamedTuple):
    """Features of both kinds: scalars, which no rotation changes, beside vectors, which rotate with the input.

    Args:
        scalars: `(..., S)`.
        vectors: `(..., 3, C)`.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> x.map(lambda y: y[:, :5]).vectors.shape
    torch.Size([2, 5, 3, 4])
    """

    scalars: Float[Tensor, "... scalars"]
    vectors: Float[Tensor, "... 3 channels"]

    def map(self, function: Callable[[Tensor], Tensor]) -> "Features":
        """Apply a function to both, such as indexing the leading axes or moving to a device."""
        return Features(function(self.scalars), function(self.vectors))

    def gather(self, index: Tensor) -> "Features":
        """The features of the points `index`, `(B, M)` or `(B, M, K)`."""
        if index.ndim == 2:
            return self.map(lambda x: gather(x, index.unsqueeze(-1)).squeeze(2))
        return self.map(lambda x: gather(x, index))

    @staticmethod
    def cat(features: "Sequence[Features]") -> "Features":
        """Concatenate the channels of several features of the same elements."""
        return Features(*(torch.cat(kind, dim=-1) for kind in zip(*features, strict=True)))


class Frame(nn.Module):
    """Three vectors per element, linear in its features and of unit length: `T = U V / ‖U V‖`, column by column.

    Where a column nearly vanishes, as in symmetric neighborhoods, it is shortened instead of normalized: below a tenth
    of the sample's RMS length its direction would be rounding.

    Args:
        channels: vectors in.
        orthonormal: Gram-Schmidt and a cross product instead: a rotation matrix, which tells mirror images apart.

    Shape:
        - x: `(B, ..., 3, channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., 3, 3)`, three vectors as columns

    Equivariant to O(3) (with `orthonormal` to SO(3) only), invariant to scaling.

    >>> vn.nn.hybrid.Frame(4)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 3])
    """

    def __init__(self, channels: int, *, orthonormal: bool = False) -> None:
        super().__init__()
        self.linear, self.orthonormal = Linear(channels, 2 if orthonormal else 3), orthonormal

    def forward(self, x: Vectors, mask: Mask | None = None) -> Frames:
        frame = VF.soft_unit(self.linear(x), floor=SOFT_FLOOR, mask=mask)
        return VF.orthonormal_frame(frame) if self.orthonormal else frame


class FixedFrame(nn.Module):
    """The axes of space as the frame of every element, for the scalar counterpart of a network: not equivariant.

    Shape:
        - x: `(B, ..., 3, channels)`
        - out: `(B, ..., 3, 3)`

    Not equivariant.

    >>> vn.nn.hybrid.FixedFrame()(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 3])
    """

    def forward(self, x: Vectors, mask: Mask | None = None) -> Frames:
        return torch.eye(3, dtype=x.dtype, device=x.device).expand(*x.shape[:-1], 3)


def frame_layer(channels: int, *, orthonormal: bool, fixed: bool) -> nn.Module:
    """A learned frame, or with `fixed` the axes of space."""
    return FixedFrame() if fixed else Frame(channels, orthonormal=orthonormal)


class HybridBlock(nn.Module):
    """A block on features of both kinds: scalars see the vectors in a frame, vectors are gated by scalars.

    `s' = act(norm(W [s, Tᵀ V]))` with a learned frame T, and `V' = sigmoid(G s') ⊙ (W V)`.

    Args:
        in_channels: scalars and vectors in.
        out_channels: scalars and vectors out.
        norm: of the scalars, `"batch"`, `"layer"` or `"none"`.
        negative_slope: of the leaky ReLU of the scalars.
        orthonormal: as in `Frame`.
        fixed: use the axes of space as frame, for a scalar counterpart.

    Shape:
        - x: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: the same with other numbers of channels

    Equivariant to O(3) (with `orthonormal` to SO(3) only) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> y = vn.nn.hybrid.HybridBlock((8, 4), (16, 6))(x)
    >>> y.scalars.shape, y.vectors.shape
    (torch.Size([2, 10, 16]), torch.Size([2, 10, 3, 6]))
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        norm: Norm = "batch",
        negative_slope: float = 0.1,
        orthonormal: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, (scalars, vectors) = in_channels, in_channels
        self.frame = frame_layer(vectors, orthonormal=orthonormal, fixed=fixed)
        self.block = scalar.Block(scalars + 3 * vectors, out_channels[0], norm=norm, negative_slope=negative_slope)
        self.linear = Linear(vectors, out_channels[1])
        self.gate = nn.Linear(out_channels[0], out_channels[1])

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_scalars(self, x.scalars, self.in_channels[0])
        check_vectors(self, x.vectors, self.in_channels[1], rank=3)
        invariants = VF.project_onto_frame(x.vectors, self.frame(x.vectors, mask))
        s = self.block(torch.cat([x.scalars, invariants], dim=-1), mask)
        return Features(s, self.gate(s).sigmoid().unsqueeze(-2) * self.linear(x.vectors))


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
        self.weight = nn.Linear(out_channels[0], out_channels[1], bias=False)
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
        centers = neighbors[..., 0]
        offset = gather(points, neighbors) - gather(points, neighbors[..., :1])  # B M K 3
        offset = offset / rms_length(offset, mask)
        frame = self.frame(x.gather(centers).vectors, mask).unsqueeze(2)  # B M 1 3 3
        s, v = x.gather(neighbors)
        seen = VF.project_onto_frame(torch.cat([offset.unsqueeze(-1), v], dim=-1), frame)
        e = torch.cat([s, seen, VF.norm(offset.unsqueeze(-1))], dim=-1)
        for block in self.message:
            e = block(e, mask)
        on_offsets, on_features = self.weight(e).tensor_split([self.weight.out_features - self.from_features], dim=-1)
        directions = offset.mT @ on_offsets / offset.shape[2]
        mixed = (on_features.unsqueeze(-2) * self.linear(v)).mean(2)
        return Features(e.amax(2), torch.cat([directions, mixed], dim=-1))


def rms_length(offset: Float[Tensor, "batch points k 3"], mask: Mask | None) -> Float[Tensor, "batch 1 1 1"]:
    """RMS length of all offsets of a cloud, 1 where they vanish."""
    mean = masked_mean(offset.square().sum(-1, keepdim=True), [1, 2, 3], mask)
    return mean.where(mean > 0, 1).sqrt()


__all__ = ["Features", "FixedFrame", "Frame", "FrameConv", "HybridBlock"]
