"""The interface of tasks, and sums that do not depend on the order of the summands."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..data import Cloud

Counts = dict[str, Tensor]  # integers, whose sum does not depend on the order of the summands
FIXED_POINT = 2.0**32  # units per one
FIXED_POINT_MAX = 1e4  # larger values and NaN are clamped to this


class Task(ABC):
    """A loss for training, counts for everything that is reported.

    Counts are integer tensors, summed over batches and processes: the report is bit-identical however the data set is
    split.
    """

    name: ClassVar[str]
    metric: ClassVar[str]  # the entry of the report by which models are selected
    outputs: tuple[str, ...]  # names of the outputs

    @abstractmethod
    def logits(self, model: nn.Module, cloud: Cloud) -> Tensor:
        """Logits of a batch."""

    @abstractmethod
    def loss(self, logits: Tensor, cloud: Cloud, label_smoothing: float = 0.0) -> Float[Tensor, ""]:
        """The mean loss of a batch."""

    @abstractmethod
    def count(self, logits: Tensor, cloud: Cloud) -> Counts:
        """The sums over a batch from which the report is computed."""

    @abstractmethod
    def report(self, counts: Counts) -> dict[str, float]:
        """Metrics in percent, from the sum of all counts."""

    def by_class(self, counts: Counts) -> list["ClassReport"]:
        """The metric of each class, where there are classes."""
        return []


class ClassReport(NamedTuple):
    """A class in a test: its number of clouds, its score in percent, and the classes it is most often mistaken for."""

    name: str
    clouds: int
    score: float
    mistakes: str = ""


def add(a: Counts | None, b: Counts) -> Counts:
    """The sum of two counts; None is zero.

    >>> vn.tasks.add({"right": torch.tensor(3)}, {"right": torch.tensor(4)})
    {'right': tensor(7)}
    """
    return b if a is None else {name: a[name] + b[name] for name in b}


def to_fixed_point(x: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Real numbers as integers, whose sum does not depend on the order of the summands."""
    return (
        (
            torch.nan_to_num(x.detach().double(), nan=FIXED_POINT_MAX).clamp(-FIXED_POINT_MAX, FIXED_POINT_MAX)
            * FIXED_POINT
        )
        .round()
        .long()
    )


def from_fixed_point(x: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The inverse of `to_fixed_point`, also of sums."""
    return x.double() / FIXED_POINT
