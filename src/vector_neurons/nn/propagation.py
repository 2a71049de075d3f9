"""Feature propagation: interpolate the features of few points to more points, as the decoder of a hierarchy does."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import gather
from ..geometry.query import interpolation_weights, nearest
from ..typing import Mask, Norm
from ._checks import check_scalars, check_vectors
from .features import Features
from .hybrid_block import HybridBlock


def interpolate(
    x: Float[Tensor, "batch points *feature"],
    neighbors: Int[Tensor, "batch targets k"],
    weights: Float[Tensor, "batch targets k"],
) -> Float[Tensor, "batch targets *feature"]:
    """Weighted sums of the features of each target's neighbors, `y_n = Σ_j w_nj x_m(n,j)`.

    Args:
        x: features of the source points: scalars `(B, M, S)`, vectors `(B, M, 3, C)` or any others.
        neighbors: indices of source points, `geometry.query.nearest(targets, sources, k)`.
        weights: of the neighbors, `geometry.query.interpolation_weights(targets, sources, neighbors)`.

    Shape:
        - x: `(B, M, ...)`
        - neighbors, weights: `(B, N, k)`
        - out: `(B, N, ...)`

    Equivariant to O(D), permutations and scaling.

    >>> x, neighbors = torch.tensor([[[0.0], [10.0]]]), torch.tensor([[[0, 1]]])
    >>> vn.nn.propagation.interpolate(x, neighbors, torch.tensor([[[0.75, 0.25]]])).tolist()
    [[[2.5]]]
    """
    near = gather(x, neighbors)
    return (near * weights.view(*weights.shape, *[1] * (x.ndim - 2))).sum(2).to(x.dtype)


class FeaturePropagation(nn.Module):
    """Interpolate features of few points to more points, add the features known there, apply a `HybridBlock`.

    At target n, with its `k` nearest sources m at distances `d_nm` (PointNet++):
    `y_n = HybridBlock([Σ_m w_nm x_m, skip_n])`, `w_nm = d_nm⁻² / Σ_m' d_nm'⁻²`. A target that coincides with a source
    takes the features of that source.

    Args:
        in_channels: scalars and vectors of the sources.
        skip_channels: scalars and vectors that the targets have already; `(0, 0)` without them.
        out_channels: scalars and vectors out.
        k: sources per target; all of them in clouds that have fewer.
        norm: of the scalars, `"batch"`, `"layer"` or `"none"`.
        negative_slope: of the leaky ReLU of the scalars.
        orthonormal: as in `Frame`.
        fixed: use the axes of space as frame, for a scalar counterpart.

    Shape:
        - sources: `(B, M, 3)`, few points
        - x: `(B, M, S)` and `(B, M, 3, C)`, their features
        - targets: `(B, N, 3)`, more points
        - skip: `(B, N, S_skip)` and `(B, N, 3, C_skip)`, their features, optional
        - mask: `(B, N)`, True at targets and False at padding, optional
        - source_mask: `(B, M)`, the same of the sources
        - out: `(B, N, S_out)` and `(B, N, 3, C_out)`

    Equivariant to O(3) (with `orthonormal` to SO(3) only) and permutations, invariant to translations and to the scale
    of the points: scalars are invariant, vectors rotate.

    >>> points, layer = torch.randn(2, 10, 3), vn.nn.hybrid.FeaturePropagation((8, 4), (0, 1), (16, 6))
    >>> x = vn.nn.hybrid.Features(torch.randn(2, 5, 8), torch.randn(2, 5, 3, 4))
    >>> skip = vn.nn.hybrid.Features(torch.zeros(2, 10, 0), vn.lift(points))
    >>> y = layer(points[:, :5], x, points, skip)
    >>> y.scalars.shape, y.vectors.shape
    (torch.Size([2, 10, 16]), torch.Size([2, 10, 3, 6]))
    """

    def __init__(
        self,
        in_channels: tuple[int, int],
        skip_channels: tuple[int, int],
        out_channels: tuple[int, int],
        *,
        k: int = 3,
        norm: Norm = "batch",
        negative_slope: float = 0.1,
        orthonormal: bool = False,
        fixed: bool = False,
    ) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"feature propagation needs k >= 1 sources per target, got {k}")
        self.in_channels, self.skip_channels, self.k = in_channels, skip_channels, k
        self.block = HybridBlock(
            (in_channels[0] + skip_channels[0], in_channels[1] + skip_channels[1]),
            out_channels,
            norm=norm,
            negative_slope=negative_slope,
            orthonormal=orthonormal,
            fixed=fixed,
        )

    def forward(
        self,
        sources: Float[Tensor, "batch sources dim"],
        x: Features,
        targets: Float[Tensor, "batch points dim"],
        skip: Features | None = None,
        mask: Mask | None = None,
        source_mask: Bool[Tensor, "batch sources"] | None = None,
    ) -> Features:
        self._check(sources, x, self.in_channels, "source")
        if skip is not None:
            self._check(targets, skip, self.skip_channels, "target")
        elif any(self.skip_channels):
            raise ValueError(
                f"FeaturePropagation with skip_channels {self.skip_channels} needs skip, features of targets"
            )
        # A padded target may hold anything: it must not change the scale of its cloud.
        targets = targets if mask is None else targets.where(mask.unsqueeze(-1), 0)
        # Not min(): an exported graph is for clouds of at least k sources.
        k = self.k if sources.shape[1] >= self.k else sources.shape[1]
        neighbors = nearest(targets, sources, k, mask=source_mask)
        weights = interpolation_weights(targets, sources, neighbors, mask=source_mask)
        y = x.map(lambda kind: interpolate(kind, neighbors, weights))
        return self.block(y if skip is None else Features.cat([y, skip]), mask)

    def _check(self, points: Tensor, x: Features, channels: tuple[int, int], kind: str) -> None:
        check_scalars(self, x.scalars, channels[0], rank=3)
        check_vectors(self, x.vectors, channels[1], rank=4)
        if not points.shape[:2] == x.scalars.shape[:2] == x.vectors.shape[:2]:
            shapes = f"{tuple(x.scalars.shape)} and {tuple(x.vectors.shape)}"
            raise ValueError(f"FeaturePropagation needs features of {kind} points {tuple(points.shape)}, got {shapes}")

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.skip_channels}, k={self.k}"
