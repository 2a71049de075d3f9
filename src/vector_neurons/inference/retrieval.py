"""Search for shapes that are similar to a given one, in any pose, by an index of invariant descriptors."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from .._files import CHECKSUMS, FileError, first_line, flush, read_json, verify_checksums, write_checksums
from ..mesh import MeshError
from ..models import store
from ..models.base import Classifier, prepare
from ..nn.head import Head
from .inputs import Sampled, Source
from .predict import check_model, find_model, in_batches

FORMAT = 1
DESCRIPTORS, FILES = "descriptors.safetensors", "files.json"


class RetrievalError(ValueError):
    """An index or a model that cannot be used for retrieval; the message is one line."""


class Match(NamedTuple):
    """A shape of an index, and its similarity to the query: 1 for the same shape, about 0 for unrelated ones."""

    file: str
    similarity: float


@dataclass(frozen=True)
class Index:
    """Descriptors of many shapes, and the names of their files.

    Args:
        descriptors: of unit length.
        files: names of the shapes.
        model: name or folder of the model that made the descriptors.
        weights: checksum of its weights, by `weights_checksum`.

    Shape:
        - descriptors: `(shapes, D)`, float32

    >>> index = Index(torch.eye(3), ("cup.ply", "vase.ply", "bowl.ply"), "classification", "")
    >>> index.search(torch.tensor([0.0, 0.8, 0.6]), 2)
    [Match(file='vase.ply', similarity=0.8...), Match(file='bowl.ply', similarity=0.6...)]
    """

    descriptors: Float[Tensor, "shapes channels"]
    files: Sequence[str]
    model: str
    weights: str

    def search(self, descriptor: Float[Tensor, " channels"], top: int = 10) -> list[Match]:
        """The most similar shapes, best first: an exact search, by one product with all descriptors."""
        values, indices = (self.descriptors @ descriptor).topk(min(top, len(self.files)))
        return [Match(self.files[i], s) for i, s in zip(indices.tolist(), values.tolist(), strict=True)]

    def save(self, folder: str | Path) -> None:
        """Write the index to a folder; files already there are replaced when all new ones are written."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = {"format": FORMAT, "model": self.model, "weights": self.weights, "files": list(self.files)}
        with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as name:
            part = Path(name)
            (part / FILES).write_text(json.dumps(about, indent=1) + "\n")
            try:
                save_file({"descriptors": self.descriptors.contiguous()}, part / DESCRIPTORS)
            except SafetensorError as error:  # how it reports a full disk
                raise OSError(f"{folder / DESCRIPTORS} cannot be written: {first_line(error)}") from error
            (part / DESCRIPTORS).chmod((part / FILES).stat().st_mode)  # safetensors writes for the user alone
            write_checksums(part, (DESCRIPTORS, FILES))
            for file in (DESCRIPTORS, FILES, CHECKSUMS):
                os.replace(part / file, folder / file)
        flush(folder)


def load_index(folder: str | Path) -> Index:
    """Load an index from its folder; one that is damaged raises `RetrievalError`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        if folder.is_dir() and not (folder / FILES).exists():
            raise RetrievalError(f"{folder} is not an index: it has no {FILES}; make one by `vn embed`")
        verify_checksums(folder, (DESCRIPTORS, FILES))
        about = read_json(folder / FILES)
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise RetrievalError(f"{folder / FILES} has another format than {FORMAT}: make the index again")
        descriptors, files = load_file(folder / DESCRIPTORS)["descriptors"], about["files"]
        if descriptors.dtype != torch.float32 or descriptors.ndim != 2 or len(descriptors) != len(files) or not files:
            raise RetrievalError(
                f"{folder} is damaged: descriptors {tuple(descriptors.shape)} of {len(files):,} files; make it again"
            )
        return Index(descriptors, tuple(files), str(about["model"]), str(about["weights"]))
    except FileError as error:
        raise RetrievalError(str(error)) from error
    except (SafetensorError, OSError, KeyError, TypeError) as error:
        raise RetrievalError(f"{folder} is damaged: {first_line(error)}; make it again") from error


def find_classifier(model: nn.Module | str | Path) -> Classifier:
    """A classifier in float32 and evaluation mode, by a name of `vn.pretrained` or a folder."""
    network = find_model(model)
    if not isinstance(network, Classifier):
        raise RetrievalError(f"a {type(network).__name__} has no descriptors of shapes: use a classifier")
    check_model(network, None)
    prepared = prepare(network)
    assert isinstance(prepared, Classifier)
    return prepared


def weights_checksum(model: nn.Module) -> str:
    """SHA-256 of the names and values of a network's parameters and buffers, in hexadecimal."""
    found = hashlib.sha256()
    for name, x in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(x.shape)}".encode())
        found.update(x.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@torch.no_grad()
def describe(model: Classifier, clouds: Float[Tensor, "batch points 3"]) -> Float[Tensor, "batch channels"]:
    """Descriptors of clouds, of unit length and as invariant as the network is.

    Half of a descriptor are the square roots of the class probabilities, the other half the features of the head's last
    hidden layer, scaled to unit length. The cosine of two descriptors is therefore the mean of the Bhattacharyya
    coefficient of the classes and the cosine of the features: which kind of shape, and which one of its kind.

    Shape:
        - clouds: `(B, N, 3)`
        - out: `(B, classes + hidden)`
    """
    features = model.encode(clouds).descriptor
    hidden = model.head.hidden(features) if isinstance(model.head, Head) else features
    probabilities = model.head(features).float().softmax(-1)
    return normalize(torch.cat([probabilities.sqrt(), normalize(hidden.float(), dim=-1)], dim=-1), dim=-1)


def embed_each(
    model: Classifier, sources: Iterable[Source], *, batch_size: int = 16, seed: int = 0, drop_nan: bool = False
) -> Iterator[Tensor | MeshError]:
    """Descriptors of many sources, several at once; of one that cannot be used, yield the error and go on.

    A descriptor is the mean over two clouds of a source, the two halves of its sample.

    Args:
        model: a network of `find_classifier`.
        sources: paths of meshes or clouds, meshes, or arrays of points, as for `vn.predict`.
        batch_size: sources that the network gets at once.
        seed: of the points that are sampled.
        drop_nan: leave out points of a cloud that are NaN or infinite.
    """

    def compute(some: list[Sampled]) -> Iterable[Tensor]:
        clouds = torch.stack([one.clouds.float() for one in some])
        halves = torch.unflatten(describe(model, clouds.flatten(0, 1)), 0, clouds.shape[:2])
        return normalize(halves.mean(1), dim=-1)

    yield from in_batches(sources, store.metadata_of(model), compute, batch_size, seed=seed, drop_nan=drop_nan)


def embed(model: nn.Module | str | Path, source: Source, **options: Any) -> Float[Tensor, " channels"]:
    """The descriptor of one shape, by which `Index.search` finds similar ones; the same in every pose.

    Args:
        model: a classifier, the folder of a run or of a saved model, or a name of `vn.pretrained`.
        source: path of a mesh or cloud, a `vn.mesh.Mesh`, a trimesh object, or an array or tensor of points `(N, 3)`.
        options: `seed` and `drop_nan`, as for `embed_each`.

    Raises:
        ValueError: the shape or the model cannot be used; the message is one line.

    >>> vn.inference.embed(vn.models.FrameNet(10, k=8, width=16, hidden=32), torch.rand(2000, 3)).shape
    torch.Size([42])
    """
    (found,) = embed_each(find_classifier(model), [source], **options)
    if isinstance(found, MeshError):
        raise found
    return found


def similar(
    source: Source, index: Index, *, model: nn.Module | str | Path | None = None, top: int = 10, **options: Any
) -> list[Match]:
    """Shapes of an index that are most similar to one, in any pose.

    Args:
        source: path of a mesh or cloud, a `vn.mesh.Mesh`, a trimesh object, or an array or tensor of points `(N, 3)`.
        index: of `load_index`.
        model: the model that made the index; by default it is found by the name in the index.
        top: number of shapes.
        options: `seed` and `drop_nan`, as for `embed_each`.

    Raises:
        ValueError: the shape cannot be used, or the model is not that of the index; the message is one line.
    """
    network = find_classifier(index.model if model is None else model)
    if weights_checksum(network) != index.weights:
        name = index.model if model is None else model if isinstance(model, str | Path) else type(model).__name__
        raise RetrievalError(f"the index was made by other weights than those of {name}: make it again by `vn embed`")
    return index.search(embed(network, source, **options), top)
