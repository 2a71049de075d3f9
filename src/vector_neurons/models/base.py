"""What all networks share: options, inputs, encodings, and the arguments they were built with."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..nn import KITS, hybrid, scalar
from ..nn._masked import mask_like, masked_max, masked_mean
from ..nn._range import MAX_CROSSABLE, RangeError, is_concrete, max_abs, out_of_range
from ..nn.features import AnyChannels, Channels, Features
from ..typing import BlockOptions, DirectionSource, Mask, Neurons, Norm, Pool

M = TypeVar("M", bound="Model")


class Inputs(NamedTuple):
    """Channels of each point beside its coordinates.

    Args:
        vectors: vectors per point that rotate with the cloud, such as normals.
        scalars: scalars per point that no rotation changes, such as colors.

    >>> vn.models.DGCNN(inputs=vn.models.Inputs(vectors=1)).arguments["inputs"]
    Inputs(vectors=1, scalars=0)
    """

    vectors: int = 0
    scalars: int = 0


@dataclass(frozen=True)
class LayerOptions:
    """How the layers of a network are built; the ablations of the paper.

    Args:
        norm: of every block: `"batch"`, `"log-batch"`, `"layer"`, `"instance"` or `"none"`.
        direction: of every non-linearity, from a block's `"input"` or `"output"` (the paper's detached form).
        pool: over neighbors, `"mean"` or `"max"`; by default mean for vector neurons, max for scalar and hybrid ones.
        frame: how the invariant layer learns its frame, `"mlp"` or `"linear"`.
        mean: whether the frame also depends on the mean over the cloud.
        project_mean: whether the mean is projected onto the frame as well, as in the authors' code; by default if
            there is a mean.
        eps: the authors' absolute eps (1e-6), for outputs identical to theirs, see `Block`.

    >>> network = vn.models.DGCNN(layers=vn.models.LayerOptions(direction="output"))
    """

    norm: Norm = "batch"
    direction: DirectionSource = "input"
    pool: Pool | None = None
    frame: Literal["mlp", "linear"] = "mlp"
    mean: bool = True
    project_mean: bool | None = None
    eps: float | None = None

    @classmethod
    def of(cls, options: "LayerOptions | Mapping[str, Any]") -> "LayerOptions":
        """Options as given, or as read from a saved config."""
        return cls(**options) if isinstance(options, Mapping) else options

    def block(self, negative_slope: float) -> BlockOptions:
        """The options of a block."""
        return {
            "norm": self.norm,
            "direction": self.direction,
            "negative_slope": negative_slope,
            "eps": self.eps,
        }

    def pool_of(self, neurons: Neurons) -> Pool:
        """The pool over neighbors."""
        return self.pool or ("mean" if neurons == "vector" else "max")

    def invariant(self, neurons: Neurons, channels: AnyChannels, negative_slope: float) -> Any:
        """The invariant layer."""
        project_mean = self.mean if self.project_mean is None else self.project_mean
        return kit_of(neurons).Invariant(
            channels, frame=self.frame, mean=self.mean, project_mean=project_mean, **self.block(negative_slope)
        )

    @property
    def head_norm(self) -> Norm:
        """The norm of layers on a whole cloud, which has no elements for an instance norm."""
        return "layer" if self.norm == "instance" else self.norm


class Encoding(NamedTuple):
    """Features of a cloud, as a classifier computes them before its head.

    `features` `(B, N, 3, C)` and `frame` `(B, N, 3, 3)` rotate with the cloud, `descriptor` `(B, D)` is invariant. In a
    scalar network `features` are `(B, N, C)`, `frame` is None, and the descriptor depends on the pose. In a hybrid
    network `features` are of both kinds, `nn.hybrid.Features`.
    """

    features: Tensor | Features
    frame: Tensor | None
    descriptor: Tensor


class Model(nn.Module):
    """Base class of networks that `vn.save` can save and `vn.load` can rebuild, also of your own.

    It records the arguments of the constructor in `arguments`. To be saved they must be numbers, strings, lists, dicts
    or None, and parameters must have names (no `*args`). `metadata` and `calibration` are set by `vn.load`.
    `save_pretrained`, `from_pretrained` and `push_to_hub` are those of `PyTorchModelHubMixin` of Hugging Face.

    >>> class Tiny(vn.models.Model):
    ...     def __init__(self, classes):
    ...         super().__init__()
    ...         self.linear = torch.nn.Linear(3, classes)
    >>> Tiny(10).arguments
    {'classes': 10}
    """

    arguments: dict[str, Any]
    metadata: Any = None  # a Metadata
    calibration: Any = None  # a Calibration

    def __new__(cls, *args: Any, **kwargs: Any) -> "Model":
        """Record the arguments, defaults included."""
        model = super().__new__(cls)
        signature = inspect.signature(cls.__init__)
        bound = signature.bind_partial(model, *args, **kwargs)
        bound.apply_defaults()
        _, *given = bound.arguments.items()
        arguments: dict[str, Any] = {}
        for name, value in given:
            value = copy.deepcopy(value) if isinstance(value, list | dict) else value  # the constructor may change it
            arguments |= value if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        object.__setattr__(model, "arguments", arguments)
        return model

    def example(self, points: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
        """Random inputs that go with these points, and the kind of each: what `vn check` runs the network on.

        None stands for an argument of `forward` that is left out.
        """
        return (points,), ("points",)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Save the network and a model card to a folder, for `from_pretrained` and `vn.load`."""
        from . import hub

        hub.save_pretrained(self, save_directory)

    @classmethod
    def from_pretrained(
        cls: type[M],
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        local_files_only: bool = False,
        **download: Any,
    ) -> M:
        """Load a network, in evaluation mode, from a folder or from a repository of the Hugging Face Hub.

        Args:
            pretrained_model_name_or_path: a folder of `save_pretrained`, `vn.save` or `vn train`, or `"USER/NAME"`.
            revision: branch, tag or commit of the repository.
            local_files_only: use the local cache of the Hub and no network.
            **download: further options of `huggingface_hub.snapshot_download`, such as `token` and `cache_dir`.

        Called on `Model` it loads any network of this library, called on a network only that.
        """
        from . import hub

        wanted = None if cls is Model else cls
        options = {"revision": revision, "local_files_only": local_files_only, **download}
        return cast(M, hub.from_pretrained(wanted, pretrained_model_name_or_path, **options))

    def push_to_hub(
        self, repo_id: str, *, private: bool | None = None, commit_message: str = "Upload model", **options: Any
    ) -> str:
        """Upload the network and a model card to the Hugging Face Hub; returns the address of the commit.

        Args:
            repo_id: `"USER/NAME"`, created if missing.
            private: whether a new repository is private.
            commit_message: of the upload.
            **options: `token`, and further options of `HfApi.upload_folder`.
        """
        from . import hub

        return hub.push_to_hub(self, repo_id, private=private, commit_message=commit_message, **options)


class Classifier(Model, ABC):
    """A network from clouds `(B, N, 3)` to logits `(B, classes)`, with the encoding in between."""

    head: nn.Module

    def forward(
        self,
        points: Float[Tensor, "batch points 3"],
        vectors: Float[Tensor, "batch points 3 vectors"] | None = None,
        scalars: Float[Tensor, "batch points scalars"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch classes"]:
        """Compute logits; `lengths` are the numbers of points before padding."""
        return in_range(self.head(self.encode(points, vectors, scalars, lengths).descriptor), points)

    def encode(
        self,
        points: Float[Tensor, "batch points 3"],
        vectors: Float[Tensor, "batch points 3 vectors"] | None = None,
        scalars: Float[Tensor, "batch points scalars"] | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> Encoding:
        """Compute the features, the frames and the descriptor of each cloud."""
        mask = mask_of(points, lengths)
        points, vectors, scalars = (zero_padding(x, mask) for x in (points, vectors, scalars))  # type: ignore[assignment]
        return self.encode_masked(points, vectors, scalars, mask)

    def example(self, points: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
        return _example(points, self.arguments.get("inputs", Inputs()))

    @abstractmethod
    def encode_masked(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Encoding:
        """Encode clouds whose padding is zero and masked."""


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
        """Compute logits of every point; those of padding are undefined. Further inputs as in `Classifier`."""
        mask = mask_of(points, lengths)
        if category.shape != points.shape[:1]:
            raise ValueError(f"{len(points)} clouds need as many category indices, got {tuple(category.shape)}")
        points, vectors, scalars = (zero_padding(x, mask) for x in (points, vectors, scalars))  # type: ignore[assignment]
        return in_range(self.segment_masked(points, category.long(), vectors, scalars, mask), points)

    def example(self, points: Tensor) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
        category = torch.zeros(len(points), dtype=torch.long)
        (first, *more), (kind, *kinds) = _example(points, self.arguments.get("inputs", Inputs()))
        return (first, category, *more), (kind, "scalars", *kinds)

    @abstractmethod
    def segment_masked(
        self, points: Tensor, category: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Mask | None
    ) -> Tensor:
        """Segment clouds whose padding is zero and masked."""


def _example(points: Tensor, inputs: Any) -> tuple[tuple[Tensor | None, ...], tuple[str, ...]]:
    inputs = inputs_of(inputs)
    given: list[tuple[Any, str]] = [(points, "points")]
    if inputs.vectors:
        given.append((torch.randn(*points.shape, inputs.vectors, dtype=points.dtype), "vectors"))
    elif inputs.scalars:
        given.append((None, "vectors"))
    if inputs.scalars:
        given.append((torch.randn(*points.shape[:2], inputs.scalars, dtype=points.dtype), "scalars"))
    tensors, kinds = zip(*given, strict=True)
    return tensors, kinds


def inputs_of(inputs: Inputs | Mapping[str, int]) -> Inputs:
    """Inputs as given, or as read from a saved config."""
    checked = Inputs(**inputs) if isinstance(inputs, Mapping) else Inputs(*inputs)
    if min(checked) < 0:
        raise ValueError(f"numbers of input channels must not be negative, got {checked}")
    return checked


def mask_of(points: Float[Tensor, "batch points 3"], lengths: Int[Tensor, " batch"] | None) -> Mask | None:
    """The mask of points: True at the first `lengths[b]` of cloud b, False at padding."""
    if points.ndim != 3 or points.shape[-1] != 3:
        raise ValueError(f"a network takes clouds (B, N, 3), got {tuple(points.shape)}")
    if lengths is None:
        return None
    if lengths.shape != points.shape[:1]:
        raise ValueError(f"{len(points)} clouds need as many lengths, got {tuple(lengths.shape)}")
    # Reading the values would break a compiled graph.
    if is_concrete(lengths) and lengths.numel() and not (lengths.min() >= 1 and lengths.max() <= points.shape[1]):
        raise ValueError(f"lengths of clouds padded to {points.shape[1]} points must be 1 to {points.shape[1]}")
    return first_mask(lengths.to(points.device), points.shape[1])


def first_mask(counts: Int[Tensor, " batch"], points: int) -> Mask:
    """A mask that is True at the first `counts[b]` of the points of cloud b."""
    return torch.arange(points, device=counts.device) < counts.unsqueeze(-1)


def zero_padding(x: Tensor | None, mask: Mask | None) -> Tensor | None:
    """Set padding to zero, whatever it holds: 0 · NaN would be NaN."""
    return x if x is None or mask is None else x.where(mask_like(mask, x.ndim), 0)


def in_range(logits: Tensor, points: Tensor) -> Tensor:
    """The logits; an error if they are not finite because of the size of the clouds."""
    size = max_abs(points)
    if MAX_CROSSABLE < size < torch.inf and not logits.isfinite().all():
        raise RangeError(out_of_range(f"clouds with coordinates of {size:.0e} lead to logits", logits.dtype))
    return logits


def kit_of(neurons: Neurons) -> Any:
    """The layers of one kind of neurons."""
    if neurons not in KITS:
        raise ValueError(f"unknown neurons {neurons!r}: choose {' or '.join(KITS)}")
    return KITS[neurons]


def input_channels(neurons: Neurons, inputs: Inputs) -> Any:
    """Channels of the features that `lift_all` makes."""
    channels = kit_of(neurons).width(3) * (1 + inputs.vectors)
    return channels + Channels(inputs.scalars, 0) if neurons == "hybrid" else channels


def projected_channels(neurons: Neurons, channels: Any) -> int:
    """Number of scalars that the invariant layer's `project` makes of features with these channels."""
    if neurons == "hybrid":
        return Channels(*channels).floats
    return int(channels) * (3 if neurons == "vector" else 1)


def lift_all(
    lift: Callable[..., Any], points: Tensor, vectors: Tensor | None, inputs: Inputs, scalars: Tensor | None = None
) -> Any:
    """Lift the points and their further vectors `(B, N, 3, V)` to features.

    Hybrid features start with the scalars of the points; other networks mix these in later, by `JoinScalars`.
    """
    given = 0 if vectors is None else vectors.shape[-1]
    if given != inputs.vectors:
        hint = "; one vector per point is (B, N, 3, 1)" if vectors is not None and vectors.ndim == 3 else ""
        raise ValueError(f"the network was built for {inputs.vectors} further vectors per point, got {given}{hint}")
    clouds = (points, *(() if vectors is None else vectors.unbind(-1)))
    if lift is not hybrid.lift:
        return lift(*clouds)
    check_scalar_inputs(scalars, inputs.scalars)
    return lift(*clouds, scalars=scalars)


def check_scalar_inputs(scalars: Tensor | None, expected: int) -> None:
    """Refuse another number of scalars than the network was built for."""
    given = 0 if scalars is None else scalars.shape[-1]
    if given != expected:
        raise ValueError(f"the network was built for {expected} scalars per point, got {given}")


class JoinScalars(nn.Module):
    """Mix scalars of the points into the invariants, whose number stays the same; hybrid features have them already."""

    def __init__(self, neurons: Neurons, channels: int, inputs: Inputs, *, negative_slope: float, norm: Norm) -> None:
        super().__init__()
        self.scalars, self.block = inputs.scalars, None
        if inputs.scalars and neurons != "hybrid":
            self.block = scalar.Block(channels + inputs.scalars, channels, negative_slope=negative_slope, norm=norm)

    def forward(self, x: Tensor, scalars: Tensor | None, mask: Mask | None) -> Tensor:
        check_scalar_inputs(scalars, self.scalars)
        return x if scalars is None or self.block is None else self.block(torch.cat([x, scalars], dim=-1), mask)


def pool_invariants(
    invariant: nn.Module, join: JoinScalars, x: Tensor | Features, scalars: Tensor | None, mask: Mask | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Maximum and mean over the points of the invariants of x, with scalars mixed in, and the frames."""
    check_scalar_inputs(scalars, join.scalars)
    if join.block is None:  # projection and pool in one kernel
        return invariant(x, mask, pool=True)
    invariants, frame = invariant(x, mask, return_frame=True)
    invariants = join(invariants, scalars, mask)
    return masked_max(invariants, mask), masked_mean(invariants, [1], mask).squeeze(1), frame
