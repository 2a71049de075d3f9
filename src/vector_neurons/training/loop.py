"""The training loop, from top to bottom; the same for one process and for many.

All randomness of a step (order, rotations, augmentations, dropout) is seeded by (seed, epoch, step). A resumed run is
therefore bit-identical to an uninterrupted one, and the number of processes does not change the clouds of a step.
"""

import copy
import os
import signal
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .._files import first_line
from ..data import Cloud, Dataset
from ..data.seeding import derive_seed
from ..models import store
from ..nn._range import RangeError
from ..tasks import Counts, add
from . import batches, checkpoint, evaluation, factory, optimize, signals
from .config import RunConfig
from .distributed import ProcessGroup
from .errors import ResumeError, StoppedError, TrainingError
from .log import METRICS, Log, read_metrics, restore_metrics
from .rules import check
from .run import CONFIG, create, exclusive, read_config, use_copy, write_config, write_errors
from .user_network import is_user_network

LAST = "last"  # the folder of the last checkpoint in that of a run


@dataclass
class Progress:
    """How far a run is: epochs done, steps done of the current one, and sums over these steps."""

    epoch: int = 0
    step: int = 0
    best: float = -1.0  # the metric on the validation set
    best_epoch: int = 0
    skipped: int = 0  # bad batches
    learned: int = 0  # steps of this epoch that were not skipped
    loss: float = 0.0
    counts: Counts | None = None
    seconds: float = 0.0


def fit(config: RunConfig, folder: Path, group: ProcessGroup | None = None, *, resume: bool = False) -> Progress:
    """Train a network in the folder of a run, or resume a run; the test set is not used.

    The folder gets `config.json`, `metrics.jsonl`, `curve.png` and the checkpoints `last/` and `best/`, the latter that
    of the epoch with the best metric on the validation set. A run that was stopped before its first checkpoint starts
    again at epoch 0.
    """
    group = group or ProcessGroup()
    config = use_copy(config, folder) if resume else config
    check(config, group.size)
    if config.runtime.threads is not None:
        torch.set_num_threads(config.runtime.threads)
    # Before the first barrier: after it, rank 0 writes.
    started = checkpoint.was_written(folder / LAST) or not os.path.exists(folder / CONFIG) or bool(read_metrics(folder))
    train, val = evaluation.open_datasets(config, ("train", "val"), group)
    if len(train) < config.recipe.batch_size:
        raise TrainingError(
            f"a --batch-size of {config.recipe.batch_size} is more than the {len(train)} training clouds: "
            f"pass --batch-size {len(train)} or less"
        )
    with exclusive(folder) if group.is_main else nullcontext():
        trainer = Trainer(config, folder, group, train, val)
        if resume and started:
            trainer.restore()
        elif config.recipe.init is not None:
            trainer.initialize(config.recipe.init)
        if not resume:
            trainer.check_forward()  # before the folder holds a run that could not be started again
        if group.is_main:
            with write_errors(folder):
                if not resume:
                    create(folder, config)
                elif read_config(folder) != config:
                    write_config(folder, config)
        return trainer.run(restored=resume and started)


class Trainer:
    """A run in training: the network, its optimizer and its progress; `run` trains to the last epoch."""

    def __init__(self, config: RunConfig, folder: Path, group: ProcessGroup, train: Dataset, val: Dataset) -> None:
        self.config, self.folder, self.group, self.train, self.val = config, folder, group, train, val
        self.steps = len(train) // config.recipe.batch_size
        self.task = factory.build_task(config, train)
        self.model: Any = factory.build_network(config, train).to(group.device)
        self.averaged: Any = copy.deepcopy(self.model) if config.recipe.ema else None
        self.optimizer = optimize.optimizer(self.model, config.recipe)
        self.forward: Any = torch.compile(self.model) if config.runtime.compile else self.model
        self.metadata = factory.metadata(config, self.task, train)
        self.progress = Progress()
        self.history: list[dict[str, Any]] = []  # the metrics of all epochs so far
        self.lost: list[int] = []  # epochs that were missing in the file of metrics
        self.saved = time.monotonic()

    def check_forward(self) -> None:
        """Apply a network of the user's own to two clouds, to report its mistakes before the first step."""
        if is_user_network(self.config.network.model):
            cloud = batches.training_batch(self.train, torch.arange(2), self.config, 0).to(self.group.device)
            self.model.eval()
            with torch.no_grad():
                evaluation.compute_logits(self.model, self.task, cloud, self.config)

    def run(self, *, restored: bool = False) -> Progress:
        """Train until the last epoch, a signal, or an error."""
        config, folder, group = self.config, self.folder, self.group
        self.log = Log(folder, epochs=config.recipe.epochs, quiet=not group.is_main)
        if self.lost:
            self.log.print(f"{folder / METRICS} had lost epochs {', '.join(map(str, self.lost))}: restored")
        if left_out := len(self.train) % config.recipe.batch_size:
            self.log.print(
                f"each epoch leaves out {left_out} of {len(self.train)} training clouds, drawn anew each time: "
                f"--batch-size {config.recipe.batch_size} does not divide them"
            )
        if not restored:
            self.save()
        try:
            with signals.recorded() as received:
                while self.progress.epoch < config.recipe.epochs:
                    self.train_epoch(received)
                    self.finish_epoch()
        finally:
            self.log.close(self.task.metric)
        group.barrier()
        return self.progress

    def train_epoch(self, received: list[int]) -> None:
        """Train the steps of the current epoch that are not done yet; a received signal stops after a step."""
        recipe, runtime, progress = self.config.recipe, self.config.runtime, self.progress
        epoch = progress.epoch
        order = batches.training_order(self.train.labels, recipe.balance, _generator(runtime.seed, "order", epoch))
        self.model.train()
        if optimize.norms_are_frozen(recipe, epoch):
            first = progress.step == 0 and not optimize.norms_are_frozen(recipe, epoch - 1)
            optimize.freeze_norms(self.model, self.averaged if first else None)
        while progress.step < self.steps:
            started, step = time.monotonic(), progress.step
            optimize.set_lr(self.optimizer, optimize.learning_rate(recipe, epoch + step / self.steps))
            indices = self.group.shard(order[step * recipe.batch_size : (step + 1) * recipe.batch_size])
            torch.manual_seed(derive_seed(runtime.seed, "step", epoch, step, self.group.rank))
            self.train_step(indices)
            if self.averaged is not None:
                optimize.average(self.averaged, self.model, recipe.ema, epoch * self.steps + step)
            progress.step += 1
            progress.seconds += time.monotonic() - started
            self.log.step(epoch, progress.step, self.steps, self.running_metrics(), recipe.batch_size)
            # All processes stop together: one that continued would wait forever for those that stopped.
            if self.group.sum(torch.tensor(len(received))) > 0:
                self.save()
                raise _stopped(received, self.folder)
            if time.monotonic() - self.saved > 60 * runtime.checkpoint_minutes:
                self.save()

    def train_step(self, indices: Tensor) -> None:
        """One step of the optimizer, on this process's shard of a batch."""
        recipe, runtime, device = self.config.recipe, self.config.runtime, self.group.device
        buffers = [b.clone() for b in self.model.buffers()] if runtime.skip_bad_batches else []
        self.optimizer.zero_grad()
        losses, counts, cloud = [], None, None
        for part in indices.tensor_split(recipe.accumulate):
            at = self.progress.epoch, self.progress.step
            cloud = batches.training_batch(self.train, part, self.config, *at).to(device)
            try:
                with torch.autocast(device.type, dtype=torch.bfloat16, enabled=runtime.bf16):
                    logits = evaluation.compute_logits(self.forward, self.task, cloud, self.config)
            except RangeError:  # batch statistics beyond float32, which all processes share
                losses.append(torch.tensor(torch.nan, device=device))
                break
            loss = self.task.loss(logits, cloud, recipe.label_smoothing)
            (loss / recipe.accumulate).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            counts = add(counts, self.task.count(logits.detach(), cloud))
        mean = torch.stack(losses).double().mean()
        bad = self.group.sum((~mean.isfinite()).long()) > 0
        if not bad:
            self.group.average_gradients(self.model)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip_grad_norm or torch.inf)
            bad = self.group.sum((~norm.isfinite()).long()) > 0
        if bad:
            assert cloud is not None
            self.skip_step(cloud, indices, buffers)
            return
        self.optimizer.step()
        self.progress.loss += (self.group.sum(mean) / self.group.size).item()
        self.progress.learned += 1
        assert counts is not None
        self.progress.counts = add(self.progress.counts, {name: self.group.sum(x) for name, x in counts.items()})

    def skip_step(self, cloud: Cloud, indices: Tensor, buffers: list[Tensor]) -> None:
        """Skip a batch whose loss or gradient is not finite, or keep it in a file and stop."""
        progress = self.progress
        if not self.config.runtime.skip_bad_batches:
            kept = {"points": cloud.points, "indices": indices % len(self.train)}
            kept |= {
                name: x for name in ("label", "parts", "queries", "occupied") if (x := getattr(cloud, name)) is not None
            }
            file = self.folder / f"bad-batch-{self.group.rank}.safetensors"
            with write_errors(self.folder):
                save_file({name: x.contiguous() for name, x in kept.items()}, file)
            raise TrainingError(
                f"the loss or its gradient is not finite in step {progress.step + 1} of epoch {progress.epoch + 1};"
                f" the batch is in {file}, and --skip-bad-batches would leave it out"
            )
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.data.copy_(before)  # batch statistics may include the bad batch
        progress.skipped += 1

    def finish_epoch(self) -> None:
        """Validate, keep the model if it is the best so far, log, and save."""
        recipe, progress, kind = self.config.recipe, self.progress, self.config.protocol.train_rotations
        epoch, seconds = progress.epoch, progress.seconds
        validated = self.model if self.averaged is None else self.averaged
        points = batches.points_at(self.config, epoch)
        if points != batches.points_at(self.config, epoch - 1):
            progress.best = -1.0  # scores at fewer points do not compare, and the last ones count
        config = replace(self.config, data=replace(self.config.data, points=points))
        # A threshold that suits whole clouds leaves the hidden side of others open: choose it on both.
        occlude = recipe.occlude if config.task == "reconstruction" else 0.0
        try:
            counts = evaluation.measure(validated, self.task, self.val, config, kind, self.group, occlude=occlude)
            val = evaluation.compute_metrics(self.task, counts)
        except RangeError as error:
            raise TrainingError(f"the training has diverged in epoch {epoch + 1}, lower --lr: {error}") from error
        line = {
            "epoch": epoch + 1,
            "train_rotations": kind,
            "val_rotations": kind,
            "points": points,
            "lr": optimize.learning_rate(recipe, epoch + (self.steps - 1) / self.steps),
            "train": self.running_metrics(),
            "val": val,
            "skipped": progress.skipped,
            "time": {"seconds": seconds, "clouds_per_second": self.steps * recipe.batch_size / max(seconds, 1e-9)},
        }
        if val[self.task.metric] > progress.best:
            progress.best, progress.best_epoch = val[self.task.metric], epoch + 1
            if self.group.is_main:
                with write_errors(self.folder):
                    metadata = replace(self.metadata, threshold=val.get("threshold"))
                    checkpoint.write(self.folder / store.BEST, validated, metadata)
        self.progress = Progress(epoch + 1, 0, progress.best, progress.best_epoch, progress.skipped)
        self.history.append(line)
        with write_errors(self.folder):
            self.log.epoch(line, self.steps, self.task.metric)
        self.save()

    def running_metrics(self) -> dict[str, float]:
        """Loss and metrics of the current epoch so far; NaN if every step was skipped."""
        if self.progress.counts is None:
            return {"loss": float("nan"), self.task.metric: float("nan")}
        return {"loss": self.progress.loss / self.progress.learned, **self.task.report(self.progress.counts)}

    def save(self) -> None:
        """Write the last checkpoint."""
        if self.group.is_main:
            with write_errors(self.folder):
                state = {
                    "progress": asdict(self.progress),
                    "metrics": self.history,
                    "optimizer": self.optimizer.state_dict(),
                    "averaged": None if self.averaged is None else self.averaged.state_dict(),
                }
                checkpoint.write(self.folder / LAST, self.model, self.metadata, state)
        self.saved = time.monotonic()

    def initialize(self, source: str) -> None:
        """Start from the weights of another model, where names and shapes fit."""
        try:
            packaged = source in store.pretrained_names()
            found = store.pretrained(source) if packaged else store.load(source, factory.user_class(self.config))
        except store.StoreError as error:
            raise TrainingError(f"--init: {error}") from error
        own, given = self.model.state_dict(), found.state_dict()
        fitting = {name: x for name, x in given.items() if name in own and x.shape == own[name].shape}
        if not any(x.ndim > 1 for x in fitting.values()):  # a bias of the head fits any network
            raise TrainingError(f"--init {source} is a {type(found).__name__} none of whose weights fit this network")
        for model in (self.model, self.averaged):
            if model is not None:
                model.load_state_dict(own | fitting)
        if self.group.is_main:
            new = sorted({name.rpartition(".")[0] for name in own.keys() - fitting.keys()})
            print(f"starts from {source}" + (f"; new are {', '.join(new[:8])}" if new else ""))

    def restore(self) -> None:
        """Load the last checkpoint of the run: weights, optimizer, progress and metrics."""
        folder, epochs = self.folder, self.config.recipe.epochs
        found, state = checkpoint.read(folder / LAST)
        loaded = store.load(found, factory.user_class(self.config))
        factory.check_data(loaded, self.metadata, found)
        if different := store.difference(self.model, loaded):
            raise ResumeError(f"{found} does not fit {folder / CONFIG}: {different}")
        try:
            self.model.load_state_dict(loaded.state_dict())
            self.optimizer.load_state_dict(state["optimizer"])
            if self.averaged is not None:
                self.averaged.load_state_dict(state["averaged"])
            progress, self.history = Progress(**state["progress"]), list(state["metrics"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ResumeError(f"{found} does not fit {folder / CONFIG}: {first_line(error)}") from error
        if progress.best_epoch and not checkpoint.finish_rename(folder / store.BEST):
            warnings.warn(
                f"{folder / store.BEST} is damaged: the best model is now that of the epochs to come", stacklevel=2
            )
            progress.best, progress.best_epoch = -1.0, 0
        if progress.epoch > epochs:
            raise TrainingError(f"{folder} has {progress.epoch} epochs already: --epochs takes as many or more")
        if progress.counts is not None:
            progress.counts = {name: x.to(self.group.device) for name, x in progress.counts.items()}
        self.progress = progress
        if self.group.is_main:
            with write_errors(folder):
                self.lost = restore_metrics(folder, self.history)


def _generator(*parts: object) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(*parts))


def _stopped(received: list[int], folder: Path) -> StoppedError:
    number = received[0] if received else signal.SIGTERM
    name = signal.Signals(number).name
    return StoppedError(f"stopped by {name}; resume with: vn train --resume {folder}", number)
