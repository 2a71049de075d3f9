"""What a run says: `metrics.jsonl`, a line or a bar on the console, `curve.png`, and TensorBoard if it is installed."""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from . import checkpoint

METRICS, CURVE = "metrics.jsonl", "curve.png"
REDRAW_SECONDS = 30.0


class Log:
    """The log of one run; with `quiet` (on ranks other than 0) it neither writes nor talks."""

    def __init__(self, folder: Path, *, epochs: int, quiet: bool = False) -> None:
        self.folder, self.epochs, self.quiet = folder, epochs, quiet
        self.drawn = self.started = self.bar_started = time.monotonic()
        self.first: int | None = None
        self.bar: Any = None
        self.board: Any = None
        if not quiet:
            with contextlib.suppress(ImportError):
                from torch.utils.tensorboard import SummaryWriter

                self.board = SummaryWriter(str(folder / "tensorboard"))

    def say(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def step(self, epoch: int, step: int, steps: int, numbers: dict[str, float], clouds: int) -> None:
        """Show how far an epoch is: a bar on a terminal, nothing elsewhere."""
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
        left = self._left(line["epoch"] * steps, self.epochs * steps)
        self.say(
            f"epoch {line['epoch']}/{self.epochs}  loss {line['train']['loss']:.4f}"
            f"  train {line['train'][metric]:.2f}  val {line['val'][metric]:.2f}"
            f"  {line['time']['clouds_per_second']:.0f} clouds/s  left {_clock(left)}"
        )
        if self.board is not None:
            for part in ("train", "val"):
                for name, value in line[part].items():
                    self.board.add_scalar(f"{part}/{name}", value, line["epoch"])
        if time.monotonic() - self.drawn > REDRAW_SECONDS:
            self.draw(metric)

    def draw(self, metric: str) -> None:
        """Draw the curve of losses and of the metric, if matplotlib is installed."""
        self.drawn = time.monotonic()
        lines = [] if self.quiet else read_metrics(self.folder)
        with contextlib.suppress(ImportError):
            if lines:
                curves(lines, metric).savefig(self.folder / CURVE, dpi=90)

    def close(self, metric: str) -> None:
        """Leave a curve behind."""
        self.close_bar()
        self.draw(metric)
        if self.board is not None:
            self.board.close()

    def close_bar(self) -> None:
        """Take the bar off the terminal."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def _left(self, done: int, total: int) -> float:
        now = done - (self.first or 0)
        return (time.monotonic() - self.started) / max(1, now) * (total - done)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run, one for every epoch; a last line that was cut off is left out."""
    path, lines = folder / METRICS, []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


def keep_metrics(folder: Path, epochs: int) -> None:
    """Forget what was logged after so many epochs: it is about to be trained again."""
    lines = [line for line in read_metrics(folder) if line["epoch"] <= epochs]
    checkpoint.write_file(folder / METRICS, "".join(json.dumps(line) + "\n" for line in lines))


def curves(lines: list[dict[str, Any]], metric: str) -> Any:
    """A figure of the loss and of the metric over epochs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in lines]
    for axes, name, label in ((left, "loss", "loss"), (right, metric, f"{metric}, %")):
        for part, colour in (("train", "#0072b2"), ("val", "#e69f00")):
            axes.plot(epochs, [line[part][name] for line in lines], color=colour, label=part, marker=".")
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    left.legend()
    return figure


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
