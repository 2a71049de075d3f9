"""The counterpart of VN-In for scalar features, which have no frame."""

from typing import Literal, Unpack

from jaxtyping import Int
from torch import Tensor, nn

from ..geometry.segments import segment_max, segment_mean
from ..typing import BlockOptions, Mask, Scalars
from . import _dispatch_scalar
from ._graph import check_batch


class Invariant(nn.Module):
    """The identity: scalar features have no frame. With `pool` the maximum and the mean over points.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., C)`
        - out: `(..., C)`

    Not equivariant.

    >>> vn.nn.scalar.Invariant(6)(torch.randn(2, 10, 6)).shape
    torch.Size([2, 10, 6])
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
        self.out_channels = channels

    def forward(
        self,
        x: Scalars,
        mask: Mask | None = None,
        *,
        return_frame: bool = False,
        pool: bool = False,
        batch: Int[Tensor, " points"] | None = None,
        size: int | None = None,
    ) -> Scalars | tuple[Tensor | None, ...]:
        segmented = batch is not None or size is not None
        segments = check_batch(self, batch, x, mask, size, rank=2) if segmented else None
        if pool and segments:
            return segment_max(x, *segments), segment_mean(x, *segments), None
        if pool:
            return *_dispatch_scalar.max_mean(x, mask), None
        return (x, None) if return_frame else x

    @staticmethod
    def project(x: Scalars, frame: None) -> Scalars:
        """Return further scalars as they are."""
        return x
