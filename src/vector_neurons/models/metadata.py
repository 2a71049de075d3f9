"""What a model's inputs and outputs stand for, and how a network was built: what is saved beside its weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from . import MODELS
from .base import Model


@dataclass(frozen=True)
class Metadata:
    """What a model's inputs and outputs stand for.

    Args:
        classes: names of the outputs.
        normalization: how clouds were normalized in training: a function of `geometry.sampling`, or `"none"`.
        up: the axis that pointed up in training.
        points: number of points of a cloud in training.
        fewest_points: of the smallest clouds in training, if their numbers of points differed.
        threshold: the probability above which a query point counts as inside.
        categories: names of the categories that a segmenter is told.
        drawn_from: a digest of the shapes from which the training set was drawn.
    """

    classes: Sequence[str] | None = None
    normalization: str = "unit_ball"
    up: str = "z"
    points: int | None = None
    fewest_points: int | None = None
    threshold: float | None = None
    categories: Sequence[str] | None = None
    drawn_from: str | None = None

    def check(self) -> None:
        """Refuse values of the wrong type or range."""

        def words(x: Any) -> bool:
            return x is None or (isinstance(x, list | tuple) and all(isinstance(word, str) for word in x))

        points, fewest, threshold = self.points, self.fewest_points, self.threshold
        right = {
            "classes": words(self.classes),
            "categories": words(self.categories),
            "normalization": isinstance(self.normalization, str),
            "up": self.up in ("x", "y", "z"),
            "drawn_from": self.drawn_from is None or isinstance(self.drawn_from, str),
            "points": points is None or (type(points) is int and points > 0),
            "fewest_points": fewest is None or (type(fewest) is int and 0 < fewest <= (points or fewest)),
            "threshold": threshold is None or (type(threshold) is float and 0 < threshold < 1),
        }
        for name, fits in right.items():
            if not fits:
                raise ValueError(f"{name} is {str(getattr(self, name))[:60]!r}")


@dataclass(frozen=True)
class Origin:
    """How a network that is not a `Model` was built: `vn train` records it for a plain module of the user's."""

    reference: str  # my_file.py:MyNet
    arguments: dict[str, Any]
    metadata: Metadata | None = None


def record(model: nn.Module, origin: Origin) -> None:
    """Record how a network was built, out of reach of its own attributes and submodules."""
    model.__dict__["_vn_origin"] = origin


def origin_of(model: nn.Module) -> Origin | None:
    """How a network was built, if that is known."""
    recorded: Origin | None = model.__dict__.get("_vn_origin")
    if recorded is not None or not isinstance(model, Model):
        return recorded
    cls = type(model)
    library = MODELS.get(cls.__name__) is cls
    return Origin(cls.__name__ if library else f"{cls.__module__}:{cls.__name__}", model.arguments, model.metadata)


def metadata_of(model: nn.Module) -> Metadata:
    """What a loaded network's inputs and outputs stand for."""
    origin = origin_of(model)
    return (origin.metadata if origin else None) or Metadata()
