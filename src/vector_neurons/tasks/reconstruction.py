"""Saying which places lie inside the shape of a cloud."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Cloud
from .task import Counts, Task, fixed, real

THRESHOLDS = tuple(i / 20 for i in range(1, 20))
PAPER = 0.2  # the threshold of the paper's table


class Reconstruction(Task):
    """Binary cross-entropy of every query; the mean over shapes of the volumetric IoU, in percent.

    A query counts as inside if its probability is above a threshold. `iou` is that at `threshold`, which is to be
    chosen on validation shapes; None chooses the best of `THRESHOLDS` for the shapes counted, and reports it. `iou_0.2`
    is that at the paper's.
    """

    name = "reconstruction"
    metric = "iou"
    outputs = ("inside",)

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and threshold not in THRESHOLDS:
            raise ValueError(f"thresholds are 0.05, 0.1, ... 0.95, got {threshold}")
        self.threshold = threshold

    def logits(self, model: nn.Module, cloud: Cloud) -> Float[Tensor, "batch queries"]:
        """What the model says of the queries of a batch."""
        logits: Tensor = model(cloud.points, cloud.queries)
        return logits

    def loss(self, logits: Float[Tensor, "batch queries"], cloud: Cloud, smoothing: float = 0.0) -> Float[Tensor, ""]:
        """Mean cross-entropy over queries; smoothing moves the truth towards one half."""
        truth = _occupied(cloud).to(torch.float32)
        return F.binary_cross_entropy_with_logits(
            logits.float(), torch.lerp(truth, torch.full_like(truth, 0.5), smoothing)
        )

    def count(self, logits: Float[Tensor, "batch queries"], cloud: Cloud) -> Counts:
        """The sum of the shapes' IoUs at every threshold, and their number."""
        levels = torch.tensor([math.log(t / (1 - t)) for t in THRESHOLDS], device=logits.device)
        predicted, truth = logits.float() > levels.view(-1, 1, 1), _occupied(cloud)
        both, either = (predicted & truth).sum(-1), (predicted | truth).sum(-1)
        iou = torch.where(either > 0, both.double() / either.clamp(min=1), 1.0)
        return {"iou": fixed(iou).sum(-1), "shapes": torch.tensor(len(truth), device=logits.device)}

    def report(self, counts: Counts) -> dict[str, float]:
        """IoU in percent at the threshold, and at the paper's."""
        each = 100 * real(counts["iou"]) / counts["shapes"]
        chosen = int(each.argmax()) if self.threshold is None else THRESHOLDS.index(self.threshold)
        paper = each[THRESHOLDS.index(PAPER)].item()
        return {"iou": each[chosen].item(), f"iou_{PAPER}": paper, "threshold": THRESHOLDS[chosen]}


def _occupied(cloud: Cloud) -> Bool[Tensor, "batch queries"]:
    assert cloud.occupied is not None  # a data set for reconstruction knows its occupancy
    return cloud.occupied
