"""The invariant layer: from vectors to scalars that no rotation changes."""

from typing import Literal, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry.segments import segment_max, segment_mean
from ..typing import BlockOptions, Frames, Mask, Vectors
from . import _dispatch
from . import functional as VF
from ._checks import check_vectors
from ._factored import ConcatMean
from ._graph import check_batch
from ._masked import masked_mean
from ._range import in_float64, needs_float64
from .block import MLP


class Invariant(nn.Module):
    """VN-In: learn a frame `T_n` of three vectors and project the features onto it, `T_nᵀ V_n` (paper, section 3.5).

    Equivariant layers end here: the frame rotates with the features, so their coordinates in it are invariant. The
    number of scalars per element is `out_channels`.

    Args:
        channels: vectors in.
        kind: `"frame"` (VN-In, `3 C` scalars), `"gram"` (inner products, `C (C + 1) / 2`) or `"norm"` (lengths, `C`).
        frame: how the frame is learned: `"mlp"`, three VN layers (the paper's choice), or `"linear"`.
        mean: let the frame also depend on the mean over all elements of the sample.
        project_mean: also project that mean onto the frame (`6 C` scalars, as the authors' code does).
        orthonormal: make the frame a rotation matrix.
        options: of the blocks of the `"mlp"`.

    Shape:
        - x: `(..., 3, channels)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(..., out_channels)`
        - with `return_frame=True`: out and the frame `(..., 3, 3)`, three vectors as columns
        - with `pool=True`, x `(B, N, 3, channels)`: maximum and mean of out over the points, `(B, out_channels)` each,
          and the frame
        - with batch `(N,)`, int64, the cloud of each point in any order, x: `(N, 3, channels)`: means and maxima are
          those of each cloud, and with `pool=True` `(clouds, out_channels)`

    Invariant to O(3) (with `orthonormal` to SO(3) only), equivariant to permutations.

    >>> layer = vn.Invariant(4)
    >>> layer(torch.randn(2, 10, 3, 4)).shape, layer.out_channels
    (torch.Size([2, 10, 12]), 12)
    >>> scalars, frame = layer(torch.randn(2, 10, 3, 4), return_frame=True)
    >>> frame.shape
    torch.Size([2, 10, 3, 3])
    """

    def __init__(
        self,
        channels: int,
        *,
        kind: Literal["frame", "gram", "norm"] = "frame",
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        project_mean: bool = False,
        orthonormal: bool = False,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        if kind not in ("frame", "gram", "norm") or frame not in ("mlp", "linear"):
            raise ValueError(
                f'Invariant has kinds "frame", "gram", "norm" and frames "mlp", "linear", got {kind!r}, {frame!r}'
            )
        if project_mean and not mean:
            raise ValueError("Invariant with project_mean=True needs mean=True")
        self.channels, self.kind, self.mean, self.project_mean = channels, kind, mean, project_mean
        self.orthonormal = orthonormal
        if kind == "frame":
            in_channels = channels * (2 if mean else 1)
            widths = [in_channels, max(1, in_channels // 2), max(1, in_channels // 4)]
            self.to_frame = MLP([*(widths if frame == "mlp" else widths[:1]), 2 if orthonormal else 3], **options)
            self.out_channels = 3 * channels * (2 if project_mean else 1)
        else:
            self.out_channels = channels if kind == "norm" else channels * (channels + 1) // 2

    def forward(
        self,
        x: Vectors,
        mask: Mask | None = None,
        *,
        return_frame: bool = False,
        pool: bool = False,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Float[Tensor, "... invariants"] | tuple[Tensor, ...]:
        segmented = batch is not None or size is not None
        check_vectors(self, x, self.channels, rank=3 if segmented else 4 if pool else 2)
        segments = check_batch(self, batch, x, mask, size, rank=3) if segmented else None
        if needs_float64(x):
            return in_float64(self.forward, x, mask, return_frame=return_frame, pool=pool, batch=batch, size=size)
        if self.kind == "frame":
            return self._in_frame(x, mask, segments, return_frame=return_frame, pool=pool)
        if return_frame or pool:
            raise ValueError(f'Invariant of kind {self.kind!r} has no frame and no pool: use kind="frame"')
        if self.kind == "norm":
            return VF.norm(x).to(x.dtype)
        row, column = torch.triu_indices(self.channels, self.channels, device=x.device)
        return VF.invariant_product(x, x)[..., row, column]

    def _in_frame(
        self, x: Tensor, mask: Mask | None, segments: tuple[Tensor, int] | None, *, return_frame: bool, pool: bool
    ) -> Tensor | tuple[Tensor, ...]:
        # The mean over every axis between the batch and the vectors: never over samples, whose poses differ.
        elements = list(range(1, x.ndim - 2))
        mean = masked_mean(x, elements, mask) if self.mean and elements else x
        if self.mean and segments:
            mean = segment_mean(x, *segments).index_select(0, segments[0])
        frame = self.to_frame(ConcatMean(x, mean) if self.mean else x, mask)
        if self.orthonormal:
            frame = VF.orthonormal_frame(frame)
        if pool and not segments:
            return *_dispatch.frame_pool(x, mean if self.project_mean else None, frame, mask), frame
        scalars = self.project(ConcatMean(x, mean).concat() if self.project_mean else x, frame)
        if pool and segments:
            return segment_max(scalars, *segments), segment_mean(scalars, *segments), frame
        return (scalars, frame) if return_frame else scalars

    @staticmethod
    def project(x: Vectors, frame: Frames) -> Float[Tensor, "... invariants"]:
        """Project further vectors of the same elements onto a frame."""
        return VF.project_onto_frame(x, frame)

    def extra_repr(self) -> str:
        return f"{self.channels}, kind={self.kind!r}, mean={self.mean}, orthonormal={self.orthonormal}"
