"""A rotation from vector features: the pose of a cloud, or a rotation for each element."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry import rotations
from ..typing import Vectors
from . import functional as VF
from ._checks import check_vectors
from ._range import in_float64, needs_float64
from .linear import Linear

Method = Literal["gram-schmidt", "svd"]


class PoseHead(nn.Module):
    """Predict a rotation from the vector features of each element, such as the pose of a cloud.

    `"gram-schmidt"`: two vectors `[a, b] = W V`, made orthonormal, and their cross product, as columns. `"svd"`: three
    vectors `M = W V`, and the rotation nearest to them, `argmin ‖R - M‖` (`geometry.rotations.nearest`). Train it with
    `geometry.rotations.geodesic_loss`.

    The output is a rotation matrix for all features. Where these determine none, it is one that is not equivariant, the
    same each time: for zero features the identity; where all vectors are parallel, a rotation about them is free, which
    Gram-Schmidt takes from the axes of space and the decomposition from rounding. Gradients there are finite.

    Args:
        channels: vectors in, at least 2.
        method: `"gram-schmidt"`, where the first vector counts most, or `"svd"`, where all count equally.

    Shape:
        - x: `(..., 3, channels)`, such as `(B, 3, channels)` or `(B, N, 3, channels)`
        - out: `(..., 3, 3)`, a rotation for each element

    Equivariant to SO(3), not to reflections: `head(R V) = R head(V)`. Invariant to scaling.

    >>> vn.nn.PoseHead(4)(torch.randn(2, 3, 4)).shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, channels: int, *, method: Method = "gram-schmidt") -> None:
        super().__init__()
        if method not in get_args(Method):
            raise ValueError(f'unknown method {method!r}: choose "gram-schmidt" or "svd"')
        if channels < 2:
            raise ValueError(f"PoseHead needs at least 2 vectors, which determine a rotation, got {channels}")
        self.channels, self.method = channels, method
        self.linear = Linear(channels, 2 if method == "gram-schmidt" else 3)

    def forward(self, x: Vectors) -> Float[Tensor, "... 3 3"]:
        check_vectors(self, x, self.channels)
        if x.shape[-2] != 3:
            raise ValueError(f"PoseHead predicts rotations that are 3-D only, got {tuple(x.shape)}")
        if needs_float64(x):
            return in_float64(self.forward, x)
        vectors = self.linear(x)
        return rotations.nearest(vectors) if self.method == "svd" else gram_schmidt(vectors)

    def extra_repr(self) -> str:
        return f"{self.channels}, method={self.method!r}"


def gram_schmidt(x: Float[Tensor, "... 3 2"]) -> Float[Tensor, "... 3 3"]:
    """The right-handed frame of two vectors, with axes of space in place of vectors that determine no direction."""
    wide, floor = rotations.unit_size(x)  # in float64: nearly parallel vectors lose digits
    first, second = wide.unbind(-1)
    axes = torch.eye(3, dtype=wide.dtype, device=wide.device)
    # Comparisons written so that NaN is not replaced. Vectors are at most √3 long.
    first = axes[0].where(first.detach().norm(dim=-1, keepdim=True) <= floor, first)
    along = first.detach() / first.detach().norm(dim=-1, keepdim=True)
    across = torch.linalg.cross(along, second.detach(), dim=-1).norm(dim=-1, keepdim=True)
    second = axes[along.abs().argmin(-1)].where(across <= 2 * floor, second)
    return VF.orthonormal_frame(torch.stack([first, second], dim=-1)).to(x.dtype)
