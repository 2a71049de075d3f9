"""Runs that take a second, for the tests of training."""

from dataclasses import replace
from pathlib import Path

import torch
from elsewhere import python
from safetensors.torch import load_file

from vector_neurons.training import DataConfig, NetworkConfig, RecipeConfig, RunConfig
from vector_neurons.training.log import read_metrics


def tiny(**changes):
    """The configuration of a tiny run; changes are fields of any group."""
    config = RunConfig(
        data=DataConfig(size=84, points=64, stored_points=80),
        network=NetworkConfig(k=8, widths=(12, 24), embedding=48, hidden=(16,)),
        recipe=RecipeConfig(epochs=2, batch_size=14, ema=0.9),
    )
    for group in ("data", "network", "recipe", "protocol", "runtime"):
        part = getattr(config, group)
        own = {name: changes.pop(name) for name in list(changes) if hasattr(part, name)}
        config = replace(config, **{group: replace(part, **own)})
    return replace(config, **changes)


def metrics(folder):
    """The metrics of a run, without the time they took."""
    return [{name: x for name, x in line.items() if name != "time"} for line in read_metrics(folder)]


def same(a, b):
    """Compare two runs bit for bit."""
    assert metrics(a) == metrics(b)
    for name in ("last", "best"):
        one, other = (load_file(folder / name / "model.safetensors") for folder in (a, b))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from tiny import tiny
from vector_neurons.training import fit, loop
steps, train_step = 0, loop.Trainer.train_step
def counting(*arguments):
    global steps
    steps += 1
    train_step(*arguments)
    if steps == {step}:
        os.kill(os.getpid(), signal.SIGKILL)  # in mid-epoch, between a step and its checkpoint
loop.Trainer.train_step = counting
fit(tiny(**{changes!r}), Path({folder!r}))
"""


def killed_run(folder, step, **changes):
    """Train a tiny run in a process that is killed after so many steps: its exit code and its two streams."""
    tests = str(Path(__file__).parent)
    return python(KILLED.format(tests=tests, step=step, changes=changes, folder=str(folder)))


__all__ = ["killed_run", "metrics", "same", "tiny"]
