"""Training and testing, from top to bottom; the same for one process and for many.

Whatever is drawn for a step (order, poses, augmentations, dropout) is a function of the seed, the epoch and the step.
So a run that was stopped goes on as if it had not been, and the number of processes does not change what is seen.
"""

import copy
import os
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .._files import first_line
from ..data import DataError, Dataset
from ..data.pack import verify
from ..data.seeding import derive_seed
from ..models import Model, store
from ..nn.extremes import RangeError
from ..tasks import Counts, Task, add
from ..tasks.task import fixed, real
from ..typing import Rotations
from . import checkpoint, optimize, sets, signals
from .limits import check
from .log import METRICS, Log, read_metrics, restore_metrics
from .run import CONFIG, TrainingError, alone, create, read_settings, write_settings, writing
from .settings import Settings
from .world import World


class StoppedError(TrainingError):
    """A signal came, and the checkpoint is written."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


@dataclass
class Progress:
    """How far a run is: epochs done, steps done of this one, and what these have shown so far."""

    epoch: int = 0
    step: int = 0
    best: float = -1.0
    best_epoch: int = 0
    skipped: int = 0
    learned: int = 0
    loss: float = 0.0
    counts: Counts | None = None
    seconds: float = 0.0


def fit(settings: Settings, folder: Path, world: World | None = None, *, resume: bool = False) -> Progress:
    """Train a network, or go on with it, in the folder of a run; the test set is not touched.

    The folder gets `config.json`, `metrics.jsonl`, `curve.png`, the checkpoints `last/` and `best/`: that of the epoch
    which was best on the validation set. A run that was stopped before its first checkpoint is resumed at epoch 0.
    """
    world = world or World()
    recipe, machine = settings.recipe, settings.machine
    check(settings, world.size)
    if machine.threads is not None:
        torch.set_num_threads(machine.threads)
    # Before the processes have met: after that, the first one writes.
    begun = checkpoint.begun(folder / "last") or not os.path.exists(folder / CONFIG) or bool(read_metrics(folder))
    train, val = _open(settings, ("train", "val"), world)
    steps = len(train) // recipe.batch_size
    if steps == 0:
        raise TrainingError(f"a --batch-size of {recipe.batch_size} is more than the {len(train)} training clouds")
    with alone(folder) if world.writes else nullcontext():
        return _fit(settings, folder, world, train, val, resume=resume, begun=begun)


def _fit(
    settings: Settings, folder: Path, world: World, train: Dataset, val: Dataset, *, resume: bool, begun: bool
) -> Progress:
    recipe, machine, steps = settings.recipe, settings.machine, len(train) // settings.recipe.batch_size
    task, model = sets.make_task(settings, train), sets.make_network(settings, train).to(world.device)
    averaged = copy.deepcopy(model) if recipe.ema else None
    optimizer, progress = optimize.optimizer(model, recipe), Progress()
    history: list[dict[str, Any]] = []
    meaning = sets.meaning(settings, task, train)
    lost: list[int] = []
    if resume and begun:
        progress, history = _restore(folder, model, averaged, optimizer, meaning)
        if progress.epoch > recipe.epochs:
            raise TrainingError(f"{folder} has {progress.epoch} epochs already: --epochs takes as many or more")
        if progress.counts is not None:
            progress.counts = {name: x.to(world.device) for name, x in progress.counts.items()}
        if world.writes:
            with writing(folder):
                lost = restore_metrics(folder, history)
    if world.writes:
        with writing(folder):
            if not resume:
                create(folder, settings)
            elif read_settings(folder) != settings:
                write_settings(folder, settings)
    log = Log(folder, epochs=recipe.epochs, quiet=not world.writes)
    if lost:
        log.say(f"{folder / METRICS} had lost epochs {', '.join(map(str, lost))}: restored")
    forward = torch.compile(model) if machine.compile else model
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        if world.writes:
            with writing(folder):
                kept = {"averaged": averaged.state_dict() if averaged is not None else None}
                known = {"progress": asdict(progress), "metrics": history}
                state = {**known, "optimizer": optimizer.state_dict(), **kept}
                checkpoint.write(folder / "last", model, meaning, state)
        saved = time.monotonic()

    if not (resume and begun):
        save()
    try:
        with signals.noted() as received:
            while progress.epoch < recipe.epochs:
                epoch = progress.epoch
                order = torch.randperm(len(train), generator=_generator(machine.seed, "order", epoch))
                model.train()
                while progress.step < steps:
                    started, step = time.monotonic(), progress.step
                    optimize.set_lr(optimizer, optimize.learning_rate(recipe, epoch + step / steps))
                    indices = world.share(order[step * recipe.batch_size : (step + 1) * recipe.batch_size])
                    torch.manual_seed(derive_seed(machine.seed, "step", epoch, step, world.rank))
                    _learn(forward, model, task, train, indices, settings, optimizer, progress, world, folder)
                    if averaged is not None:
                        optimize.average(averaged, model, recipe.ema, epoch * steps + step)
                    progress.step += 1
                    progress.seconds += time.monotonic() - started
                    log.step(epoch, progress.step, steps, _so_far(task, progress), recipe.batch_size)
                    # All stop together, or those that go on would wait for ever for those that do not.
                    if world.sum(torch.tensor(len(received))) > 0:
                        save()
                        raise _stopped(received, folder)
                    if time.monotonic() - saved > 60 * machine.checkpoint_minutes:
                        save()
                tested = model if averaged is None else averaged
                kind = settings.protocol.train_rotations
                try:
                    shown = report(task, measure(tested, task, val, settings, kind, world))
                except RangeError as error:
                    why = f"the training has diverged in epoch {epoch + 1}, lower --lr: {error}"
                    raise TrainingError(why) from error
                seconds = progress.seconds
                line = {
                    "epoch": epoch + 1,
                    "train_rotations": kind,
                    "val_rotations": kind,
                    "points": sets.points_at(settings, epoch),
                    "lr": optimize.learning_rate(recipe, epoch + (steps - 1) / steps),
                    "train": _so_far(task, progress),
                    "val": shown,
                    "skipped": progress.skipped,
                    "time": {"seconds": seconds, "clouds_per_second": steps * recipe.batch_size / max(seconds, 1e-9)},
                }
                if shown[task.metric] > progress.best:
                    progress.best, progress.best_epoch = shown[task.metric], epoch + 1
                    if world.writes:
                        with writing(folder):
                            checkpoint.write(
                                folder / store.BEST, tested, replace(meaning, threshold=shown.get("threshold"))
                            )
                progress = Progress(epoch + 1, 0, progress.best, progress.best_epoch, progress.skipped)
                history.append(line)
                with writing(folder):
                    log.epoch(line, steps, task.metric)
                save()
    finally:
        log.close(task.metric)
    world.wait()
    return progress


def _learn(
    forward: Any,
    model: Model,
    task: Task,
    data: Dataset,
    indices: Tensor,
    settings: Settings,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    world: World,
    folder: Path,
) -> None:
    """One step of the optimizer, on this process's share of a batch."""
    recipe, machine = settings.recipe, settings.machine
    buffers = [b.clone() for b in model.buffers()] if machine.skip_bad_batches else []
    optimizer.zero_grad()
    losses, counts, cloud = [], None, None
    for part in indices.tensor_split(recipe.accumulate):
        cloud = sets.training_batch(data, part, settings, progress.epoch).to(world.device)
        try:
            with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=machine.bf16):
                logits = task.logits(forward, cloud)
        except RangeError:  # batch statistics beyond float32, which all processes share
            losses.append(torch.tensor(torch.nan, device=world.device))
            break
        loss = task.loss(logits, cloud, recipe.label_smoothing)
        (loss / recipe.accumulate).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        counts = add(counts, task.count(logits.detach(), cloud))
    mean = torch.stack(losses).double().mean()
    bad = world.sum((~mean.isfinite()).long()) > 0
    if not bad:
        world.average_gradients(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_grad_norm or torch.inf)
        bad = world.sum((~norm.isfinite()).long()) > 0
    if bad:
        if not machine.skip_bad_batches:
            assert cloud is not None
            kept = {"points": cloud.points, "indices": indices}
            kept |= {
                name: x for name in ("label", "parts", "queries", "occupied") if (x := getattr(cloud, name)) is not None
            }
            file = folder / f"bad-batch-{world.rank}.safetensors"
            with writing(folder):
                save_file({name: x.contiguous() for name, x in kept.items()}, file)
            raise TrainingError(
                f"the loss or its gradient is not finite in step {progress.step + 1} of epoch {progress.epoch + 1};"
                f" the batch is in {file}, and --skip-bad-batches would leave it out"
            )
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.data.copy_(before)  # statistics may have learned from the bad batch
        progress.skipped += 1
        return
    optimizer.step()
    progress.loss += (world.sum(mean) / world.size).item()
    progress.learned += 1
    assert counts is not None
    progress.counts = add(progress.counts, {name: world.sum(x) for name, x in counts.items()})


@torch.no_grad()
def measure(
    model: nn.Module,
    task: Task,
    data: Dataset,
    settings: Settings,
    kind: Rotations,
    world: World | None = None,
    *,
    trial: int = 0,
) -> Counts:
    """The counts of a whole data set, every cloud once, in its fixed pose of this `trial`.

    Batches are the same whatever the number of processes, which take them in turn.
    """
    world = world or World()
    model.eval()
    batches = torch.split(torch.arange(len(data)), settings.recipe.batch_size)
    counts: Counts | None = None
    # A process without a batch counts nothing of the first one, so that there is something to add.
    for number in range(world.rank, max(len(batches), world.rank + 1), world.size):
        indices = batches[number] if number < len(batches) else batches[0]
        cloud = sets.posed_batch(data, indices, settings.clouds, kind, settings.machine.seed, trial)
        cloud = cloud.to(world.device)
        with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=settings.machine.bf16):
            logits = task.logits(model, cloud)
        if number >= len(batches):
            logits, cloud = logits[:0], cloud.map(lambda x: x[:0])
        clouds = torch.tensor(len(cloud.points), device=world.device)
        loss = fixed(task.loss(logits, cloud)) * clouds if len(cloud.points) else clouds
        counts = add(counts, task.count(logits, cloud) | {"loss": loss, "clouds": clouds})
    assert counts is not None
    return {name: world.sum(x) for name, x in counts.items()}


def report(task: Task, counts: Counts) -> dict[str, float]:
    """The loss and what the task reports."""
    return {"loss": (real(counts["loss"]) / counts["clouds"]).item(), **task.report(counts)}


def evaluate(
    folder: Path, rotations: Sequence[Rotations], trials: int = 1, world: World | None = None
) -> tuple[Task, dict[Rotations, list[Counts]]]:
    """Test the best model of a run on the test set, in `trials` poses of each cloud: the task, the counts of each."""
    world = world or World()
    settings = read_settings(folder)
    if settings.machine.threads is not None:
        torch.set_num_threads(settings.machine.threads)
    model = checkpoint.load(folder / store.BEST).to(world.device)
    (data,) = _open(settings, ("test",), world)
    known: Any = model.meaning
    if settings.task == "reconstruction" and known.threshold is None:
        raise TrainingError(f"{folder / store.BEST} has no threshold, and the test set must not choose it")
    task = sets.make_task(settings, data, known.threshold)
    sets.check_data(model, sets.meaning(settings, task, data), folder / store.BEST)
    try:
        return task, {
            kind: [measure(model, task, data, settings, kind, world, trial=trial) for trial in range(trials)]
            for kind in rotations
        }
    except DataError:
        raise
    except ValueError as error:  # more neighbours than points, say
        raise TrainingError(
            f"{folder / store.BEST} does not take the clouds of its run: {first_line(error)}"
        ) from error


def _so_far(task: Task, progress: Progress) -> dict[str, float]:
    """Loss and metrics of the epoch up to here; not a number if there was nothing to learn from."""
    if progress.counts is None:
        return {"loss": float("nan"), task.metric: float("nan")}
    return {"loss": progress.loss / progress.learned, **task.report(progress.counts)}


def _open(settings: Settings, splits: Sequence[str], world: World) -> list[Dataset]:
    """Open data sets, the first process before the others: it may have files to make."""
    if not world.writes:
        world.wait()
    opened = [sets.open_set(settings.clouds, split) for split in splits]
    if world.writes and (pack := opened[0].pack) is not None:
        verify(pack.path)  # a bit that changed on the disk would be learned
    if world.writes:
        world.wait()
    return opened


def _restore(
    folder: Path, model: Model, averaged: nn.Module | None, optimizer: torch.optim.Optimizer, meaning: store.Meaning
) -> tuple[Progress, list[dict[str, Any]]]:
    """Load the last checkpoint of a run: how far it is, and its metrics so far."""
    found, state = checkpoint.read(folder / "last")
    loaded = store.load(found)
    sets.check_data(loaded, meaning, found)
    if different := store.difference(model, loaded):
        raise checkpoint.CheckpointError(f"{found} does not fit {folder / CONFIG}: {different}")
    try:
        model.load_state_dict(loaded.state_dict())
        optimizer.load_state_dict(state["optimizer"])
        if averaged is not None:
            averaged.load_state_dict(state["averaged"])
        progress, history = Progress(**state["progress"]), list(state["metrics"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise checkpoint.CheckpointError(f"{found} does not fit {folder / CONFIG}: {first_line(error)}") from error
    if progress.best_epoch and not checkpoint.finish(folder / store.BEST):
        warnings.warn(
            f"{folder / store.BEST} is damaged: the best model is now that of the epochs to come", stacklevel=2
        )
        progress.best, progress.best_epoch = -1.0, 0
    return progress, history


def _generator(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(*parts))


def _stopped(received: list[int], folder: Path) -> StoppedError:
    number = received[0] if received else signal.SIGTERM
    name = signal.Signals(number).name
    return StoppedError(f"stopped by {name}; go on with: vn train --resume {folder}", number)
