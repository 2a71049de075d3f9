"""The log of a run: `metrics.jsonl`, a line or a bar on the console, `curve.png`, and TensorBoard if installed."""

import contextlib
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from .._files import JSON_MAX_BYTES, FileError, check_regular, first_line, write_file
from .errors import TrainingError

METRICS, CURVE = "metrics.jsonl", "curve.png"
PLOT_SECONDS = 30.0


class Log:
    """The log of one run; with `quiet` (on ranks other than 0) it writes and prints nothing."""

    def __init__(self, folder: Path, *, epochs: int, quiet: bool = False) -> None:
        self.folder, self.epochs, self.quiet = folder, epochs, quiet
        self.plotted = self.started = self.bar_started = time.monotonic()
        self.first: int | None = None
        self.bar: Any = None
        self.board: Any = None
        if not quiet:
            with contextlib.suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(folder / "tensorboard"))

    def print(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def step(self, epoch: int, step: int, steps: int, numbers: dict[str, float], clouds: int) -> None:
        """Show the progress of an epoch: a bar on a terminal, nothing elsewhere."""
        if self.first is None:
            self.first = epoch * steps + step - 1
        if self.quiet or not sys.stderr.isatty():
            return
        from tqdm import tqdm

        if self.bar is None:
            self.bar = tqdm(total=steps, initial=step - 1, desc=f"epoch {epoch + 1}/{self.epochs}", leave=False)
            self.bar_started = time.monotonic()
        self.bar.update(step - self.bar.n)
        speed = clouds * (step - self.bar.initial) / max(1e-9, time.monotonic() - self.bar_started)
        shown = {name: f"{value:.3g}" for name, value in numbers.items()}
        left = _clock(self._left(epoch * steps + step, self.epochs * steps))
        self.bar.set_postfix(**shown, **{"clouds/s": f"{speed:.0f}", "left": left}, refresh=False)

    def epoch(self, line: dict[str, Any], steps: int, metric: str) -> None:
        """Add a line to the metrics, and a shorter one to the console."""
        if self.quiet:
            return
        self.close_bar()
        with (self.folder / METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        left = self._left(line["epoch"] * steps, self.epochs * steps)
        self.print(
            f"epoch {line['epoch']}/{self.epochs}  loss {line['train']['loss']:.4f}"
            f"  train {line['train'][metric]:.2f}  val {line['val'][metric]:.2f}"
            f"  {line['time']['clouds_per_second']:.0f} clouds/s  left {_clock(left)}"
        )
        if self.board is not None:
            for part in ("train", "val"):
                for name, value in line[part].items():
                    self.board.add_scalar(f"{part}/{name}", value, line["epoch"])
        if time.monotonic() - self.plotted > PLOT_SECONDS:
            self.plot(metric)

    def plot(self, metric: str) -> None:
        """Plot the loss and the metric over the epochs, if matplotlib is installed."""
        self.plotted = time.monotonic()
        try:
            if not self.quiet and (lines := read_metrics(self.folder)):
                with contextlib.suppress(ImportError):
                    curves(lines, metric).savefig(self.folder / CURVE, dpi=90)
        except (OSError, TrainingError) as error:  # a run does not end for a picture
            self.print(f"{self.folder / CURVE} cannot be written: {first_line(error)}")

    def close(self, metric: str) -> None:
        """Plot the curve and close all outputs."""
        self.close_bar()
        self.plot(metric)
        if self.board is not None:
            self.board.close()

    def close_bar(self) -> None:
        """Remove the bar from the terminal."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _left(self, done: int, total: int) -> float:
        now = done - (self.first or 0)
        return (time.monotonic() - self.started) / max(1, now) * (total - done)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one dict per epoch; damaged lines are skipped with a warning, a cut last one silently."""
    path = folder / METRICS
    if not os.path.lexists(path):
        return []
    try:
        check_regular(path, JSON_MAX_BYTES)
        texts = path.read_bytes().decode(errors="replace").split("\n")
    except (FileError, OSError) as error:
        raise TrainingError(first_line(error)) from error
    cut = texts.pop()  # text after the last newline
    lines, damaged = [], []
    for number, text in enumerate(texts, 1):
        try:
            lines.append(_parse_line(text))
        except (ValueError, RecursionError):
            damaged.append(number)
    if damaged:
        where = ", ".join(map(str, damaged[:5])) + ("" if len(damaged) <= 5 else ", ...")
        warnings.warn(f"{path} is damaged and incomplete: line {where} cannot be read", stacklevel=2)
    elif cut:
        with contextlib.suppress(ValueError, RecursionError):  # complete but for its newline
            lines.append(_parse_line(cut))
    return lines


def _parse_line(text: str) -> dict[str, Any]:
    """Parse a line of metrics, and refuse anything else."""
    line: Any = json.loads(text)
    if not isinstance(line, dict) or type(line.get("epoch")) is not int:
        raise ValueError("epoch is missing")
    for part in ("train", "val"):
        numbers = line.get(part)
        if not isinstance(numbers, dict) or "loss" not in numbers:
            raise ValueError(f"{part} is missing")
        if not all(isinstance(x, int | float) for x in numbers.values()):
            raise ValueError(f"{part} holds other values than numbers")
    return line


def restore_metrics(folder: Path, history: list[dict[str, Any]]) -> list[int]:
    """Reset the metrics to those of a checkpoint; gives the epochs that the file had lost."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unreadable lines are restored
        found = {line["epoch"] for line in read_metrics(folder)}
    write_file(folder / METRICS, "".join(json.dumps(line) + "\n" for line in history))
    return [line["epoch"] for line in history if line["epoch"] not in found]


def curves(lines: list[dict[str, Any]], metric: str) -> Any:
    """A figure of the loss and of the metric over epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in lines]
    for axes, name, label in ((left, "loss", "loss"), (right, metric, f"{metric}, %")):
        for part, color in (("train", "#0072b2"), ("val", "#e69f00")):
            axes.plot(epochs, [line[part].get(name, math.nan) for line in lines], color=color, label=part, marker=".")
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    left.legend()
    return figure


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
