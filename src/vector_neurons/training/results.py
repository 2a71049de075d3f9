"""Results of a run on the test set, in its `test.json`."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from ..typing import Rotations
from . import loop
from .checkpoint import write_file
from .world import World

TEST = "test.json"
Results = dict[Rotations, list[dict[str, float]]]  # for every kind of rotations one report for every time


def record(folder: Path, rotations: Sequence[Rotations], times: int = 1, world: World | None = None) -> Results:
    """Test the best model of a run, and write the reports to its folder beside those that are there."""
    world = world or World()
    task, counted = loop.evaluate(folder, rotations, times, world)
    results: Results = {kind: [loop.report(task, counts) for counts in every] for kind, every in counted.items()}
    if world.writes:
        with loop.writing(folder):
            write_file(folder / TEST, json.dumps(read(folder) | results, indent=2) + "\n")
    return results


def read(folder: Path, name: str = TEST) -> Results:
    """The results that a run has so far."""
    path = folder / name
    if not path.is_file():
        return {}
    results: Results = json.loads(path.read_text())
    return results


def spread(reports: Sequence[dict[str, float]], name: str) -> str:
    """Mean ± standard deviation over the times, or the number alone if there was one.

    >>> spread([{"accuracy": 80.0}, {"accuracy": 82.0}], "accuracy")
    '81.00 ± 1.41'
    """
    values = [report[name] for report in reports]
    digits = 4 if name.startswith("chamfer") else 2  # a length, not a percentage
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def lines(results: Results) -> str:
    """A table for the console, numbers in percent."""
    names = [name for name in next(iter(results.values()))[0] if name != "loss"]
    width = max(map(len, names)) + 2
    head = "rotations  " + "".join(name.rjust(max(width, 15)) for name in names)
    rows = [
        kind.ljust(11) + "".join(spread(reports, name).rjust(max(width, 15)) for name in names)
        for kind, reports in results.items()
    ]
    return "\n".join([head, *rows])
