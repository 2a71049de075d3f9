"""`vn train classification --data shapes --neurons vector`: train a network, or resume a run."""

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
    ConfigError,
    DataConfig,
    NetworkConfig,
    ProtocolConfig,
    RecipeConfig,
    ResumeError,
    RunConfig,
    RuntimeConfig,
    StoppedError,
    TrainingError,
    check,
    distributed,
    find_run,
    fit,
    process_group,
    read_config,
    results,
)
from ..training.config import TaskName, default_config
from ..training.presets import presets
from . import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Train a network: vn train classification --data shapes --model dgcnn --neurons vector --train-rotations z

    The first argument is the task: classification, segmentation or reconstruction. Or --resume RUN resumes a run,
    bit-identical to an uninterrupted one; --threads and --device may change then, and --epochs grow. A run is a folder:
    configuration, metrics, curve, checkpoints. The best epoch on the validation set is tested at the end. A network of
    your own: --model my_file.py:MyNet EXECUTES the file, and --resume the copy of it in the run. Many processes:
    torchrun --nproc-per-node 2 -m vector_neurons train ...
    """

    preset: str | None = None
    """configuration of a cell of the paper's tables, as fast-vn-dgcnn-z or paper-dgcnn-SO3; other flags change it"""
    out: Path | None = None
    """folder of the run, by default runs/NAME"""
    resume: Path | None = None
    """folder of the run to resume; a finished one takes more --epochs"""
    test: bool = True
    """test the best model at the end; --no-test for experiments, which should not see the test set"""
    data: DataConfig = field(default_factory=DataConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    protocol: ProtocolConfig = field(default_factory=ProtocolConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)


def read(arguments: Sequence[str]) -> int:
    """Parse the flags, with the defaults of the preset or the run they name, and train."""
    task, resume, name = _task(arguments), _value(arguments, "--resume"), _value(arguments, "--preset")
    flags, chosen = arguments[1:] if task else arguments, RunConfig()
    if resume is not None:
        with one_line():
            resume = str(find_run(Path(resume)))
            chosen = read_config(Path(resume))
    elif task:
        chosen = default_config(task) if name is None else _choose(name, presets(task))
    groups = (chosen.data, chosen.network, chosen.recipe, chosen.protocol, chosen.runtime)
    default = Options(name, None, None if resume is None else Path(resume), True, *groups)
    if any(flag.partition("=")[0] == "--learning-rate" for flag in flags):
        raise UserError("the flag for the learning rate is --lr")
    prog = "vn train" if resume is not None else f"vn train {task or 'TASK'}"
    options = tyro.cli(Options, args=flags, prog=prog, default=default, config=(tyro.conf.OmitArgPrefixes,))
    config = RunConfig(
        task or chosen.task, options.data, options.network, options.recipe, options.protocol, options.runtime
    )
    if resume is not None:
        recipe = replace(config.recipe, epochs=chosen.recipe.epochs)
        runtime = replace(config.runtime, threads=chosen.runtime.threads, device=chosen.runtime.device)
        if task or replace(options, test=True, recipe=recipe, runtime=runtime, resume=Path(resume)) != default:
            raise UserError(
                "--resume takes its configuration from the run: only --threads, --device and --epochs can change"
            )
        return run(config, Path(resume), resume=True, test=options.test)
    if task is None:
        raise UserError(f"train what? vn train {' or '.join(get_args(TaskName))} [flags], or vn train --resume RUN")
    if config.data.folder is not None:  # the run may be tested from another folder
        config = replace(config, data=replace(config.data, folder=str(Path(config.data.folder).resolve())))
    return run(config, options.out or Path("runs") / (options.preset or _name(config)), test=options.test)


def run(config: RunConfig, folder: Path, *, resume: bool = False, test: bool = True) -> int:
    """Train, test, and print the result."""
    with one_line():
        check(config, distributed.world_size())
        with process_group(config.runtime.device) as group:
            progress = fit(config, folder, group, resume=resume)
            tested = results.measure(folder, config.protocol.test_rotations, group=group) if test else None
        if group.is_main:
            best = f"{folder}: epoch {progress.best_epoch} was best on the validation set"
            print(best if tested is None else f"{best}; the test set:")
            if tested is not None:
                print(results.format_results(tested.reports))
                results.add(folder, tested.reports)
    return 0


@contextmanager
def one_line() -> Iterator[None]:
    """Turn expected errors into one line; a run that a signal stopped exits with the code that shells expect."""
    try:
        yield
    except StoppedError as error:
        raise UserError(str(error), code=128 + error.number) from error
    except (TrainingError, ConfigError, ResumeError, DataError, StoreError, ImportError) as error:
        raise UserError(str(error)) from error


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag, before all flags are parsed."""
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
        raise UserError(f"unknown name {name!r}; {hint}")
    return among[name]


def _name(config: RunConfig) -> str:
    network = config.network
    model = network.model.rpartition(":")[2]  # of a user's own network, its class
    return "-".join((config.task, config.data.data, model, network.neurons, config.protocol.train_rotations))
