"""Seeded batches: augmentation is seeded per cloud, so batch composition and world size do not change it."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..data import Cloud, Dataset
from ..data.augment import Jitter, Occlude, Outliers, Scale, Shift, Subset, UnitBall
from ..data.seeding import derive_seed
from ..geometry import rotations
from ..typing import Rotations
from .config import DataConfig, RecipeConfig, RunConfig


def training_order(labels: Tensor, balance: float, generator: torch.Generator) -> Tensor:
    """The clouds of an epoch: N indices, each once.

    With `balance`, N indices at random, those of a class of n clouds in proportion to n^-balance, so that 1 draws all
    classes alike; to an index that was there m times before, m N is added, and the cloud is augmented anew.
    """
    if not balance:
        return torch.randperm(len(labels), generator=generator)
    order = torch.multinomial(
        labels.bincount()[labels].double() ** -balance, len(labels), replacement=True, generator=generator
    )
    ordered, places = order.sort(stable=True)
    before = torch.arange(len(order)) - torch.searchsorted(ordered, ordered)
    return order.scatter_add(0, places, len(labels) * before)


def training_batch(data: Dataset, chosen: Tensor, config: RunConfig, epoch: int, step: int = 0) -> Cloud:
    """Clouds for training, some of `training_order`: subsampled, augmented, rotated.

    All randomness of a cloud is seeded by (seed, epoch, number in `chosen`), and that of a batch by (seed, epoch,
    step). A resumed run is therefore bit-identical to an uninterrupted one, and any number of processes gets the same
    clouds.
    """
    seed, (points, normals) = config.runtime.seed, _draw_batch(config, epoch, step)
    prepared, indices = [], chosen % len(data)
    for number, index, cloud in zip(chosen.tolist(), indices.tolist(), _unstack(data.batch(indices)), strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "train", epoch, number))
        cloud = cloud if normals else replace(cloud, normals=None)
        cloud = _occlude(cloud, points, config.recipe.occlude, generator)
        subset = Subset(points, config.data.queries or None)
        cloud = _augment(subset(cloud, generator), config.recipe, generator)
        noise = config.data.noise
        if config.recipe.vary_noise:
            noise *= 2 * torch.rand((), generator=generator).item()
        cloud = _normalize_scan(_add_noise(cloud, noise, generator), config.data)
        if config.recipe.outliers > 0:
            fraction = config.recipe.outliers * torch.rand((), generator=generator).item()
            cloud = Outliers(fraction)(cloud, generator)
        if config.protocol.fixed_poses:
            generator = torch.Generator().manual_seed(derive_seed(seed, "training pose", index))
        prepared.append(cloud.rotate(rotations.draw(config.protocol.train_rotations, 1, generator=generator)[0]))
    return Cloud.stack(prepared)


def evaluation_batch(
    data: Dataset,
    indices: Tensor,
    config: DataConfig,
    kind: Rotations,
    seed: int,
    trial: int = 0,
    *,
    occlude: float = 0.0,
) -> Cloud:
    """Clouds for validation and test: each has a fixed subset of its points, and one fixed rotation per `trial`.

    A fixed `occlude` of them is seen from one side only.
    """
    prepared = []
    for index, cloud in zip(indices.tolist(), _unstack(data.batch(indices)), strict=True):
        generator = torch.Generator().manual_seed(derive_seed(seed, "side", index))
        cloud = _occlude(cloud, config.points, occlude, generator)
        chosen = _normalize_scan(evaluation_points(cloud, index, config, seed), config)
        prepared.append(chosen.rotate(evaluation_rotation(kind, index, seed, trial)))
    return Cloud.stack(prepared)


def evaluation_points(cloud: Cloud, index: int, config: DataConfig, seed: int) -> Cloud:
    """The subset of a cloud's points in validation and test, with their noise."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "points", index))
    cloud = cloud if config.normals == 1 else replace(cloud, normals=None)
    return _add_noise(Subset(config.points)(cloud, generator), config.noise, generator)


def evaluation_rotation(kind: Rotations, index: int, seed: int, trial: int = 0) -> Tensor:
    """The rotation of a cloud in validation and test, seeded by (seed, trial, index)."""
    return rotations.draw(kind, 1, generator=torch.Generator().manual_seed(derive_seed(seed, "pose", trial, index)))[0]


def points_at(config: RunConfig, epoch: int) -> int:
    """Points per cloud in this epoch, counted from 0."""
    recipe = config.recipe
    if recipe.early_points is not None and epoch < recipe.early_fraction * recipe.epochs:
        return recipe.early_points
    return config.data.points


def _draw_batch(config: RunConfig, epoch: int, step: int) -> tuple[int, bool]:
    """The number of points of the clouds of a batch, and whether they have normals."""
    generator = torch.Generator().manual_seed(derive_seed(config.runtime.seed, "batch", epoch, step))
    u, v = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    points, fewest = points_at(config, epoch), config.recipe.fewest_points
    if fewest is not None:  # each doubling of the number is as likely as another
        points = round(fewest ** (1 - u) * points**u)
    return points, v < config.data.normals


def _occlude(cloud: Cloud, points: int, probability: float, generator: torch.Generator) -> Cloud:
    """So many points of one side, with this probability; before the subset, since few points do not hide each other."""
    chosen = probability > 0 and torch.rand((), generator=generator).item() < probability
    return Occlude(points=points)(cloud, generator) if chosen else cloud


def _add_noise(cloud: Cloud, noise: float, generator: torch.Generator) -> Cloud:
    """Add the noise that clouds have in training and testing."""
    return Jitter(noise, clip=None)(cloud, generator) if noise > 0 else cloud


def _normalize_scan(cloud: Cloud, config: DataConfig) -> Cloud:
    """For reconstruction, normalize by the ball of the points that are left: that of the whole surface is unknown."""
    return UnitBall()(cloud) if config.queries else cloud


def _unstack(batch: Cloud) -> list[Cloud]:
    return [batch.map(lambda x, i=i: x[i]) for i in range(len(batch.points))]  # type: ignore[misc]


def _augment(cloud: Cloud, recipe: RecipeConfig, generator: torch.Generator) -> Cloud:
    if recipe.anisotropic_scale > 1:
        cloud = Scale(1 / recipe.anisotropic_scale, recipe.anisotropic_scale)(cloud, generator)
    if recipe.scale > 1:
        factor = math.exp((2 * torch.rand((), generator=generator).item() - 1) * math.log(recipe.scale))
        queries = None if cloud.queries is None else cloud.queries * factor
        cloud = replace(cloud, points=cloud.points * factor, queries=queries)
    if recipe.shift > 0:
        cloud = Shift(recipe.shift)(cloud, generator)
    return Jitter(recipe.jitter)(cloud, generator) if recipe.jitter > 0 else cloud
