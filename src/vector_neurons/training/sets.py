"""Data sets, tasks and networks from settings; batches whose randomness depends on the cloud, not on the company."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import abbreviate
from ..data import Cloud, DataError, Dataset, Folder, ModelNet40, Occupancy, ShapeNetPart, Shapes
from ..data.augment import Jitter, Occlude, Scale, Shift, Subset, UnitBall
from ..data.seeding import derive_seed
from ..geometry import rotations
from ..models import DGCNN, DGCNNSegmenter, Model, OccupancyNetwork, PointNet, PointNetSegmenter, store
from ..tasks import Classification, Reconstruction, Segmentation, Task
from ..typing import Rotations
from .run import TrainingError
from .settings import Clouds, Network, Recipe, Settings

QUERY_POOL = 4  # of shapes, training draws its queries from so many times as many
SHAPES_QUERIES = {"val": 4096, "test": 8192}  # of a shape, all uniform
SHARES = {"train": 1, "val": 10, "test": 5}  # of shapes: for every validation cloud ten, for every test cloud five


class InMemory(Dataset):
    """Another data set, made once."""

    def __init__(self, made: Dataset) -> None:
        self.name, self.split, self.classes, self.labels = made.name, made.split, made.classes, made.labels  # type: ignore[misc]
        self.parts, self.parts_of, self.pack, self.drawn_from = made.parts, made.parts_of, made.pack, made.drawn_from
        self.clouds = made.batch(torch.arange(len(made)))

    def batch(self, indices: Tensor) -> Cloud:
        """The clouds of these indices, stacked."""
        return self.clouds.map(lambda x: x[indices])


def open_set(clouds: Clouds, split: str) -> Dataset:
    """A split of the data: "train", "val" or "test"."""
    train = split == "train"
    if clouds.data == "shapes":
        queries = 0 if not clouds.queries else QUERY_POOL * clouds.queries if train else SHAPES_QUERIES[split]
        near = clouds.near if train else 0.0
        return InMemory(Shapes(split, size=shapes_size(clouds, split), points=clouds.pool, queries=queries, near=near))
    if clouds.data == "occupancy":
        near = clouds.near if train else 0.0
        data = InMemory(Occupancy(split, clouds.data_root, points=clouds.pool, queries=None, near=near))
        known = 0 if data.clouds.queries is None else data.clouds.queries.shape[1]
        if known < clouds.queries:
            raise DataError(f"the pack has {known:,} queries of a shape, fewer than --queries {clouds.queries:,}")
        return data
    if clouds.data == "modelnet40":
        return ModelNet40(split, clouds.data_root, points=clouds.pool)
    if clouds.data == "shapenet-part":
        return ShapeNetPart(split, clouds.data_root, points=clouds.pool)
    return Folder(
        clouds.folder,
        split,
        clouds.data_root,
        pack=clouds.pack,
        points=clouds.pool,
        up=clouds.up,
        drop_nan=clouds.drop_nan,
    )


def shapes_size(clouds: Clouds, split: str) -> int | None:
    """Clouds of a split of shapes; None is as many as it has by default."""
    return None if clouds.size is None else max(1, clouds.size // SHARES[split])


def make_task(settings: Settings, data: Dataset, threshold: float | None = None) -> Task:
    """What is to be learned from this data; `threshold` is the one at which a reconstruction is to be tested."""
    if settings.task == "classification":
        if len(data.classes) < 2:
            raise DataError(
                f"there is one class only, {data.classes[0]!r}: put the files of each class into a folder of its own"
            )
        return Classification(data.classes)
    if settings.task == "reconstruction":
        return Reconstruction(threshold)
    assert data.parts_of is not None  # checked with the settings
    return Segmentation(data.parts, data.parts_of, data.classes)


def meaning(settings: Settings, task: Task, data: Dataset) -> store.Meaning:
    """What the outputs of a model mean that is trained on this data."""
    categories = data.classes if settings.task == "segmentation" else None
    return store.Meaning(
        classes=task.outputs, points=settings.clouds.points, categories=categories, drawn_from=data.drawn_from
    )


def check_data(model: nn.Module, data: store.Meaning, where: Path) -> None:
    """Refuse data whose classes are not those that the model has learned, in that order, or whose split is another."""
    learned: Any = model.meaning
    for what, old, new in (
        ("classes", learned.classes, data.classes),
        ("categories", learned.categories, data.categories),
    ):
        if old is None or new is None or list(old) == list(new):
            continue
        gone, come = [x for x in old if x not in new], [x for x in new if x not in old]
        sides = (("model", gone), ("data", come))
        how = "; ".join(f"only the {side} has {abbreviate(some)}" for side, some in sides if some) or "in another order"
        raise TrainingError(f"{where} was trained on other {what} than those of the data: {how}")
    if None not in (learned.drawn_from, data.drawn_from) and learned.drawn_from != data.drawn_from:
        raise TrainingError(
            f"{where} was trained on other files: with them the split is drawn anew, and what was trained on would be "
            "tested; put them back, or into folders train and test of your own"
        )


def make_network(settings: Settings, data: Dataset) -> Model:
    """The network, its weights drawn by the seed."""
    network = settings.network
    torch.manual_seed(settings.machine.seed)
    if settings.task == "reconstruction":
        return _occupancy_network(network)
    chosen = {"pool": network.pooling}
    chosen |= {name: getattr(network, name) for name in ("k", "embedding", "hidden", "dropout", "widths")}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    given |= {name: getattr(network, name) for name in ("neurons", "nonlinearity", "frame", "mean")}
    if settings.task == "classification":
        classifier = DGCNN if network.model == "dgcnn" else PointNet
        return classifier(len(data.classes), **given)
    if "widths" in given:
        given["widths"] = tuple((width,) for width in given["widths"])
    segmenter = DGCNNSegmenter if network.model == "dgcnn" else PointNetSegmenter
    return segmenter(len(data.parts), len(data.classes), **given)


def _occupancy_network(network: Network) -> Model:
    chosen = {"code": network.code, "hidden": network.encoder_width, "decoder_hidden": network.decoder_width}
    given: dict[str, Any] = {name: value for name, value in (chosen | {"k": network.k}).items() if value is not None}
    return OccupancyNetwork(
        neurons=network.neurons,
        encoder=network.model,
        decoder=network.decoder,
        conditional=network.conditional,
        invariants=network.code_invariants,
        local=network.local,
        **given,
    )


def training_batch(data: Dataset, indices: Tensor, settings: Settings, epoch: int) -> Cloud:
    """Clouds for training: fewer points, augmented, turned.

    What is drawn for a cloud depends on the seed, the epoch and its number only, so that a run that was stopped goes
    on as it would have, and as many processes as one likes see the same clouds.
    """
    points, seed = points_at(settings, epoch), settings.machine.seed
    prepared = []
    for index, cloud in zip(indices.tolist(), _each(data.batch(indices)), strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "train", epoch, index))
        share = settings.recipe.occlude
        if share > 0 and torch.rand((), generator=generator).item() < share:
            cloud = Occlude(points=points)(cloud, generator)  # by all its points: few do not hide each other
        subset = Subset(points, settings.clouds.queries or None)
        cloud = _augment(subset(cloud, generator), settings.recipe, generator)
        cloud = _in_its_ball(noisy(cloud, settings.clouds, generator), settings.clouds)
        if settings.protocol.fixed_poses:
            generator = torch.Generator().manual_seed(derive_seed(seed, "training pose", index))
        prepared.append(cloud.rotate(rotations.draw(settings.protocol.train_rotations, 1, generator=generator)[0]))
    return Cloud.stack(prepared)


def posed_batch(data: Dataset, indices: Tensor, clouds: Clouds, kind: Rotations, seed: int, trial: int = 0) -> Cloud:
    """Clouds for validation and test: each has its own points, and one pose for every `trial`, fixed by the seed."""
    prepared = []
    for index, cloud in zip(indices.tolist(), _each(data.batch(indices)), strict=True):
        chosen = _in_its_ball(few_points(cloud, index, clouds, seed), clouds)
        prepared.append(chosen.rotate(pose(kind, index, seed, trial)))
    return Cloud.stack(prepared)


def few_points(cloud: Cloud, index: int, clouds: Clouds, seed: int) -> Cloud:
    """A cloud for validation and test with the points that it has there, noise included."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "points", index))
    return noisy(Subset(clouds.points)(cloud, generator), clouds, generator)


def pose(kind: Rotations, index: int, seed: int, trial: int = 0) -> Tensor:
    """The rotation of a cloud in validation and test."""
    return rotations.draw(kind, 1, generator=torch.Generator().manual_seed(derive_seed(seed, "pose", trial, index)))[0]


def points_at(settings: Settings, epoch: int) -> int:
    """Points of a cloud in this epoch, counted from 0."""
    recipe = settings.recipe
    early = recipe.early_points is not None and epoch < recipe.early_fraction * recipe.epochs
    return recipe.early_points if early and recipe.early_points is not None else settings.clouds.points


def noisy(cloud: Cloud, clouds: Clouds, generator: torch.Generator) -> Cloud:
    """The noise that clouds have in testing as in training."""
    return Jitter(clouds.noise, clip=None)(cloud, generator) if clouds.noise > 0 else cloud


def _in_its_ball(cloud: Cloud, clouds: Clouds) -> Cloud:
    """For reconstruction, the ball of the few points that are left: that of the whole surface is unknown."""
    return UnitBall()(cloud) if clouds.queries else cloud


def _each(batch: Cloud) -> list[Cloud]:
    return [batch.map(lambda x, i=i: x[i]) for i in range(len(batch.points))]  # type: ignore[misc]


def _augment(cloud: Cloud, recipe: Recipe, generator: torch.Generator) -> Cloud:
    if recipe.anisotropic_scale > 1:
        cloud = Scale(1 / recipe.anisotropic_scale, recipe.anisotropic_scale)(cloud, generator)
    if recipe.scale > 1:
        factor = math.exp((2 * torch.rand((), generator=generator).item() - 1) * math.log(recipe.scale))
        queries = None if cloud.queries is None else cloud.queries * factor
        cloud = replace(cloud, points=cloud.points * factor, queries=queries)
    if recipe.shift > 0:
        cloud = Shift(recipe.shift)(cloud, generator)
    return Jitter(recipe.jitter)(cloud, generator) if recipe.jitter > 0 else cloud
