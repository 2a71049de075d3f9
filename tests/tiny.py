"""Runs that take a second, for the tests of training."""

from dataclasses import replace

from vector_neurons.training import Clouds, Network, Protocol, Recipe, Settings
from vector_neurons.training.log import read_metrics


def tiny(**changes):
    """Settings of a tiny run; changes are fields of any group."""
    settings = Settings(
        clouds=Clouds(size=84, points=64, pool=80),
        network=Network(k=8, widths=(12, 24), embedding=48, hidden=(16,)),
        recipe=Recipe(epochs=2, batch_size=14, ema=0.9),
    )
    for group in ("clouds", "network", "recipe", "protocol", "machine"):
        part = getattr(settings, group)
        own = {name: changes.pop(name) for name in list(changes) if hasattr(part, name)}
        settings = replace(settings, **{group: replace(part, **own)})
    return replace(settings, **changes)


def metrics(folder):
    """The metrics of a run, without the time they took."""
    return [{name: x for name, x in line.items() if name != "time"} for line in read_metrics(folder)]


__all__ = ["Protocol", "metrics", "tiny"]
