"""Make any network on point clouds rotation-invariant: turn its input into a learned canonical pose."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..geometry.neighbors import knn
from ..geometry.scale import power_of_two
from ..nn import vector
from ..nn._masked import masked_mean
from ..nn.frame_conv import rms_length
from ..nn.pose import Method, PoseHead
from ..typing import Mask
from .base import Model
from .inputs import mask_of, zero_padding

Kind = Literal["scalars", "points", "directions", "vectors"]


class PoseEncoder(Model):
    """A small equivariant network from clouds to rotations: the pose of each cloud.

    Two edge convolutions on the graph of the points, the mean of their features over the points, a block and a
    `PoseHead`. Clouds are centered and scaled to unit RMS radius first. There is no batch norm, so that the pose of a
    cloud depends neither on the batch nor on the mode.

    A cloud with a rotational symmetry has several poses that look the same. Its mean features are parallel to the axis,
    or vanish if there are several axes; without `cross` they also vanish if the cloud is its own point reflection. What
    small deviations from the symmetry leave then decides on the pose.

    Args:
        width: vectors of each edge convolution.
        k: neighbors per point.
        method: of the `PoseHead`, `"svd"` or `"gram-schmidt"`.
        cross: add cross products to the edges, for clouds with point symmetry; noisier for others.

    Shape:
        - points: `(B, N, 3)`
        - mask: `(B, N)`, True at points and False at padding, optional
        - out: `(B, 3, 3)`

    Equivariant to SO(3), invariant to translations, scaling and permutations.

    >>> vn.models.PoseEncoder(k=4)(torch.randn(2, 16, 3)).shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, width: int = 32, *, k: int = 16, method: Method = "svd", cross: bool = False) -> None:
        super().__init__()
        self.k = k
        self.first = vector.EdgeConv(1, width, k, cross=cross, norm="none")
        self.second = vector.EdgeConv(width, width, k, norm="none")
        self.mix = vector.Block(2 * width, 2 * width, norm="none")
        self.head = PoseHead(2 * width, method=method)

    def forward(self, points: Float[Tensor, "batch points 3"], mask: Mask | None = None) -> Float[Tensor, "batch 3 3"]:
        points = centered(points, mask)[0]
        points = points * power_of_two(points, (1, 2))  # so that squares are in range
        points = points / rms_length(points.unsqueeze(2), mask).squeeze(1)
        neighbors = knn(points, self.k, mask=mask)
        one = self.first(vector.lift(points), neighbors, mask)
        two = self.second(one, neighbors, mask)
        mean = masked_mean(torch.cat([one, two], dim=-1), [1], mask).squeeze(1)
        return self.head(self.mix(mean))


class CanonicalPose(NamedTuple):
    """Clouds in the canonical pose, and the way back: `points @ rotation.mT + center` is the cloud as given.

    Shapes: `points` `(B, N, 3)`, `rotation` `(B, 3, 3)`, `center` `(B, 1, 3)`.
    """

    points: Tensor
    rotation: Tensor
    center: Tensor


class Canonicalize(nn.Module):
    """Wrap any network on point clouds so that its output does not depend on the pose of the cloud.

    An equivariant encoder predicts a rotation `R` from the centered cloud, and the network gets `Rᵀ (x - mean)`: the
    same coordinates in every pose. The output is then invariant to rotations and translations by construction, with
    whatever weights. Both parts are trained together by the loss of the network; `network` and `pose` are attributes.

    Invariance holds up to rounding where the encoder determines a pose. The pose of a cloud with a rotational symmetry
    is not unique (`PoseEncoder`): of two scans of such an object the canonical poses may differ by a symmetry, and of a
    cloud that is symmetric to within rounding (a grid, a single point, points on a line) the output depends on the
    pose, but stays finite.

    A network of your own is not described by numbers, so `vn.save` cannot save the wrapper itself: save its
    `state_dict()`, or build it in the constructor of a `vn.models.Model`.

    Args:
        network: any module that is called with clouds and returns tensors, or tuples or dicts of them.
        pose: an equivariant module from centered clouds `(B, N, 3)` to rotations `(B, 3, 3)`, called with a mask
            `(B, N)` as second argument where `lengths` are given; by default `PoseEncoder()`.
        channels_first: the network, and the wrapper, take clouds `(B, 3, N)`.
        takes: kinds of keyword arguments that rotate with the cloud, such as `{"normals": "directions"}`. All other
            arguments pass unchanged.
        gives: kind of the output: `"scalars"` pass unchanged; `"points"` `(B, ..., 3)` are rotated and moved back to
            the pose of the input, `"directions"` (normals, flow) only rotated, with `channels_first` both as
            `(B, 3, ...)`; `"vectors"` `(B, ..., 3, C)` are vector features or frames. One for all outputs, a list with
            one for each of a tuple, or a dict by the name of an output (others: scalars).
        pass_lengths: also pass `lengths` to the network, as a keyword argument.

    Shape:
        - points: `(B, N, 3)`, or `(B, 3, N)` with `channels_first`
        - lengths: `(B,)`, the number of points of each cloud, where clouds are padded to N; padding becomes zero
        - out: that of the network; with `return_pose=True` a pair of it and a `CanonicalPose`

    Invariant to SO(3) and translations, equivariant where `gives` says so; not to reflections.

    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64, 10))
    >>> invariant, points = vn.models.Canonicalize(network), torch.randn(2, 64, 3)
    >>> vn.testing.assert_invariant(invariant, points)
    >>> invariant.canonicalize(points).rotation.shape
    torch.Size([2, 3, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        pose: nn.Module | None = None,
        *,
        channels_first: bool = False,
        takes: Mapping[str, Kind] | None = None,
        gives: Kind | Sequence[Kind] | Mapping[str, Kind] = "scalars",
        pass_lengths: bool = False,
    ) -> None:
        super().__init__()
        self.takes = dict(takes or {})
        self.gives: Any = dict(gives) if isinstance(gives, Mapping) else gives if isinstance(gives, str) else [*gives]
        named = [gives] if isinstance(gives, str) else gives.values() if isinstance(gives, Mapping) else gives
        if unknown := [kind for kind in (*self.takes.values(), *named) if kind not in get_args(Kind)]:
            raise ValueError(f"unknown kind {unknown[0]!r}: choose one of {', '.join(get_args(Kind))}")
        self.network, self.pose = network, PoseEncoder() if pose is None else pose
        self.channels_first, self.pass_lengths = channels_first, pass_lengths

    def forward(
        self,
        points: Tensor,
        *args: Any,
        lengths: Int[Tensor, " batch"] | None = None,
        return_pose: bool = False,
        **kwargs: Any,
    ) -> Any:
        pose = self.canonicalize(points, lengths)
        for name in self.takes.keys() & kwargs.keys():
            kwargs[name] = self._moved(kwargs[name], self.takes[name], pose, back=False)
        if self.pass_lengths:
            kwargs["lengths"] = lengths
        output = self.network(pose.points.mT if self.channels_first else pose.points, *args, **kwargs)
        output = self._returned(output, pose)
        return (output, pose) if return_pose else output

    def canonicalize(self, points: Tensor, lengths: Int[Tensor, " batch"] | None = None) -> CanonicalPose:
        """Turn clouds into the canonical pose, `(B, N, 3)` in either layout, and give the way back."""
        if points.ndim != 3 or points.shape[1 if self.channels_first else 2] != 3:
            expected, hint = ("(B, 3, N)", "") if self.channels_first else ("(B, N, 3)", "; is it channels_first=True?")
            hint = hint if points.ndim == 3 and points.shape[1] == 3 else ""
            raise ValueError(f"Canonicalize takes clouds {expected}, got {tuple(points.shape)}{hint}")
        points = points.mT if self.channels_first else points
        mask = mask_of(points, lengths)
        points, center = centered(points, mask)
        rotation = self.pose(points) if mask is None else self.pose(points, mask)
        if rotation.shape != (len(points), 3, 3):
            found = tuple(rotation.shape)
            raise ValueError(f"the pose of {len(points)} clouds must be rotations {(len(points), 3, 3)}, got {found}")
        return CanonicalPose(_rows(points, rotation.mT), rotation, center)

    def _returned(self, output: Any, pose: CanonicalPose) -> Any:
        """Move the outputs to the pose of the input, each by its kind."""
        if self.gives == "scalars":
            return output
        named, several = isinstance(self.gives, dict), isinstance(output, Mapping)
        if named != several and not isinstance(self.gives, str):
            wanted = "names outputs of a dict" if named else "lists outputs of a tuple"
            raise ValueError(f"gives {wanted}, but the network returned a {type(output).__name__}")
        if several:
            kinds = self.gives if named else dict.fromkeys(output, self.gives)
            if missing := kinds.keys() - output.keys():
                raise ValueError(f"gives names an output {min(missing)!r}; the network returned {', '.join(output)}")
            return {name: self._moved(x, kinds.get(name, "scalars"), pose) for name, x in output.items()}
        outputs = [output] if isinstance(output, Tensor) else list(output)
        kinds = [self.gives] * len(outputs) if isinstance(self.gives, str) else self.gives
        if len(kinds) != len(outputs):
            raise ValueError(f"gives lists {len(kinds)} kinds, the network returned {len(outputs)} outputs")
        moved = [self._moved(x, kind, pose) for x, kind in zip(outputs, kinds, strict=True)]
        if isinstance(output, Tensor):
            return moved[0]
        return type(output)(*moved) if hasattr(output, "_fields") else type(output)(moved)

    def _moved(self, x: Any, kind: Kind, pose: CanonicalPose, *, back: bool = True) -> Any:
        """Rotate (and for points translate) one tensor to the pose of the input, or with `back=False` from it."""
        if kind == "scalars" or x is None:
            return x
        rotation = pose.rotation if back else pose.rotation.mT
        if kind == "vectors":
            check_axis(x, -2, kind)
            return rotation.view(-1, *[1] * (x.ndim - 3), 3, 3) @ x
        axis = 1 if self.channels_first else -1
        check_axis(x, axis, kind)
        rows = x.movedim(axis, -1)
        shape = rows.shape
        rows = rows.reshape(shape[0], -1, 3)
        if kind == "points":
            rows = _rows(rows, rotation) + pose.center if back else _rows(rows - pose.center, rotation)
        else:
            rows = _rows(rows, rotation)
        return rows.view(shape).movedim(-1, axis)

    def extra_repr(self) -> str:
        return f"channels_first={self.channels_first}, gives={self.gives!r}"


def check_axis(x: Tensor, axis: int, kind: str) -> None:
    """Refuse a tensor whose coordinates are not on this axis."""
    if x.ndim < 2 or x.ndim < -axis + 1 or x.shape[axis] != 3:
        shape = {-1: "(B, ..., 3)", 1: "(B, 3, ...)", -2: "(B, ..., 3, C)"}[axis]
        raise ValueError(f"{kind} are {shape}, got {tuple(x.shape)}")


def centered(points: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor]:
    """Clouds about their mean, padding zero, and the mean `(B, 1, 3)`."""
    points = zero_padding(points, mask)  # type: ignore[assignment]
    center = masked_mean(points, [1], mask)
    return zero_padding(points - center, mask), center  # type: ignore[return-value]


def _rows(points: Tensor, rotation: Tensor) -> Tensor:
    # Not a matrix product, which autocast would round to half precision.
    return (points.unsqueeze(-2) * rotation.unsqueeze(1)).sum(-1)
