"""The paper's tables, trained and tested here: what is missing is trained, what is unfinished says so."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._files import write_file
from ..typing import Rotations
from . import log, loop, results
from .presets import Row, Table, name_of
from .run import CONFIG, TrainingError, read_settings, writing
from .settings import Settings
from .world import World

ON = {
    "classification": "ModelNet40",
    "segmentation": "ShapeNet-Part",
    "reconstruction": "ShapeNet",
}  # what the paper's numbers are about
SHOWN = {"I": "I", "z": "z", "SO3": "SO(3)"}


@dataclass(frozen=True)
class Job:
    """One training, which fills one or more cells of a row."""

    row: Row
    train: Rotations
    settings: Settings
    folder: Path

    @property
    def name(self) -> str:
        """For `--only`."""
        return f"{self.row.name}-{self.train}"

    def cell(self, test: Rotations, metric: str) -> str:
        """The number, or how far the run is."""
        done, epochs = len(log.read_metrics(self.folder)), self.settings.recipe.epochs
        found = results.read(self.folder)
        if done == epochs and test in found and all(metric in report for report in found[test]):
            return results.spread(found[test], metric)
        return "—" if done == 0 else f"epoch {done}/{epochs}" if done < epochs else "untested"


def jobs(table: Table, plan: Callable[[Row, Rotations], Settings], out: Path) -> list[Job]:
    """All trainings behind a table."""
    trained = tuple(dict.fromkeys(train for train, _ in table.columns))
    planned = [(row, train, plan(row, train)) for row in table.rows for train in trained]
    # The folder says what the network is, so that tables of the same task share their runs.
    return [Job(row, train, made, out / f"{name_of(made.network)}-{train}") for row, train, made in planned]


def select(all_jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs named: by row (vn-dgcnn) or by run (vn-dgcnn-z); without names, all of them."""
    known = {name for job in all_jobs for name in (job.name, job.row.name)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise TrainingError(f"the table has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return [job for job in all_jobs if not only or job.name in only or job.row.name in only]


def fill(
    table: Table,
    plan: Callable[[Row, Rotations], Settings],
    out: Path,
    *,
    only: Sequence[str] = (),
    trials: int = 1,
    name: str = "table",
    about: str = "",
    world: World | None = None,
) -> str:
    """Train and test what is missing, and write `NAME.md` and `NAME.png` after each run; gives the Markdown.

    `plan` says how a row is trained under a kind of rotations. Can be stopped and called again.
    """
    world = world or World()
    every = jobs(table, plan, out)
    chosen = select(every, only)
    for job in chosen:
        _same_settings(job)
    text = _write(table, every, out, name, about, world)
    for job in chosen:
        begun = (job.folder / CONFIG).exists()
        world.wait()  # for all to have looked, before the first one writes
        if not begun or len(log.read_metrics(job.folder)) < job.settings.recipe.epochs:
            if world.writes:
                print(f"training {job.name} in {job.folder}", flush=True)
            loop.fit(job.settings, job.folder, world, resume=begun)
        tested = results.read(job.folder)
        missing = [kind for kind in job.settings.protocol.test_rotations if len(tested.get(kind, [])) < trials]
        world.wait()
        if missing:
            results.record(job.folder, missing, trials, world)
        text = _write(table, every, out, name, about, world)
    return text


def _same_settings(job: Job) -> None:
    """Refuse to show a run under a title that it does not have; where it ran does not matter."""
    if (job.folder / CONFIG).exists():
        found = read_settings(job.folder)
        here = replace(found.machine, seed=job.settings.machine.seed)
        if found.machine.seed != job.settings.machine.seed or replace(found, machine=here) != replace(
            job.settings, machine=here
        ):
            raise TrainingError(f"{job.folder} holds a run with other settings: choose another --out")


def markdown(table: Table, every: Sequence[Job], about: str = "") -> str:
    """The table, our numbers beside the paper's."""
    names = [f"{SHOWN[train]}/{SHOWN[test]}" for train, test in table.columns]
    head = ["", *(word for name in names for word in (name, "paper"))]
    rows = [[title, *(word for pair in cells for word in pair)] for title, cells in _rows(table, every)]
    width = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [" | ".join(word.ljust(width[i]) for i, word in enumerate(row)) for row in [head, *rows]]
    rule = " | ".join("-" * w for w in width)
    body = "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])
    note = f"{table.metric}, %; trained under/tested under. The paper's numbers are on {ON[table.task]}."
    return f"# {table.title}\n\n{body}\n\n{note}{' ' + about if about else ''}\n"


def _rows(table: Table, every: Sequence[Job]) -> list[tuple[str, list[tuple[str, str]]]]:
    by_place = {(job.row.name, job.train): job for job in every}
    return [
        (
            row.title,
            [
                (by_place[row.name, train].cell(test, table.metric), paper)
                for (train, test), paper in zip(table.columns, _paper(row, table), strict=True)
            ],
        )
        for row in table.rows
    ]


def _paper(row: Row, table: Table) -> list[str]:
    return [f"{number:.1f}" for number in row.paper] or ["—"] * len(table.columns)


def _write(table: Table, every: Sequence[Job], out: Path, name: str, about: str, world: World) -> str:
    text = markdown(table, every, about)
    if world.writes:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            write_file(out / f"{name}.md", text)
            with contextlib.suppress(ImportError):  # a picture needs matplotlib, the table does not
                picture(table, every).savefig(out / f"{name}.png", dpi=120)
    return text


def picture(table: Table, every: Sequence[Job]) -> Any:
    """The table as a figure."""
    from matplotlib.figure import Figure

    names = [f"{SHOWN[train]}/{SHOWN[test]}" for train, test in table.columns]
    rows = _rows(table, every)
    figure = Figure(figsize=(3 + 2.2 * len(names), 1 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_title(
        f"{table.title} ({table.metric}, %): ours, and in brackets the paper's on {ON[table.task]}", fontsize=9
    )
    text = [[f"{ours}  ({paper})" for ours, paper in cells] for _, cells in rows]
    axes.table(text, rowLabels=[title for title, _ in rows], colLabels=names, loc="center", cellLoc="center").scale(
        1, 1.4
    )
    return figure
