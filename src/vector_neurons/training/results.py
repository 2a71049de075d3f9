"""Results of a run on the test set, in its `test.json`, and tables of them for the console."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple, get_args

from .._files import FileError, locked, read_json, write_file
from ..tasks import Counts, Task
from ..typing import Rotations
from . import evaluation
from .distributed import ProcessGroup
from .errors import TrainingError
from .evaluation import compute_metrics
from .run import LOCK, write_errors

TEST = "test.json"
Results = dict[Rotations, list[dict[str, float]]]  # for every kind of rotations one report for every trial


class EvaluationResult(NamedTuple):
    """Reports of a test, and the counts behind them."""

    reports: Results
    task: Task
    counts: dict[Rotations, list[Counts]]


def measure(
    folder: Path,
    rotations: Sequence[Rotations],
    trials: int = 1,
    group: ProcessGroup | None = None,
    *,
    save: bool = False,
) -> EvaluationResult:
    """Test the best model of a run; with `save`, add the reports to those in its folder."""
    if save:
        read(folder)  # a damaged file is reported before all the work
    task, counted = evaluation.evaluate(folder, rotations, trials, group)
    reports: Results = {kind: [compute_metrics(task, counts) for counts in every] for kind, every in counted.items()}
    if save and (group is None or group.is_main):
        add(folder, reports)
    return EvaluationResult(reports, task, counted)


def add(folder: Path, results: Results, name: str = TEST) -> None:
    """Add reports to those in a file of a run."""
    with write_errors(folder), locked(folder / f"{name}.{LOCK}"):
        write_file(folder / name, json.dumps(read(folder, name) | results, indent=2) + "\n")


def read(folder: Path, name: str = TEST) -> Results:
    """The results of a run so far."""
    path = folder / name
    if not path.exists():
        return {}
    try:
        results: Results = read_json(path)
    except FileError as error:
        raise TrainingError(f"{error}; move it away") from error
    if not isinstance(results, dict) or not all(map(_is_report, results.items())):
        raise TrainingError(f"{path} is damaged: it does not hold the results of a test; move it away")
    return results


def _is_report(item: tuple[object, object]) -> bool:
    kind, reports = item
    return (
        kind in get_args(Rotations)
        and isinstance(reports, list)
        and bool(reports)
        and all(
            isinstance(one, dict) and one and all(isinstance(x, int | float) for x in one.values()) for one in reports
        )
    )


def format_mean(reports: Sequence[dict[str, float]], name: str) -> str:
    """Mean ± standard deviation over the trials, or the number alone if there was one.

    >>> format_mean([{"accuracy": 80.0}, {"accuracy": 82.0}], "accuracy")
    '81.00 ± 1.41'
    """
    values = [report[name] for report in reports]
    digits = 4 if name.startswith("chamfer") else 2  # a length, not a percentage
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def format_results(results: Results) -> str:
    """A table for the console, numbers in percent."""
    names = [name for name in next(iter(results.values()))[0] if name != "loss"]
    width = max(map(len, names)) + 2
    head = "rotations  " + "".join(name.rjust(max(width, 15)) for name in names)
    rows = [
        kind.ljust(11) + "".join(format_mean(reports, name).rjust(max(width, 15)) for name in names)
        for kind, reports in results.items()
    ]
    return "\n".join([head, *rows])


def format_classes(task: Task, counts: Mapping[Rotations, Counts], trials: int = 1) -> str:
    """A table for the console, a row for every class: its score in percent under each kind of rotations.

    The counts are sums over so many trials.
    """
    every = {kind: task.by_class(counted) for kind, counted in counts.items()}
    first = next(iter(every.values()))
    if not first:
        return ""
    width = max(len("class"), *(len(one.name) for one in first)) + 2
    head = "class".ljust(width) + "clouds".rjust(7) + "".join(kind.rjust(8) for kind in every)
    mistakes = list(every.values())[-1]
    if any(one.mistakes for one in mistakes):
        head += f"  mistaken for ({list(every)[-1]})"
    rows = [
        f"{one.name.ljust(width)}{one.clouds // trials:7,}"
        + "".join(f"{reports[i].score:8.2f}" for reports in every.values())
        + f"  {mistakes[i].mistakes}"
        for i, one in enumerate(first)
    ]
    return "\n".join(row.rstrip() for row in [head, *rows])
