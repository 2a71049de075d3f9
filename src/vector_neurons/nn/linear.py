"""VN-Linear, the lift from points to vector features, and dropout."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..typing import NewVectors, Points, Vectors
from . import _dispatch
from . import functional as VF
from ._checks import check_vectors
from ._factored import ConcatMean, EdgeInput

MAX_DIM = 8  # three points in more dimensions than this are taken for a cloud (B, 3, N)


def width(channels: int) -> int:
    """Number of vector channels in place of `channels` scalar ones: a third, as in the paper.

    >>> vn.width(1023)
    341
    """
    return channels // 3


def lift(*clouds: Points) -> Float[Tensor, "*batch points dim channels"]:
    """Make vector features of a point cloud: one channel for the coordinates, one for each further vector of a point.

    Args:
        clouds: the coordinates, and optionally normals or other vectors of the same points.

    Shape:
        - clouds: `(B, N, 3)` each
        - out: `(B, N, 3, number of clouds)`

    Equivariant to O(3).

    >>> vn.lift(torch.zeros(2, 10, 3)).shape
    torch.Size([2, 10, 3, 1])
    """
    shape = clouds[0].shape
    if len(shape) > 1 and shape[-2] == 3 and shape[-1] > MAX_DIM:
        raise ValueError(f"lift takes clouds (B, N, 3), got {tuple(shape)}: pass points.mT")
    return torch.stack(clouds, dim=-1)


class Linear(nn.Module):
    """VN-Linear, `V' = W V`: mixes the channels of vector features (paper, section 3.1).

    There is no bias: a constant vector would not rotate with the input. The weight is initialized so that a vector
    keeps its expected squared length.

    Args:
        in_channels: vectors in.
        out_channels: vectors out.
        num_elements: gives each of so many elements (the axis before the vectors) a matrix of its own, the paper's
            un-shared form; by default one matrix is shared by all.

    Shape:
        - x: `(..., 3, in_channels)`; with `num_elements` `(B, ..., num_elements, 3, in_channels)`
        - out: `(..., 3, out_channels)`

    Equivariant to O(D) in every dimension D, to permutations and to scaling.

    >>> vn.Linear(4, 8)(torch.randn(2, 10, 3, 4)).shape
    torch.Size([2, 10, 3, 8])
    """

    def __init__(self, in_channels: int, out_channels: int, *, num_elements: int | None = None) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.num_elements = in_channels, out_channels, num_elements
        shape = (out_channels, in_channels) if num_elements is None else (num_elements, out_channels, in_channels)
        self.weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self, gain: float = 1.0) -> None:
        bound = gain * math.sqrt(3 / self.in_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Vectors | EdgeInput | ConcatMean) -> NewVectors:
        if isinstance(x, EdgeInput | ConcatMean):
            return x.linear(self.weight)
        check_vectors(self, x, self.in_channels, rank=2 if self.num_elements is None else 4)
        if self.num_elements is None:
            return _dispatch.linear(x, self.weight)
        if x.shape[-3] != self.num_elements:
            raise ValueError(
                f"Linear holds a matrix for each of {self.num_elements} elements, got {x.shape[-3]} in {tuple(x.shape)}"
            )
        return VF.linear(x, self.weight)

    def extra_repr(self) -> str:
        elements = "" if self.num_elements is None else f", num_elements={self.num_elements}"
        return f"{self.in_channels}, {self.out_channels}{elements}"


class AffineLinear(nn.Module):
    """VN-Linear whose weights sum to 1 for each output: equivariant to translations too, without centering.

    `V' = W V` with `W = A - mean of the row + 1/C` for a free matrix A: each output is an affine combination of the
    inputs, so that channels are positions and `f(V + t 1ᵀ) = f(V) + t 1ᵀ`. Rows sum to 1 by construction, hence also
    during training. A is initialized so that the deviation of a channel from the mean over channels keeps its expected
    squared length.

    The difference of two output channels is a vector that translations do not change: the other layers take it, and
    what they give can be added to one of the channels to get positions again. With one channel in there is nothing to
    combine and outputs are copies of it: add channels such as the positions of neighbors or the mean of the cloud.

    Args:
        in_channels: positions in.
        out_channels: positions out.

    Shape:
        - x: `(..., 3, in_channels)`
        - out: `(..., 3, out_channels)`

    Equivariant to translations and to O(D) in every dimension D, so to E(D); to permutations and to scaling.

    >>> points = torch.randn(2, 10, 3)
    >>> x = vn.lift(points, points.roll(1, dims=1), points.roll(2, dims=1))
    >>> positions = vn.AffineLinear(3, 8)(x)
    >>> vectors = positions[..., 1:] - positions[..., :1]  # invariant to translations
    >>> (positions[..., :1] + vn.Linear(7, 1)(vn.Block(7, 7)(vectors))).shape  # positions again
    torch.Size([2, 10, 3, 1])
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        if in_channels < 1:
            raise ValueError(f"an affine combination needs 1 channel or more, got {in_channels}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        bound = math.sqrt(3 / in_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def affine_weight(self) -> Float[Tensor, "out channels"]:
        """The matrix W, whose rows sum to 1."""
        return self.weight - self.weight.mean(-1, keepdim=True) + 1 / self.in_channels

    def forward(self, x: Vectors) -> NewVectors:
        check_vectors(self, x, self.in_channels)
        return _dispatch.linear(x, self.affine_weight())

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


class Dropout(nn.Module):
    """Zero whole vectors with probability `p` in training mode; zeroing single coordinates would pick out axes.

    Args:
        p: probability of a vector to be zeroed.

    Shape:
        - x, out: `(..., 3, C)`

    Equivariant to O(D).

    >>> vn.Dropout(0.5).eval()(torch.ones(2, 3, 4)).sum().item()
    24.0
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Vectors) -> Vectors:
        return x * nn.functional.dropout(torch.ones_like(x[..., :1, :]), self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
