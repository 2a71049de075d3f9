"""Hierarchical networks on scalars and vectors: centers express their neighbors in learned local frames."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..geometry.neighbors import gather, knn
from ..geometry.query import ball_query
from ..geometry.sampling import farthest_points
from ..nn import _dispatch, scalar
from ..nn._factored import ConcatGlobal
from ..nn._masked import masked_max, masked_mean
from ..nn.features import Features
from ..nn.frame import FixedFrame, frame_layer
from ..nn.frame_conv import FrameConv, rms_length
from ..nn.head import Head
from ..nn.hybrid import HybridBlock
from ..nn.linear import lift
from ..nn.propagation import FeaturePropagation
from ..typing import Mask, Neurons
from .base import Classifier, Encoding, Segmenter
from .inputs import Inputs, check_scalar_inputs, first_mask, inputs_of, lift_all
from .options import kit_of

NEGATIVE_SLOPE = 0.1
NESTED = (1, 2, 4)  # the stem averages offsets over all, half and a quarter of the nearest neighbors


class Level(nn.Module):
    """A `FrameConv` at fewer centers, and a `HybridBlock` that also gets their positions."""

    def __init__(
        self, in_channels: tuple[int, int], out_channels: tuple[int, int], hidden: int, **options: Any
    ) -> None:
        super().__init__()
        self.conv = FrameConv(in_channels, out_channels, hidden=hidden, negative_slope=NEGATIVE_SLOPE, **options)
        scalars, vectors = out_channels
        self.block = HybridBlock((scalars, vectors + 1), out_channels, negative_slope=NEGATIVE_SLOPE, **options)

    def forward(self, points: Tensor, x: Features, neighbors: Tensor, mask: Mask | None) -> Features:
        """Compute features at the centers, which are the first neighbors."""
        s, v = self.conv(points, x, neighbors, mask)
        position = gather(points, neighbors[..., :1]).mT
        return self.block(Features(s, torch.cat([v, position], dim=-1)), mask)


class Stage(NamedTuple):
    """Points of one resolution, their features, and which of them exist."""

    points: Tensor
    x: Features
    mask: Mask | None


def normalize(points: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor, Tensor]:
    """Clouds centered and scaled to unit RMS radius, zero at padding; their centers and sizes."""
    center = masked_mean(points, [1], mask)
    points = points - center
    points = points if mask is None else points.where(mask.unsqueeze(-1), 0)
    size = rms_length(points.unsqueeze(2), mask).squeeze(1)
    return points / size, center, size


def max_and_mean(x: Tensor, mask: Mask | None) -> Tensor:
    """The largest value and the mean over the points of each channel, one after the other."""
    return torch.cat([masked_max(x, mask), masked_mean(x, [1], mask).squeeze(1)], dim=-1)


class Hierarchy(nn.Module):
    """Three levels of `FrameConv`, one frame of the whole cloud, and a pool: what both networks share."""

    def build(
        self,
        neurons: Neurons,
        k: int,
        k_last: int,
        width: int,
        orthonormal: bool,
        inputs: Inputs | Mapping[str, int],
    ) -> dict[str, Any]:
        """Build the levels, and return the options of further layers; modules keep their names in both networks."""
        kit_of(neurons)  # refuses unknown neurons
        if neurons == "hybrid":
            raise ValueError(f"{type(self).__name__} has scalars beside vectors already: choose vector or scalar")
        self.k, self.k_last, self.inputs, v = k, k_last, inputs_of(inputs), width // 4
        options: dict[str, Any] = {"orthonormal": orthonormal, "fixed": neurons == "scalar"}
        self.stem_channels = (self.inputs.scalars, len(NESTED) + 1 + self.inputs.vectors)
        self.level_channels = [(width, v), (2 * width, 2 * v), (4 * width, 2 * v)]
        self.levels = nn.ModuleList()
        channels = self.stem_channels
        for hidden, out in zip((width // 2, 3 * width // 2, 2 * width), self.level_channels, strict=True):
            self.levels.append(Level(channels, out, hidden, **options))
            channels = out
        scalars, vectors = channels
        self.frame = frame_layer(vectors, **options)
        self.embed = scalar.Block(scalars + 3 * (vectors + 1), 8 * width, negative_slope=NEGATIVE_SLOPE)
        self.descriptor_channels = 16 * width
        return options

    def describe(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> tuple[list[Stage], Tensor, Tensor]:
        """Features at all points, at half of them and at an eighth; the cloud's frame; its descriptor."""
        points, _, _ = normalize(points, mask)
        neighbors = knn(points, self.k, mask=mask)
        x = self.stem(points, vectors, scalars, neighbors, mask)
        stages = [Stage(points, x, mask)]
        half, eighth = (points.shape[1] + 1) // 2, (points.shape[1] + 7) // 8
        centers = farthest_points(points, half, mask=mask)
        one, two, three = self.levels
        masks = [
            None if mask is None else first_mask((mask.sum(1) + n - 1) // n, m) for n, m in ((2, half), (8, eighth))
        ]
        at_centers = neighbors.gather(1, centers.unsqueeze(-1).expand(-1, -1, self.k))
        x = one(points, x, at_centers, masks[0])
        points = gather(points, centers.unsqueeze(-1)).squeeze(2)
        stages.append(Stage(points, x, masks[0]))
        # The sample begins with a sample of fewer points, so the first centers are those of the next level.
        first = torch.arange(eighth, device=points.device).expand(points.shape[0], -1)
        # Where there are fewer points than neighbors, a center is its own neighbor several times.
        x = two(points, x, ball_query(points, math.inf, self.k, first, masks[0]), masks[1])
        points = gather(points, first.unsqueeze(-1)).squeeze(2)
        x = three(points, x, ball_query(points, math.inf, self.k_last, first, masks[1]), masks[1])
        stages.append(Stage(points, x, masks[1]))
        frame = self.frame(masked_mean(x.vectors, [1], masks[1]))
        h = self.embed(self.seen(points, x, frame), masks[1])
        return stages, frame, max_and_mean(h, masks[1])

    @staticmethod
    def seen(points: Tensor, x: Features, frame: Tensor) -> Tensor:
        """Scalars, and vectors and positions in the frame of the cloud."""
        v = torch.cat([x.vectors, points.unsqueeze(-1)], dim=-1)
        seen = _dispatch.project_onto_frame(v, frame.expand(-1, v.shape[1], -1, -1))
        return torch.cat([x.scalars, seen], dim=-1)

    def stem(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, neighbors: Tensor, mask: Mask | None
    ) -> Features:
        """Vectors of every point: means of the offsets to nested sets of neighbors, its position, further inputs."""
        offset = gather(points, neighbors) - points.unsqueeze(2)
        offset = offset / rms_length(offset, mask)
        means = [offset[:, :, : max(2, self.k // n)].mean(2).unsqueeze(-1) for n in NESTED]
        lifted = lift_all(lift, points, vectors, self.inputs)
        check_scalar_inputs(scalars, self.inputs.scalars)
        s = points.new_zeros(*points.shape[:2], 0) if scalars is None else scalars
        return Features(s, torch.cat([*means, lifted], dim=-1))


class FrameNet(Classifier, Hierarchy):
    """Hierarchical classifier with scalars beside vectors, which learns several times faster than VN-DGCNN.

    Three levels of `FrameConv`: at half of the points, at an eighth, and among these again; centers are a
    farthest-point sample. Then one frame of the whole cloud, a pool over centers, and a head. Clouds are centered and
    scaled to unit RMS radius first.

    Args:
        classes: number of logits.
        neurons: `"vector"`, or `"scalar"` for the same network with the axes of space in place of learned frames.
        k: neighbors per center in the first two levels; a cloud has at least so many points.
        k_last: neighbors per center in the third level, which has an eighth of the points.
        width: scalars of the first level; vectors are a quarter of it, and both grow with the level.
        hidden: width of the head.
        dropout: of the head.
        orthonormal: use orthonormal frames, which tell mirror images apart.
        inputs: further vectors (normals) and scalars (colors) of each point.

    Shape:
        - points: `(B, N, 3)`
        - vectors: `(B, N, 3, inputs.vectors)`, scalars: `(B, N, inputs.scalars)`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N
        - out: `(B, classes)`

    Vector neurons: invariant to O(3) (with `orthonormal` to SO(3) only), translations, scaling and permutations.

    >>> vn.models.FrameNet(10, k=8, width=16)(torch.randn(2, 128, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 40,
        *,
        neurons: Neurons = "vector",
        k: int = 16,
        k_last: int = 12,
        width: int = 64,
        hidden: int = 256,
        dropout: float = 0.5,
        orthonormal: bool = False,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        self.build(neurons, k, k_last, width, orthonormal, inputs)
        widths = [self.descriptor_channels, hidden, classes]
        self.head = Head(widths, dropout=[dropout], bias=[False, True], negative_slope=NEGATIVE_SLOPE)

    def encode_masked(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        stages, frame, descriptor = self.describe(points, vectors, scalars, mask)
        x = stages[-1].x
        if isinstance(self.frame, FixedFrame):
            return Encoding(x.scalars, None, descriptor)
        return Encoding(x.vectors, frame.expand(-1, x.vectors.shape[1], -1, -1), descriptor)


class FrameNetSegmenter(Segmenter, Hierarchy):
    """Hierarchical network for part segmentation, with scalars beside vectors.

    The levels of `FrameNet`, then two steps of `FeaturePropagation`, to half of the points and to all of them. The head
    gets the features of a point, its vectors and position in the frame of the cloud, the descriptor of the cloud and
    its category.

    Args:
        parts: number of logits per point.
        categories: number of categories of shapes, which the network is told.
        neurons, k, k_last, width, dropout, orthonormal, inputs: as in `FrameNet`.
        hidden: widths of the head.

    Shape:
        - points: `(B, N, 3)`
        - category: `(B,)`, indices
        - vectors, scalars, lengths: as in `FrameNet`
        - out: `(B, N, parts)`

    Vector neurons: invariant to O(3) (with `orthonormal` to SO(3) only), translations and scaling, equivariant to
    permutations.

    >>> network = vn.models.FrameNetSegmenter(50, 16, k=8, width=16)
    >>> network(torch.randn(2, 128, 3), torch.tensor([0, 5])).shape
    torch.Size([2, 128, 50])
    """

    def __init__(
        self,
        parts: int = 50,
        categories: int = 16,
        *,
        neurons: Neurons = "vector",
        k: int = 16,
        k_last: int = 12,
        width: int = 64,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.5,
        orthonormal: bool = False,
        inputs: Inputs | Mapping[str, int] = Inputs(),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        self.categories = categories
        options = self.build(neurons, k, k_last, width, orthonormal, inputs)
        one, _, three = self.level_channels
        fine = (2 * width, width // 2)
        self.to_half = FeaturePropagation(three, one, fine, negative_slope=NEGATIVE_SLOPE, **options)
        self.to_all = FeaturePropagation(fine, self.stem_channels, fine, negative_slope=NEGATIVE_SLOPE, **options)
        self.category = scalar.Block(categories, 64, negative_slope=NEGATIVE_SLOPE)
        own = fine[0] + 3 * (fine[1] + 1)
        self.head = Head(
            [self.descriptor_channels + 64 + own, *hidden, parts],
            dropout=[dropout, 0.0],
            bias=[False, False, True],
            negative_slope=NEGATIVE_SLOPE,
        )

    def segment_masked(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        (every, half, eighth), frame, descriptor = self.describe(points, vectors, scalars, mask)
        x = self.to_half(eighth.points, eighth.x, half.points, half.x, half.mask, eighth.mask)
        x = self.to_all(half.points, x, every.points, every.x, every.mask, half.mask)
        kind = self.category(nn.functional.one_hot(category, self.categories).to(descriptor.dtype))
        overall = torch.cat([descriptor, kind], dim=-1)
        return self.head(ConcatGlobal(overall, self.seen(every.points, x, frame)), mask)
