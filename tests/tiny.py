"""Runs that take a second, for the tests of training."""

from dataclasses import replace

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


__all__ = ["metrics", "tiny"]
