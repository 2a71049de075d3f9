"""The paper's tables, trained and tested here: missing runs are trained, unfinished cells say so."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._files import write_file
from ..typing import Rotations
from . import log, loop, results
from .config import RunConfig
from .distributed import ProcessGroup
from .errors import TrainingError
from .presets import Table, TableRow, name_of
from .run import CONFIG, read_config, write_errors

PAPER_DATA = {
    "classification": "ModelNet40",
    "segmentation": "ShapeNet-Part",
    "reconstruction": "ShapeNet",
}  # the data sets of the paper's numbers
ROTATION_LABELS = {"I": "I", "z": "z", "SO3": "SO(3)"}


@dataclass(frozen=True)
class Job:
    """A run, which fills one or more cells of a row."""

    row: TableRow
    train: Rotations
    config: RunConfig
    folder: Path

    @property
    def name(self) -> str:
        """Its name in `--only`."""
        return f"{self.row.name}-{self.train}"

    def cell(self, test: Rotations, metric: str) -> str:
        """The mean over trials, or how far the run is."""
        done, epochs = len(log.read_metrics(self.folder)), self.config.recipe.epochs
        found = results.read(self.folder)
        if done == epochs and test in found and all(metric in report for report in found[test]):
            return results.format_mean(found[test], metric)
        return "—" if done == 0 else f"epoch {done}/{epochs}" if done < epochs else "untested"


def jobs(table: Table, plan: Callable[[TableRow, Rotations], RunConfig], out: Path) -> list[Job]:
    """All runs behind a table."""
    trained = tuple(dict.fromkeys(train for train, _ in table.columns))
    planned = [(row, train, plan(row, train)) for row in table.rows for train in trained]
    # Folders are named by the network, so that tables of the same task share their runs.
    return [Job(row, train, config, out / f"{name_of(config.network)}-{train}") for row, train, config in planned]


def select(all_jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs named: by row (vn-dgcnn) or by run (vn-dgcnn-z); without names, all of them."""
    known = {name for job in all_jobs for name in (job.name, job.row.name)}
    unknown = [name for name in only if name not in known]
    if unknown:
        raise TrainingError(f"unknown row or run {unknown[0]!r}; the table has {', '.join(sorted(known))}")
    return [job for job in all_jobs if not only or job.name in only or job.row.name in only]


def fill(
    table: Table,
    plan: Callable[[TableRow, Rotations], RunConfig],
    out: Path,
    *,
    only: Sequence[str] = (),
    trials: int = 1,
    name: str = "table",
    about: str = "",
    group: ProcessGroup | None = None,
) -> str:
    """Train and test what is missing, and write `NAME.md` and `NAME.png` after each run; gives the Markdown.

    `plan` gives the configuration of a row trained under a kind of rotations. Can be stopped and called again.
    """
    group = group or ProcessGroup()
    all_jobs = jobs(table, plan, out)
    chosen = select(all_jobs, only)
    for job in chosen:
        _check_same_config(job)
    text = _write(table, all_jobs, out, name, about, group)
    for job in chosen:
        started = (job.folder / CONFIG).exists()
        group.barrier()  # all processes have looked before rank 0 writes
        if not started or len(log.read_metrics(job.folder)) < job.config.recipe.epochs:
            if group.is_main:
                print(f"training {job.name} in {job.folder}", flush=True)
            loop.fit(job.config, job.folder, group, resume=started)
        tested = results.read(job.folder)
        missing = [kind for kind in job.config.protocol.test_rotations if len(tested.get(kind, [])) < trials]
        group.barrier()
        if missing:
            results.measure(job.folder, missing, trials, group, save=True)
        text = _write(table, all_jobs, out, name, about, group)
    return text


def _check_same_config(job: Job) -> None:
    """Refuse a folder that holds a run of another configuration; only the seed of its runtime must agree."""
    if (job.folder / CONFIG).exists():
        found = read_config(job.folder)
        runtime = replace(found.runtime, seed=job.config.runtime.seed)
        if replace(job.config, runtime=runtime) != found:
            raise TrainingError(f"{job.folder} holds a run of another configuration: choose another --out")


def markdown(table: Table, all_jobs: Sequence[Job], about: str = "") -> str:
    """The table, our numbers beside the paper's."""
    names = [f"{ROTATION_LABELS[train]}/{ROTATION_LABELS[test]}" for train, test in table.columns]
    head = ["", *(word for name in names for word in (name, "paper"))]
    rows = [[title, *(word for pair in cells for word in pair)] for title, cells in _rows(table, all_jobs)]
    width = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [" | ".join(word.ljust(width[i]) for i, word in enumerate(row)) for row in [head, *rows]]
    rule = " | ".join("-" * w for w in width)
    body = "\n".join(f"| {line} |" for line in [lines[0], rule, *lines[1:]])
    note = f"{table.metric}, %; trained under/tested under. The paper's numbers are on {PAPER_DATA[table.task]}."
    return f"# {table.title}\n\n{body}\n\n{note}{' ' + about if about else ''}\n"


def _rows(table: Table, all_jobs: Sequence[Job]) -> list[tuple[str, list[tuple[str, str]]]]:
    by_name = {(job.row.name, job.train): job for job in all_jobs}
    return [
        (
            row.title,
            [
                (by_name[row.name, train].cell(test, table.metric), paper)
                for (train, test), paper in zip(table.columns, _paper(row, table), strict=True)
            ],
        )
        for row in table.rows
    ]


def _paper(row: TableRow, table: Table) -> list[str]:
    return [f"{number:.1f}" for number in row.paper] or ["—"] * len(table.columns)


def _write(table: Table, all_jobs: Sequence[Job], out: Path, name: str, about: str, group: ProcessGroup) -> str:
    text = markdown(table, all_jobs, about)
    if group.is_main:
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            write_file(out / f"{name}.md", text)
            with contextlib.suppress(ImportError):  # a picture needs matplotlib, the table does not
                picture(table, all_jobs).savefig(out / f"{name}.png", dpi=120)
    return text


def picture(table: Table, all_jobs: Sequence[Job]) -> Any:
    """The table as a figure."""
    from matplotlib.figure import Figure

    names = [f"{ROTATION_LABELS[train]}/{ROTATION_LABELS[test]}" for train, test in table.columns]
    rows = _rows(table, all_jobs)
    figure = Figure(figsize=(3 + 2.2 * len(names), 1 + 0.35 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_title(
        f"{table.title} ({table.metric}, %): ours, and in brackets the paper's on {PAPER_DATA[table.task]}", fontsize=9
    )
    text = [[f"{ours}  ({paper})" for ours, paper in cells] for _, cells in rows]
    axes.table(text, rowLabels=[title for title, _ in rows], colLabels=names, loc="center", cellLoc="center").scale(
        1, 1.4
    )
    return figure
