"""Layers that treat each kind of features by the layer of its kit, pools, and the invariant layer.

All are equivariant to O(3) and permutations: scalars are invariant, vectors rotate.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from ..typing import ActivationFunction, BlockOptions, Frames, Mask, Norm, Points, Pool
from . import activation as vector_activation
from . import functional as VF
from . import invariant as vector_invariant
from . import linear as vector_linear
from . import norm as vector_norm
from . import scalar
from ._masked import masked_max, masked_mean
from .features import Features
from .hybrid_block import check_features


def lift(*clouds: Points, scalars: Tensor | None = None) -> Features:
    """Make features of a cloud `(B, N, 3)` and further vectors of its points; scalars are those given, if any.

    >>> x = vn.nn.hybrid.lift(torch.zeros(2, 10, 3), scalars=torch.zeros(2, 10, 4))
    >>> x.channels
    Channels(scalars=4, vectors=1)
    """
    vectors = vector_linear.lift(*clouds)
    return Features(vectors.new_zeros(*vectors.shape[:-2], 0) if scalars is None else scalars, vectors)


class _EachKind(nn.Module):
    """A layer of the scalar kit for the scalars, and one of the vector kit for the vectors."""

    def __init__(self, channels: tuple[int | None, int | None], scalars: nn.Module, vectors: nn.Module) -> None:
        super().__init__()
        self.channels, self.scalars, self.vectors = channels, scalars, vectors

    def forward(self, x: Features) -> Features:
        check_features(self, x, self.channels)
        return Features(self.scalars(x.scalars), self.vectors(x.vectors))


class LeakyReLU(_EachKind):
    """The leaky ReLU of scalars, and VN-LeakyReLU of vectors.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(..., S)` and `(..., 3, C)`

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.LeakyReLU((8, 4))(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        negative_slope: float = 0.2,
        shared_direction: bool = False,
        eps: float | None = None,
    ) -> None:
        scalars, vectors = channels
        options = {"negative_slope": negative_slope, "shared_direction": shared_direction, "eps": eps}
        of_vectors = vector_activation.LeakyReLU(vectors, **options)  # type: ignore[arg-type]
        super().__init__(channels, scalar.LeakyReLU(scalars, **options), of_vectors)  # type: ignore[arg-type]


class Activation(_EachKind):
    """Any scalar function of scalars, and of the coordinates of vectors along learned directions.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(..., S)` and `(..., 3, C)`

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Activation((8, 4), torch.tanh)(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(
        self,
        channels: tuple[int, int],
        h: ActivationFunction,
        *,
        signed: bool = True,
        shared_direction: bool = False,
    ) -> None:
        scalars, vectors = channels
        of_vectors = vector_activation.Activation(vectors, h, signed=signed, shared_direction=shared_direction)
        super().__init__(channels, scalar.Activation(scalars, h), of_vectors)


class AffineLinear(_EachKind):
    """A linear map of scalars, and affine combinations of vectors, which are positions: equivariant to translations.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., S)` and `(..., 3, C)`
        - out: the same with other numbers of channels

    Equivariant to O(3), translations and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.AffineLinear((8, 4), (16, 6))(x).channels
    Channels(scalars=16, vectors=6)
    """

    def __init__(self, in_channels: tuple[int, int], out_channels: tuple[int, int]) -> None:
        of_vectors = vector_linear.AffineLinear(in_channels[1], out_channels[1])
        super().__init__(in_channels, scalar.Linear(in_channels[0], out_channels[0]), of_vectors)


class Dropout(_EachKind):
    """Zero scalars and whole vectors with probability `p` in training mode.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(..., S)` and `(..., 3, C)`

    Equivariant to O(3): scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Dropout(0.5)(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__((None, None), scalar.Dropout(p), vector_linear.Dropout(p))


class _Norm(_EachKind):
    """A norm of scalars and its counterpart of vectors."""

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, self.channels)
        return Features(self.scalars(x.scalars, mask), self.vectors(x.vectors, mask))


class BatchNorm(_Norm):
    """Batch norm of scalars, and of the lengths of vectors.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(B, ..., S)` and `(B, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.BatchNorm((8, 4))(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        mode: Literal["norm", "log"] = "norm",
        momentum: float | None = 0.1,
        eps: float | None = None,
    ) -> None:
        scalars, vectors = channels
        of_vectors = vector_norm.BatchNorm(vectors, mode=mode, momentum=momentum, eps=eps)
        super().__init__(channels, scalar.BatchNorm(scalars, momentum=momentum), of_vectors)


class LayerNorm(_Norm):
    """Layer norm of each element's scalars, and of its vectors.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(..., S)` and `(..., 3, C)`

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.LayerNorm((8, 4))(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(self, channels: tuple[int, int], *, eps: float = 1e-5) -> None:
        scalars, vectors = channels
        super().__init__(channels, scalar.LayerNorm(scalars, eps=eps), vector_norm.LayerNorm(vectors, eps=eps))


class InstanceNorm(_Norm):
    """Instance norm of scalars, and of vectors, over the elements of a sample.

    Arguments as in the vector layer.

    Shape:
        - x, out: `(B, N, ..., S)` and `(B, N, ..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional

    Equivariant to O(3) and permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.InstanceNorm((8, 4))(x).channels
    Channels(scalars=8, vectors=4)
    """

    def __init__(self, channels: tuple[int, int], *, eps: float = 1e-5) -> None:
        scalars, vectors = channels
        super().__init__(channels, scalar.InstanceNorm(scalars, eps=eps), vector_norm.InstanceNorm(vectors, eps=eps))


class _NoNorm(_Norm):
    """The norm `"none"`: the identity."""

    def __init__(self, channels: tuple[int, int]) -> None:
        scalars, vectors = channels
        super().__init__(channels, vector_norm.NoNorm(scalars), vector_norm.NoNorm(vectors))


NORMS: dict[Norm, Callable[[tuple[int, int]], nn.Module]] = {
    "batch": BatchNorm,
    "log-batch": partial(BatchNorm, mode="log"),
    "layer": LayerNorm,
    "instance": InstanceNorm,
    "none": _NoNorm,
}


class MeanPool(nn.Module):
    """Mean of scalars and of vectors over the points of a cloud, or the neighbors of a point.

    Shape:
        - x: `(B, ..., N, S)` and `(B, ..., N, 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., S)` and `(B, ..., 3, C)`

    Equivariant to O(3), invariant to permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.MeanPool()(x).vectors.shape
    torch.Size([2, 3, 4])
    """

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, (None, None), rank=3)
        return Features(masked_mean(x.scalars, [-2], mask).squeeze(-2), VF.mean_pool(x.vectors, mask))


class MaxPool(nn.Module):
    """Maximum of scalars and mean of vectors: VN-Max is a selection, whose weights get no gradient.

    Arguments as in the vector layer; `num_elements` is accepted and ignored.

    Shape:
        - x: `(B, ..., N, S)` and `(B, ..., N, 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, ..., S)` and `(B, ..., 3, C)`

    Equivariant to O(3), invariant to permutations: scalars are invariant, vectors rotate.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.MaxPool((8, 4))(x).vectors.shape
    torch.Size([2, 3, 4])
    """

    def __init__(self, channels: tuple[int, int], *, num_elements: int | None = None) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Features, mask: Mask | None = None) -> Features:
        check_features(self, x, self.channels, rank=3)
        return Features(masked_max(x.scalars, mask), VF.mean_pool(x.vectors, mask))


POOLS: dict[Pool, Callable[[tuple[int, int]], nn.Module]] = {"mean": lambda channels: MeanPool(), "max": MaxPool}


def block_pool(block: nn.Module, pool: nn.Module, x: Features, mask: Mask | None = None) -> Features:
    """Apply a block and a pool over points."""
    result: Features = pool(block(x, mask), mask)
    return result


class Invariant(nn.Module):
    """The scalars, and beside them the vectors in a learned frame: `[s, Tᵀ V]` with the frame T of VN-In.

    Arguments as in the vector layer.

    Shape:
        - x: `(..., S)` and `(..., 3, C)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(..., out_channels)`
        - with `return_frame=True`: out and the frame `(..., 3, 3)`, three vectors as columns
        - with `pool=True`: maximum and mean of out over the points, `(B, out_channels)` each, and the frame

    Invariant to O(3) (with `orthonormal` to SO(3) only), equivariant to permutations.

    >>> x = vn.nn.hybrid.Features(torch.randn(2, 10, 8), torch.randn(2, 10, 3, 4))
    >>> vn.nn.hybrid.Invariant((8, 4))(x).shape
    torch.Size([2, 10, 20])
    """

    def __init__(
        self,
        channels: tuple[int, int],
        *,
        kind: Literal["frame", "gram", "norm"] = "frame",
        frame: Literal["mlp", "linear"] = "mlp",
        mean: bool = True,
        project_mean: bool = False,
        orthonormal: bool = False,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__()
        self.channels, (scalars, vectors) = channels, channels
        self.vectors = vector_invariant.Invariant(
            vectors,
            kind=kind,
            frame=frame,
            mean=mean,
            project_mean=project_mean,
            orthonormal=orthonormal,
            **options,
        )
        self.out_channels = scalars + self.vectors.out_channels

    def forward(
        self, x: Features, mask: Mask | None = None, *, return_frame: bool = False, pool: bool = False
    ) -> Tensor | tuple[Tensor, ...]:
        check_features(self, x, self.channels)
        found = self.vectors(x.vectors, mask, return_frame=return_frame, pool=pool)
        if pool:
            largest, mean, frame = found
            own = masked_max(x.scalars, mask), masked_mean(x.scalars, [1], mask).squeeze(1)
            return torch.cat([own[0], largest], dim=-1), torch.cat([own[1], mean], dim=-1), frame
        if return_frame:
            return torch.cat([x.scalars, found[0]], dim=-1), found[1]
        return torch.cat([x.scalars, found], dim=-1)

    @staticmethod
    def project(x: Features, frame: Frames) -> Tensor:
        """The scalars of further features of the same elements, and their vectors projected onto a frame."""
        return torch.cat([x.scalars, VF.project_onto_frame(x.vectors, frame)], dim=-1)
