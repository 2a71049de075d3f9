"""Metrics of a model on a whole data set, in any number of processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._files import first_line
from .._user_code import describe
from ..data import Cloud, DataError, Dataset
from ..data.pack import verify
from ..models import store
from ..nn._range import RangeError
from ..tasks import Counts, Task, add
from ..tasks.task import from_fixed_point, to_fixed_point
from ..typing import Rotations
from . import batches, checkpoint, factory
from .config import RunConfig
from .distributed import ProcessGroup
from .errors import TrainingError
from .run import read_config
from .user_network import is_user_network


@torch.no_grad()
def measure(
    model: nn.Module,
    task: Task,
    data: Dataset,
    config: RunConfig,
    kind: Rotations,
    group: ProcessGroup | None = None,
    *,
    trial: int = 0,
    occlude: float = 0.0,
) -> Counts:
    """Count over a whole data set, every cloud once, in its fixed rotation of this `trial`, some from one side.

    The batches are the same for any number of processes, which take them in turn.
    """
    group = group or ProcessGroup()
    model.eval()
    every_batch = torch.split(torch.arange(len(data)), config.recipe.batch_size)
    counts: Counts | None = None
    # A process without a batch counts nothing of the first one, so that there is something to add.
    for number in range(group.rank, max(len(every_batch), group.rank + 1), group.size):
        indices = every_batch[number] if number < len(every_batch) else every_batch[0]
        cloud = batches.evaluation_batch(data, indices, config.data, kind, config.runtime.seed, trial, occlude=occlude)
        cloud = cloud.to(group.device)
        with torch.autocast(group.device.type, dtype=torch.bfloat16, enabled=config.runtime.bf16):
            logits = compute_logits(model, task, cloud, config)
        if number >= len(every_batch):
            logits, cloud = logits[:0], cloud.map(lambda x: x[:0])
        clouds = torch.tensor(len(cloud.points), device=group.device)
        loss = to_fixed_point(task.loss(logits, cloud)) * clouds if len(cloud.points) else clouds
        counts = add(counts, task.count(logits, cloud) | {"loss": loss, "clouds": clouds})
    assert counts is not None
    return {name: group.sum(x) for name, x in counts.items()}


def compute_logits(model: Any, task: Task, cloud: Cloud, config: RunConfig) -> Tensor:
    """Logits of a batch; an error in a network of the user's own becomes one line."""
    name = config.network.model
    if not is_user_network(name):
        return task.logits(model, cloud)
    clouds = f"clouds of shape {tuple(cloud.points.shape)}"
    try:
        logits = task.logits(model, cloud)
    except RangeError:
        raise
    except Exception as error:
        raise TrainingError(f"{name} failed on {clouds}: {describe(error)}") from error
    targets = {"classification": cloud.label, "segmentation": cloud.parts, "reconstruction": cloud.occupied}
    target = targets[config.task]
    assert target is not None
    wanted = (*target.shape,) if config.task == "reconstruction" else (*target.shape, len(task.outputs))
    if not isinstance(logits, Tensor) or tuple(logits.shape) != wanted:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise TrainingError(f"{name} must give logits of shape {wanted} for {clouds}, got {found}")
    return logits


def compute_metrics(task: Task, counts: Counts) -> dict[str, float]:
    """The mean loss and the metrics of the task, from the counts of `measure`."""
    return {"loss": (from_fixed_point(counts["loss"]) / counts["clouds"]).item(), **task.report(counts)}


def evaluate(
    folder: Path, rotations: Sequence[Rotations], trials: int = 1, group: ProcessGroup | None = None
) -> tuple[Task, dict[Rotations, list[Counts]]]:
    """Test the best model of a run on the test set, in `trials` rotations of each cloud: the task, and all counts."""
    group = group or ProcessGroup()
    config = read_config(folder)
    if config.runtime.threads is not None:
        torch.set_num_threads(config.runtime.threads)
    model = checkpoint.load(folder / store.BEST, factory.user_class(config)).to(group.device)
    (data,) = open_datasets(config, ("test",), group)
    known = store.metadata_of(model)
    if config.task == "reconstruction" and known.threshold is None:
        raise TrainingError(f"{folder / store.BEST} has no threshold, and the test set must not choose it")
    task = factory.build_task(config, data, known.threshold)
    factory.check_data(model, factory.metadata(config, task, data), folder / store.BEST)
    try:
        return task, {
            kind: [measure(model, task, data, config, kind, group, trial=trial) for trial in range(trials)]
            for kind in rotations
        }
    except DataError:
        raise
    except ValueError as error:  # more neighbors than points, say
        raise TrainingError(
            f"{folder / store.BEST} does not take the clouds of its run: {first_line(error)}"
        ) from error


def open_datasets(config: RunConfig, splits: Sequence[str], group: ProcessGroup) -> list[Dataset]:
    """Open splits of the data, rank 0 before the others: it may have to convert files first."""
    if not group.is_main:
        group.barrier()
    opened = [factory.open_dataset(config.data, split) for split in splits]
    if group.is_main and (pack := opened[0].pack) is not None:
        verify(pack.path)
    if group.is_main:
        group.barrier()
    return opened
