"""Data sets, tasks and networks from settings; batches whose randomness depends on the cloud, not on the company."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..data import Cloud, Dataset, Folder, ModelNet40, ShapeNetPart, Shapes
from ..data.augment import Jitter, Scale, Shift, Subset
from ..data.pack import seed_of
from ..geometry import rotations
from ..models import DGCNN, DGCNNSegmenter, Model, PointNet, PointNetSegmenter
from ..tasks import Classification, Segmentation, Task
from ..typing import Rotations
from .settings import Clouds, Recipe, Settings

SHARES = {"train": 1, "val": 10, "test": 5}  # of shapes: for every validation cloud ten, for every test cloud five


class InMemory(Dataset):
    """Another data set, made once."""

    def __init__(self, made: Dataset) -> None:
        self.name, self.split, self.classes, self.labels = made.name, made.split, made.classes, made.labels  # type: ignore[misc]
        self.parts, self.parts_of = made.parts, made.parts_of
        self.clouds = made.batch(torch.arange(len(made)))

    def batch(self, indices: Tensor) -> Cloud:
        """The clouds of these indices, stacked."""
        return self.clouds.map(lambda x: x[indices])


def open_set(clouds: Clouds, split: str) -> Dataset:
    """A split of the data: "train", "val" or "test"."""
    if clouds.data == "shapes":
        size = None if clouds.size is None else max(1, clouds.size // SHARES[split])
        return InMemory(Shapes(split, size=size, points=clouds.pool))
    if clouds.data == "modelnet40":
        return ModelNet40(split, clouds.data_root, points=clouds.pool)
    if clouds.data == "shapenet-part":
        return ShapeNetPart(split, clouds.data_root, points=clouds.pool)
    assert clouds.folder is not None  # checked with the settings
    return Folder(clouds.folder, split, clouds.data_root, points=clouds.pool)


def make_task(settings: Settings, data: Dataset) -> Task:
    """What is to be learned from this data."""
    if settings.task == "classification":
        return Classification(data.classes)
    assert data.parts_of is not None  # checked with the settings
    return Segmentation(data.parts, data.parts_of)


def make_network(settings: Settings, data: Dataset) -> Model:
    """The network, its weights drawn by the seed."""
    network = settings.network
    chosen = {"pool": network.pooling}
    chosen |= {name: getattr(network, name) for name in ("k", "embedding", "hidden", "dropout", "widths")}
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    given |= {name: getattr(network, name) for name in ("neurons", "nonlinearity", "frame", "mean")}
    torch.manual_seed(settings.machine.seed)
    if settings.task == "classification":
        classifier = DGCNN if network.model == "dgcnn" else PointNet
        return classifier(len(data.classes), **given)
    if "widths" in given:
        given["widths"] = tuple((width,) for width in given["widths"])
    segmenter = DGCNNSegmenter if network.model == "dgcnn" else PointNetSegmenter
    return segmenter(len(data.parts), len(data.classes), **given)


def training_batch(data: Dataset, indices: Tensor, settings: Settings, epoch: int) -> Cloud:
    """Clouds for training: fewer points, augmented, turned.

    What is drawn for a cloud depends on the seed, the epoch and its number only, so that a run that was stopped goes
    on as it would have, and as many processes as one likes see the same clouds.
    """
    points, seed = points_at(settings, epoch), settings.machine.seed
    prepared = []
    for index, cloud in zip(indices.tolist(), _each(data.batch(indices)), strict=True):
        generator = torch.Generator().manual_seed(seed_of(seed, "train", epoch, index))
        cloud = _augment(Subset(points)(cloud, generator), settings.recipe, generator)
        prepared.append(cloud.rotate(rotations.draw(settings.protocol.train_rotations, 1, generator=generator)[0]))
    return Cloud.stack(prepared)


def posed_batch(data: Dataset, indices: Tensor, points: int, kind: Rotations, seed: int, time: int = 0) -> Cloud:
    """Clouds for validation and test: each has its own points, and one pose for every `time`, fixed by the seed."""
    prepared = []
    for index, cloud in zip(indices.tolist(), _each(data.batch(indices)), strict=True):
        chosen = Subset(points)(cloud, torch.Generator().manual_seed(seed_of(seed, "points", index)))
        generator = torch.Generator().manual_seed(seed_of(seed, "pose", time, index))
        prepared.append(chosen.rotate(rotations.draw(kind, 1, generator=generator)[0]))
    return Cloud.stack(prepared)


def points_at(settings: Settings, epoch: int) -> int:
    """Points of a cloud in this epoch, counted from 0."""
    recipe = settings.recipe
    early = recipe.early_points is not None and epoch < recipe.early_share * recipe.epochs
    return recipe.early_points if early and recipe.early_points is not None else settings.clouds.points


def _each(batch: Cloud) -> list[Cloud]:
    return [batch.map(lambda x, i=i: x[i]) for i in range(len(batch.points))]  # type: ignore[misc]


def _augment(cloud: Cloud, recipe: Recipe, generator: torch.Generator) -> Cloud:
    if recipe.stretch > 1:
        cloud = Scale(1 / recipe.stretch, recipe.stretch)(cloud, generator)
    if recipe.zoom > 1:
        factor = math.exp((2 * torch.rand((), generator=generator).item() - 1) * math.log(recipe.zoom))
        queries = None if cloud.queries is None else cloud.queries * factor
        cloud = replace(cloud, points=cloud.points * factor, queries=queries)
    if recipe.shift > 0:
        cloud = Shift(recipe.shift)(cloud, generator)
    return Jitter(recipe.jitter)(cloud, generator) if recipe.jitter > 0 else cloud
