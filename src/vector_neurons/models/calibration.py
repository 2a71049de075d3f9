"""Calibrated probabilities of a classifier, and a score of how much a shape looks like those it knows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

QUANTILES = 101  # of the scores of validation shapes: 0 %, 1 %, ..., 100 %
PRIOR_SHAPES = 10  # with the statistics of all classes, which a class counts beside its own
TEMPERATURES = torch.logspace(-1, 1, 401, dtype=torch.float64)


@dataclass(frozen=True)
class Calibration:
    """How to read the logits of a classifier, measured on validation shapes.

    The temperature minimizes the negative log-likelihood. The score of a shape is its largest logit, standardized by
    those of the validation shapes that were given the same class.

    Args:
        temperature: divides the logits.
        mean: of the largest logit, for each predicted class.
        std: its standard deviation.
        quantiles: of the score over the validation shapes, 0 % to 100 %.

    >>> logits = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    >>> calibration = Calibration.fit(logits, logits.argmax(-1))
    >>> bool(calibration.known(logits).median().round(decimals=1) == 0.5)
    True
    """

    temperature: float
    mean: Sequence[float]
    std: Sequence[float]
    quantiles: Sequence[float]

    @classmethod
    def fit(cls, logits: Float[Tensor, "shapes classes"], labels: Int[Tensor, " shapes"]) -> "Calibration":
        """Measure the calibration on logits of validation shapes with these labels."""
        logits = logits.double()
        losses = torch.stack([F.cross_entropy(logits / t, labels) for t in TEMPERATURES])
        top, predicted = logits.max(-1)
        each = F.one_hot(predicted, logits.shape[1]).double()
        shapes = each.sum(0) + PRIOR_SHAPES
        mean = (top @ each + PRIOR_SHAPES * top.mean()) / shapes
        squares = (top - mean[predicted]).square()
        std = ((squares @ each + PRIOR_SHAPES * top.var(correction=0)) / shapes).sqrt()
        scores = (top - mean[predicted]) / std[predicted]
        quantiles = scores.quantile(torch.linspace(0, 1, QUANTILES, dtype=torch.float64))
        best = TEMPERATURES[losses.argmin()].item()
        return cls(best, *(tuple(x.tolist()) for x in (mean, std, quantiles)))

    def check(self, classes: int) -> None:
        """Refuse values of the wrong type, number or range."""

        def numbers(x: Any, count: int) -> bool:
            return isinstance(x, list | tuple) and len(x) == count and all(type(y) is float and y - y == 0 for y in x)

        right = {
            "temperature": numbers([self.temperature], 1) and self.temperature > 0,
            "mean": numbers(self.mean, classes),
            "std": numbers(self.std, classes) and min(self.std) > 0,
            "quantiles": numbers(self.quantiles, QUANTILES) and list(self.quantiles) == sorted(self.quantiles),
        }
        for name, fits in right.items():
            if not fits:
                raise ValueError(f"{name} is {str(getattr(self, name))[:60]!r}, for {classes} classes")

    def probabilities(self, logits: Float[Tensor, "shapes classes"]) -> Float[Tensor, "shapes classes"]:
        """Calibrated probabilities of the classes, for a shape that is of one of them."""
        return (logits / self.temperature).softmax(-1)

    def known(self, logits: Float[Tensor, "shapes classes"]) -> Float[Tensor, " shapes"]:
        """The fraction of validation shapes with a lower score: near 0 for shapes unlike all known ones."""
        top, predicted = logits.double().cpu().max(-1)
        mean, std = (torch.tensor(x, dtype=torch.float64)[predicted] for x in (self.mean, self.std))
        levels = np.linspace(0, 1, len(self.quantiles))
        return torch.from_numpy(np.interp(((top - mean) / std).numpy(), self.quantiles, levels))
