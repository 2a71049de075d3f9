"""Base classes of networks: what they share, and the arguments they were built with."""

import copy
import inspect
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..nn._range import MAX_CROSSABLE, RangeError, max_abs, out_of_range
from ..nn.features import Features
from ..typing import Mask
from .inputs import Inputs, inputs_of, mask_of, zero_padding

# Rounding can change neighbors and centers that a network chooses, and with them the answer: in float64 it never does
# in practice. It takes 1.6 to 2 times as long.
PRECISION = torch.float64
M = TypeVar("M", bound="Model")
N = TypeVar("N", bound=nn.Module)


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


def in_range(logits: Tensor, points: Tensor) -> Tensor:
    """The logits; an error if they are not finite because of the size of the clouds."""
    size = max_abs(points)
    if MAX_CROSSABLE < size < torch.inf and not logits.isfinite().all():
        raise RangeError(out_of_range(f"clouds with coordinates of {size:.0e} lead to logits", logits.dtype))
    return logits


def prepare(network: N, dtype: torch.dtype = torch.float32) -> N:
    """The network in this precision and in evaluation mode; a copy, if it has to be changed."""
    if all(p.dtype == dtype for p in network.parameters()) and not network.training:
        return network
    changed = copy.deepcopy(network)
    if dtype == torch.float64 and any(p.device.type == "mps" for p in network.parameters()):  # which has no float64
        changed = changed.cpu()
    return changed.to(dtype).eval()
