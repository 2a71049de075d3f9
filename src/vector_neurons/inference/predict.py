"""Classes and parts of shapes in files, by a trained network."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..geometry.rotations import draw, rotate
from ..mesh import MeshError
from ..models import Metadata, OccupancyModel, store
from ..models.base import PRECISION, Segmenter, prepare
from ..models.inputs import Inputs, inputs_of
from .inputs import Sampled, Source, name_source, read_mesh, sample_for
from .parts import Parts

CLOUDS = 2  # of each source, whose logits are averaged
NONE_OF_THESE = "none of these"
T = TypeVar("T")
MIN_KNOWN = 0.05  # below this a shape is of none of the known classes: so are 5 % of the validation shapes


class PredictError(ValueError):
    """A model that cannot be used on files; the message is one line."""


@dataclass(frozen=True)
class Prediction:
    """The class of a shape.

    Args:
        names: of the classes.
        probabilities: of the classes, calibrated if the model is.
        known: the fraction of validation shapes that look less like the classes than this shape does; None if the model
            is not calibrated.

    >>> Prediction(("cup", "vase"), torch.tensor([0.25, 0.75]), known=0.4).top(1)
    [('vase', 0.75)]
    """

    names: Sequence[str]
    probabilities: Float[Tensor, " classes"]
    known: float | None = None

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k most likely classes and their probabilities."""
        values, indices = self.probabilities.topk(min(k, len(self.names)))
        return [(self.names[i], p) for i, p in zip(indices.tolist(), values.tolist(), strict=True)]

    @property
    def label(self) -> str:
        """The most likely class, or "none of these" if the shape looks unlike all of them."""
        return NONE_OF_THESE if self.known is not None and self.known < MIN_KNOWN else self.top(1)[0][0]


def predict(
    model: nn.Module | str | Path,
    source: Source,
    *,
    category: str | None = None,
    batch_size: int = 16,
    seed: int = 0,
    drop_nan: bool = False,
) -> Any:
    """Predict the class of a shape, or its parts, whichever the model is trained for; in any pose and units.

    Args:
        model: a network, the folder of a run or of a saved model, or a name of `vn.pretrained`.
        source: path of a mesh or a cloud, a trimesh object, a `vn.mesh.Mesh`, or an array or tensor of points
            `(N, 3)`; or a list of these.
        category: what the shape is, which part segmentation has to be told.
        batch_size: shapes that the network gets at once.
        seed: of the points that are sampled.
        drop_nan: leave out points of a cloud that are NaN or infinite.

    Returns:
        A `vn.inference.Prediction`, or `vn.inference.Parts` of a segmentation; a list of them for a list.

    Raises:
        MeshError: a source cannot be used; the message is one line.
        PredictError: the model cannot be used.

    >>> model = vn.models.FrameNet(3, k=8, width=16)
    >>> vn.predict(model, torch.rand(2000, 3)).probabilities.shape
    torch.Size([3])
    """
    network = find_model(model)
    sources = list(source) if isinstance(source, list | tuple) else [source]
    options: dict[str, Any] = {"category": category, "batch_size": batch_size, "seed": seed, "drop_nan": drop_nan}
    results = []
    for result in predict_each(network, sources, **options):
        if isinstance(result, Exception):
            raise result
        results.append(result)
    return results if isinstance(source, list | tuple) else results[0]


def predict_each(
    network: nn.Module,
    sources: Iterable[Source],
    *,
    category: str | None = None,
    batch_size: int = 16,
    seed: int = 0,
    drop_nan: bool = False,
) -> Iterator[Prediction | Parts | MeshError]:
    """Predict each of many sources, several at once; of one that cannot be used, yield the error and go on."""
    chosen = check_model(network, category)
    network = prepare(network, PRECISION)
    known = store.metadata_of(network)
    yield from in_batches(
        sources, known, lambda some: _predict_batch(network, some, chosen), batch_size, seed=seed, drop_nan=drop_nan
    )


def in_batches(
    sources: Iterable[Source],
    known: Metadata,
    compute: Callable[[list[Sampled]], Iterable[T]],
    batch_size: int,
    *,
    seed: int,
    drop_nan: bool,
) -> Iterator[T | MeshError]:
    """Compute a result of each source, several with as many points at once; of one that cannot be used, the error."""
    remaining = iter(sources)
    while some := list(islice(remaining, batch_size)):
        sampled = [sample_source(source, known, seed, drop_nan) for source in some]
        results: dict[int, T | MeshError] = {i: x for i, x in enumerate(sampled) if isinstance(x, MeshError)}
        by_size: defaultdict[int, dict[int, Sampled]] = defaultdict(dict)
        for i, one in enumerate(sampled):
            if isinstance(one, Sampled):
                by_size[one.clouds.shape[1]][i] = one
        for alike in by_size.values():
            results.update(zip(alike, compute(list(alike.values())), strict=True))
        yield from (results[i] for i in range(len(some)))


def find_model(model: nn.Module | str | Path) -> nn.Module:
    """The network itself, or that of a name of `vn.pretrained` or a folder."""
    if isinstance(model, nn.Module):
        return model
    if str(model) in store.pretrained_names():
        return store.pretrained(str(model))
    if Path(model).exists() or len(Path(model).parts) > 1:
        return store.load(model)
    known = " or ".join(store.pretrained_names())
    raise PredictError(f"there is no folder {model}, and no pretrained model of this name: choose {known}, or a run")


def check_model(network: nn.Module, category: str | None) -> int | None:
    """Refuse models that do not classify or segment clouds; returns the index of the category, if there is one."""
    known, kind = store.metadata_of(network), type(network).__name__
    if isinstance(network, OccupancyModel):
        raise PredictError(f"a {kind} has no classes: use it by `vn reconstruct`")
    if any(inputs_of(getattr(network, "arguments", {}).get("inputs", Inputs()))):
        raise PredictError(f"this {kind} needs normals or other inputs of each point, which files do not have")
    segments = isinstance(network, Segmenter) or known.categories is not None
    if not segments:
        if category is not None:
            raise PredictError("a category is for part segmentation, and this model classifies")
        return None
    names = list(known.categories or ())
    lower = [name.lower() for name in names]
    if category is None or category.lower() not in lower:
        wrong = "part segmentation needs the category" if category is None else f"unknown category {category!r}"
        raise PredictError(f"{wrong} of the shape: choose {', '.join(names)}")
    return lower.index(category.lower())


def pose_spread(network: nn.Module, source: Source, poses: int, *, seed: int = 0, **options: Any) -> tuple[bool, float]:
    """Predict a shape in random poses: whether all answers are the same, and how much they differ.

    Of classes, the difference is the largest one of a probability; of parts, the fraction of points whose part changes.
    """
    mesh = read_mesh(source, drop_nan=options.get("drop_nan", False))
    turns = draw("SO3", poses, generator=torch.Generator().manual_seed(seed)).double()
    turned = [replace(mesh, vertices=rotate(mesh.vertices, R), normals=None) for R in turns]
    first, *others = predict(network, [mesh, *turned], seed=seed, **options)
    if isinstance(first, Parts):
        change = max(((first.parts != other.parts).double().mean().item() for other in others), default=0.0)
        return change == 0, change
    change = max(((first.probabilities - other.probabilities).abs().max().item() for other in others), default=0.0)
    return len({one.label for one in (first, *others)}) == 1, change


def sample_source(source: Source, known: Metadata, seed: int, drop_nan: bool) -> Sampled | MeshError:
    """Clouds of a source, as many points and normalized as a model wants; or why it cannot be used."""
    try:
        with name_source(source):
            mesh = read_mesh(source, drop_nan=drop_nan)
            return sample_for(mesh, known, count=CLOUDS, seed=seed, dtype=PRECISION)
    except MeshError as error:
        return error


@torch.no_grad()
def _predict_batch(network: nn.Module, sampled: list[Sampled], category: int | None) -> Sequence[Prediction | Parts]:
    clouds = torch.stack([one.clouds for one in sampled])
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    flat = clouds.flatten(0, 1).to(device)
    known = store.metadata_of(network)
    if category is None:
        logits = network(flat).cpu().unflatten(0, clouds.shape[:2]).mean(1)
        return _classify(logits, known, getattr(network, "calibration", None))
    given = torch.full((len(flat),), category, device=device)
    logits = network(flat, given).cpu().unflatten(0, clouds.shape[:2])
    names = _names(known.classes, logits.shape[-1])
    assert known.categories is not None  # `check_model` found the category there
    own = torch.tensor([name.startswith(f"{known.categories[category]} ") for name in names])
    if own.any():  # parts that are named after their category are no other's
        logits = logits.masked_fill(~own, -torch.inf)
    probabilities, parts = logits.softmax(-1).max(-1)
    return [
        Parts.of(one, parts[i].flatten(), probabilities[i].flatten(), names, known.categories[category])
        for i, one in enumerate(sampled)
    ]


def _classify(logits: Float[Tensor, "shapes classes"], known: Metadata, calibration: Any) -> list[Prediction]:
    names = _names(known.classes, logits.shape[-1])
    if calibration is None:
        return [Prediction(names, p) for p in logits.softmax(-1)]
    scores = calibration.known(logits).tolist()
    return [Prediction(names, p, score) for p, score in zip(calibration.probabilities(logits), scores, strict=True)]


def _names(names: Sequence[str] | None, count: int) -> Sequence[str]:
    return tuple(names) if names is not None else tuple(f"class {i}" for i in range(count))
