"""`vn train classification --data shapes --neurons vector`: train a network, or go on with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, get_args

import tyro

from ..data import DataError
from ..models.store import StoreError
from ..training import (
    CheckpointError,
    Clouds,
    Machine,
    Network,
    Protocol,
    Recipe,
    Settings,
    SettingsError,
    StoppedError,
    TrainingError,
    check,
    find_run,
    fit,
    joined,
    read_settings,
    results,
    world,
)
from ..training.presets import presets
from ..training.settings import TaskName
from ..training.settings import default as starting_point
from . import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Train a network: vn train classification --data shapes --model dgcnn --neurons vector --train-rotations z

    The task, classification, segmentation or reconstruction, comes first; or --resume RUN, to go on with a run as if it
    had not stopped; --threads and --device may be others then, and --epochs more. A run is a folder: settings, metrics,
    curve, checkpoints. The best epoch on the validation set is tested at the end. Many processes:
    torchrun --nproc-per-node 2 -m vector_neurons train ...
    """

    preset: str | None = None
    """settings of a cell of the paper's tables, such as fast-vn-dgcnn-z or paper-dgcnn-SO3; flags change them"""
    out: Path | None = None
    """folder of the run, by default runs/NAME"""
    resume: Path | None = None
    """folder of a run to go on with; one that is finished takes more --epochs"""
    clouds: Clouds = field(default_factory=Clouds)
    network: Network = field(default_factory=Network)
    recipe: Recipe = field(default_factory=Recipe)
    protocol: Protocol = field(default_factory=Protocol)
    machine: Machine = field(default_factory=Machine)


def read(arguments: Sequence[str]) -> int:
    """Read the flags, with the defaults of the preset they name, and train."""
    task, resume, name = _task(arguments), _value(arguments, "--resume"), _value(arguments, "--preset")
    flags, chosen = arguments[1:] if task else arguments, Settings()
    if resume is not None:
        with one_line():
            resume = str(find_run(Path(resume)))
            chosen = read_settings(Path(resume))
    elif task:
        chosen = starting_point(task) if name is None else _choose(name, presets(task))
    groups = (chosen.clouds, chosen.network, chosen.recipe, chosen.protocol, chosen.machine)
    default = Options(name, None, None if resume is None else Path(resume), *groups)
    options = tyro.cli(Options, args=flags, prog="vn train", default=default, config=(tyro.conf.OmitArgPrefixes,))
    settings = Settings(
        task or chosen.task, options.clouds, options.network, options.recipe, options.protocol, options.machine
    )
    if resume is not None:
        recipe = replace(settings.recipe, epochs=chosen.recipe.epochs)
        machine = replace(settings.machine, threads=chosen.machine.threads, device=chosen.machine.device)
        if task or replace(options, recipe=recipe, machine=machine, resume=Path(resume)) != default:
            raise UserError(
                "--resume takes its settings from the run: only --threads, --device and --epochs go with it"
            )
        return run(settings, Path(resume), resume=True)
    if task is None:
        raise UserError(f"train what? vn train {' or '.join(get_args(TaskName))} [flags], or vn train --resume RUN")
    if settings.clouds.folder is not None:  # the run may be tested from another folder
        settings = replace(
            settings, clouds=replace(settings.clouds, folder=str(Path(settings.clouds.folder).resolve()))
        )
    return run(settings, options.out or Path("runs") / (options.preset or _name(settings)))


def run(settings: Settings, folder: Path, *, resume: bool = False) -> int:
    """Train, test, and print the result."""
    with one_line():
        check(settings, world.expected())
        with joined(settings.machine.device) as here:
            progress = fit(settings, folder, here, resume=resume)
            tested = results.measure(folder, settings.protocol.test_rotations, world=here)
        if here.writes:
            print(f"{folder}: epoch {progress.best_epoch} was best on the validation set; the test set:")
            print(results.lines(tested.reports))
            results.add(folder, tested.reports)
    return 0


@contextmanager
def one_line() -> Iterator[None]:
    """Turn errors that explain themselves into one line; a run stopped by a signal exits as shells expect."""
    try:
        yield
    except StoppedError as error:
        raise UserError(str(error), code=128 + error.number) from error
    except (TrainingError, SettingsError, CheckpointError, DataError, StoreError, ImportError) as error:
        raise UserError(str(error)) from error


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, before all flags are read."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    return words[words.index(flag) + 1] if flag in words[:-1] else None


def _task(arguments: Sequence[str]) -> TaskName | None:
    if not arguments or arguments[0].startswith("-"):
        return None
    tasks: dict[str, TaskName] = {name: name for name in get_args(TaskName)}
    return tasks[_choose(arguments[0], {name: name for name in tasks})]


def _choose(name: str, among: dict[str, T]) -> T:
    if name not in among:
        close = get_close_matches(name, among, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(among)}"
        raise UserError(f"there is no {name!r}; {hint}")
    return among[name]


def _name(settings: Settings) -> str:
    network = settings.network
    words = (settings.task, settings.clouds.data, network.model, network.neurons, settings.protocol.train_rotations)
    return "-".join(words)
