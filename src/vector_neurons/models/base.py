"""What all networks share: their inputs, their encodings, and the memory of how they were built."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..nn import KITS, scalar
from ..nn.extremes import LARGE_CROSS, RangeError, out_of_range, readable, size_of
from ..nn.functional import mask_like, masked_max, masked_mean
from ..typing import Mask, Neurons, Norm


class Inputs(NamedTuple):
    """Channels of each point beside its coordinates: vectors turn along (normals), scalars do not (colours)."""

    vectors: int = 0
    scalars: int = 0


class Encoding(NamedTuple):
    """What a classifier knows of a cloud before it decides.

    `features` `(B, N, 3, C)` and `frame` `(B, N, 3, 3)` turn with the cloud, `descriptor` `(B, D)` does not change.
    Of a scalar network, `features` are `(B, N, C)`, there is no frame, and the descriptor depends on the pose.
    """

    features: Tensor
    frame: Tensor | None
    descriptor: Tensor


class Model(nn.Module):
    """A network that remembers the arguments it was built with (`arguments`), so that it can be saved and rebuilt."""

    arguments: dict[str, Any]
    meaning: Any = None  # a store.Meaning, of a model that was loaded

    def __new__(cls, *args: Any, **kwargs: Any) -> "Model":
        """Record the arguments, defaults included."""
        model = super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind_partial(model, *args, **kwargs)
        bound.apply_defaults()
        object.__setattr__(model, "arguments", {k: v for k, v in bound.arguments.items() if k != "self"})
        return model

    def example(self, points: Tensor) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
        """Random further inputs for these points: all the inputs, and what each of them is."""
        inputs = read_inputs(self.arguments["inputs"])
        given: list[tuple[Tensor, str]] = [(points, "points")]
        if isinstance(self, Segmenter):
            given.append((torch.zeros(len(points), dtype=torch.long), "scalars"))
        if inputs.vectors:
            given.append((torch.randn(*points.shape, inputs.vectors, dtype=points.dtype), "vectors"))
        if inputs.scalars:
            given.append((torch.randn(*points.shape[:2], inputs.scalars, dtype=points.dtype), "scalars"))
        tensors, kinds = zip(*given, strict=True)
        return tensors, kinds


class Classifier(Model, ABC):
    """A network from clouds `(B, N, 3)` to logits `(B, classes)`, by way of an encoding."""

    head: nn.Module

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        vectors: Float[Tensor, "batch points 3 vectors"] | None = None,
        scalars: Float[Tensor, "batch points scalars"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        """Give logits. Clouds shorter than N say so in `lengths`; `vectors` and `scalars` are the further inputs."""
        logits: Tensor = self.head(self.encode(points, vectors, scalars, lengths).descriptor)
        return in_range(logits, points)

    def encode(
        self,
        points: Float[Tensor, "batch points 3"],
        vectors: Float[Tensor, "batch points 3 vectors"] | None = None,
        scalars: Float[Tensor, "batch points scalars"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Encoding:
        """Give the features, the frames and the descriptor of each cloud."""
        mask = mask_of(points, lengths)
        points, vectors, scalars = (present(x, mask) for x in (points, vectors, scalars))  # type: ignore[assignment]
        return self.encode_present(points, vectors, scalars, mask)

    @abstractmethod
    def encode_present(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        """Encode the points that exist."""


class Segmenter(Model, ABC):
    """A network from clouds `(B, N, 3)` and their categories `(B,)` to logits of every point, `(B, N, parts)`."""

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        category: Int[Tensor, " batch"],
        vectors: Float[Tensor, "batch points 3 vectors"] | None = None,
        scalars: Float[Tensor, "batch points scalars"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch points parts"]:
        """Give logits of every point; those of padding mean nothing. Further inputs as in the classifiers."""
        mask = mask_of(points, lengths)
        if category.shape != points.shape[:1]:
            raise ValueError(f"{len(points)} clouds need as many category indices, got {tuple(category.shape)}")
        points, vectors, scalars = (present(x, mask) for x in (points, vectors, scalars))  # type: ignore[assignment]
        return in_range(self.segment_present(points, category.long(), vectors, scalars, mask), points)

    @abstractmethod
    def segment_present(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        """Segment the points that exist."""


def read_inputs(inputs: Inputs | Mapping[str, int]) -> Inputs:
    """Take inputs as saved in a file, too."""
    read = Inputs(**inputs) if isinstance(inputs, Mapping) else Inputs(*inputs)
    if min(read) < 0:
        raise ValueError(f"a point cannot have fewer than no channels: {read}")
    return read


def mask_of(points: Float[Tensor, "batch points 3"], lengths: Int[Tensor, " batch"] | None) -> Mask | None:
    """Say which points exist: the first `lengths[b]` of cloud b."""
    if points.ndim != 3 or points.shape[-1] != 3:
        raise ValueError(f"a network takes clouds (B, N, 3), got {tuple(points.shape)}")
    if lengths is None:
        return None
    if lengths.shape != points.shape[:1]:
        raise ValueError(f"{len(points)} clouds need as many lengths, got {tuple(lengths.shape)}")
    # Looking at the numbers would break a compiled graph.
    if readable(lengths) and lengths.numel() and not (lengths.min() >= 1 and lengths.max() <= points.shape[1]):
        raise ValueError(f"lengths of clouds padded to {points.shape[1]} points must be 1 to {points.shape[1]}")
    return torch.arange(points.shape[1], device=points.device) < lengths.to(points.device).unsqueeze(-1)


def present(x: Tensor | None, mask: Mask | None) -> Tensor | None:
    """Zero what is only padding, whatever stood there: 0 · NaN is NaN."""
    return x if x is None or mask is None else x.where(mask_like(mask, x.ndim), 0)


def in_range(logits: Tensor, points: Tensor) -> Tensor:
    """The logits, unless they are not finite because of the size of the clouds."""
    size = size_of(points)
    if LARGE_CROSS < size < torch.inf and not logits.isfinite().all():
        raise RangeError(out_of_range(f"clouds with coordinates of {size:.0e} lead to logits", logits.dtype))
    return logits


def kit_of(neurons: Neurons) -> Any:
    """The layers of one kind of neurons."""
    if neurons not in KITS:
        raise ValueError(f"unknown neurons {neurons!r}: choose {' or '.join(KITS)}")
    return KITS[neurons]


def head_norm(norm: Norm) -> Norm:
    """The norm of layers on a whole cloud, where instance norm would have no elements to normalise over."""
    return "layer" if norm == "instance" else norm


def lift_all(lift: Callable[..., Tensor], points: Tensor, vectors: Tensor | None, inputs: Inputs) -> Tensor:
    """Lift the points, and the further vectors `(B, N, 3, V)` of the points, to features."""
    given = 0 if vectors is None else vectors.shape[-1]
    if given != inputs.vectors:
        hint = "; one vector a point is (B, N, 3, 1)" if vectors is not None and vectors.ndim == 3 else ""
        raise ValueError(f"the network was built for {inputs.vectors} further vectors a point, got {given}{hint}")
    return lift(points, *(() if vectors is None else vectors.unbind(-1)))


class JoinScalars(nn.Module):
    """Join scalars of the points to the invariants, which is where numbers without a pose may enter."""

    def __init__(self, channels: int, inputs: Inputs, *, slope: float, norm: Norm) -> None:
        super().__init__()
        self.scalars = inputs.scalars
        if inputs.scalars:
            self.block = scalar.Block(channels + inputs.scalars, channels, slope=slope, norm=norm)

    def forward(self, x: Tensor, scalars: Tensor | None, mask: Mask | None) -> Tensor:
        """Give features of the same width."""
        given = 0 if scalars is None else scalars.shape[-1]
        if given != self.scalars:
            raise ValueError(f"the network was built for {self.scalars} scalars a point, got {given}")
        return x if scalars is None else self.block(torch.cat([x, scalars], dim=-1), mask)

    def pooled(
        self, read: Any, x: Tensor, scalars: Tensor | None, mask: Mask | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Maximum and mean over the points of the joined invariants of x, and the frames they were read in."""
        if scalars is None and not self.scalars:
            pooled: tuple[Tensor, Tensor, Tensor | None] = read.pooled(x, mask)
            return pooled
        invariants, frame = read.with_frame(x, mask)
        invariants = self(invariants, scalars, mask)
        return masked_max(invariants, mask), masked_mean(invariants, [1], mask).squeeze(1), frame
