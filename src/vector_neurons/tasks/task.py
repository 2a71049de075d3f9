"""What all tasks share."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..data import Cloud

Counts = dict[str, Tensor]  # whole numbers, so that their sum does not depend on the order of the summands
FIXED = 2.0**32  # a real number is counted in these fractions of one
LARGEST = 1e4  # and not beyond this; NaN counts as it


class Task(ABC):
    """A loss for training, counts for everything that is reported.

    Counts are tensors of whole numbers, added over batches and processes: any way of cutting a data set into batches
    gives the same report, to the last bit.
    """

    name: ClassVar[str]
    metric: ClassVar[str]  # the number of the report by which models are selected
    outputs: tuple[str, ...]  # their names

    @abstractmethod
    def logits(self, model: nn.Module, cloud: Cloud) -> Tensor:
        """What the model says of a batch."""

    @abstractmethod
    def loss(self, logits: Tensor, cloud: Cloud, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean over the batch of what training makes small."""

    @abstractmethod
    def count(self, logits: Tensor, cloud: Cloud) -> Counts:
        """What the report needs to know of a batch."""

    @abstractmethod
    def report(self, counts: Counts) -> dict[str, float]:
        """Numbers for people: percentages, from the sum of all counts."""

    def by_class(self, counts: Counts) -> list["ClassReport"]:
        """The same class by class, where there are classes."""
        return []


class ClassReport(NamedTuple):
    """One class of a test: how many clouds it has, how good the model is at it in percent, what it takes it for."""

    name: str
    clouds: int
    score: float
    mistakes: str = ""


def add(a: Counts | None, b: Counts) -> Counts:
    """The sum of two counts; None is nothing yet."""
    return b if a is None else {name: a[name] + b[name] for name in b}


def fixed(x: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Real numbers as whole ones, for counting."""
    return (torch.nan_to_num(x.detach().double(), nan=LARGEST).clamp(-LARGEST, LARGEST) * FIXED).round().long()


def real(x: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Back from `fixed`, or from a sum of such."""
    return x.double() / FIXED
