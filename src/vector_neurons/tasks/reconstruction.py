"""The reconstruction task: classify query points as inside or outside the shape of a cloud."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Cloud
from ..mesh import iou
from ..models import OccupancyModel
from .task import Counts, Task, from_fixed_point, to_fixed_point

THRESHOLDS = tuple(i / 20 for i in range(1, 20))
PAPER_THRESHOLD = 0.2  # of the paper's table
# Query points decoded at once: larger tensors would not reuse the memory of the last ones, and fetching new pages takes
# longer than filling them.
DECODE_BATCH = 4_000


class Reconstruction(Task):
    """Binary cross-entropy of every query point; the mean over shapes of the volumetric IoU, in percent.

    A query point is inside if its probability is above a threshold. `iou` uses `threshold`, which is to be chosen on
    validation shapes; None chooses the best of `THRESHOLDS` for the shapes counted, and reports it. `iou_0.2` uses the
    paper's.

    Args:
        threshold: of probability, or None.
        iou_loss: weight of the soft IoU in the loss.

    >>> data = vn.data.Shapes("test", size=2, points=64, queries=32)
    >>> task, cloud = vn.tasks.Reconstruction(0.5), data.batch(torch.arange(2))
    >>> task.logits(vn.models.OccupancyNetwork(code=12, hidden=24, k=8).eval(), cloud).shape
    torch.Size([2, 32])
    """

    name = "reconstruction"
    metric = "iou"
    outputs = ("inside",)

    def __init__(self, threshold: float | None = None, iou_loss: float = 0.0) -> None:
        if threshold is not None and threshold not in THRESHOLDS:
            raise ValueError(f"thresholds are 0.05, 0.1, ... 0.95, got {threshold}")
        self.threshold, self.iou_loss = threshold, iou_loss

    def logits(self, model: nn.Module, cloud: Cloud) -> Float[Tensor, "batch queries"]:
        """Logits of the query points of a batch."""
        assert cloud.queries is not None  # a data set for reconstruction has query points
        takes_normals = cloud.normals is not None and getattr(model, "takes_normals", False)
        given = {"normals": cloud.normals} if takes_normals else {}
        if torch.is_grad_enabled() or not isinstance(model, OccupancyModel):  # it may be a compiled one
            logits: Tensor = model(cloud.points, cloud.queries, **given)
            return logits
        code, at_once = model.encode(cloud.points, **given), max(1, DECODE_BATCH // len(cloud.points))
        return torch.cat([model.decode(code, some) for some in torch.split(cloud.queries, at_once, dim=1)], dim=1)

    def loss(
        self, logits: Float[Tensor, "batch queries"], cloud: Cloud, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over query points; label smoothing moves the targets toward one half.

        With `iou_loss`, so much times the mean over shapes of `1 - (1 + Σ p t) / (1 + Σ (p + t - p t))` is added, of
        probabilities p and truth t: the soft IoU, in which a thin shape counts as much as a thick one.
        """
        truth = _occupied(cloud).to(torch.float32)
        entropy = F.binary_cross_entropy_with_logits(
            logits.float(), torch.lerp(truth, torch.full_like(truth, 0.5), label_smoothing)
        )
        if not self.iou_loss:
            return entropy
        probability = logits.float().sigmoid()
        both = (probability * truth).sum(-1)
        either = (probability + truth).sum(-1) - both
        return torch.add(entropy, (1 - (1 + both) / (1 + either)).mean(), alpha=self.iou_loss)

    def count(self, logits: Float[Tensor, "batch queries"], cloud: Cloud) -> Counts:
        """The sum of the shapes' IoUs at every threshold, and their number."""
        levels = torch.tensor([logit(t) for t in THRESHOLDS], device=logits.device)
        predicted, truth = logits.float() > levels.view(-1, 1, 1), _occupied(cloud)
        each = to_fixed_point(iou(predicted, truth.expand_as(predicted)))
        return {"iou": each.sum(-1), "shapes": torch.tensor(len(truth), device=logits.device)}

    def report(self, counts: Counts) -> dict[str, float]:
        """IoU in percent at the threshold, and at the paper's."""
        each = 100 * from_fixed_point(counts["iou"]) / counts["shapes"]
        chosen = int(each.argmax()) if self.threshold is None else THRESHOLDS.index(self.threshold)
        paper = each[THRESHOLDS.index(PAPER_THRESHOLD)].item()
        return {"iou": each[chosen].item(), f"iou_{PAPER_THRESHOLD}": paper, "threshold": THRESHOLDS[chosen]}


def logit(probability: float) -> float:
    """The logit of a probability."""
    return math.log(probability / (1 - probability))


def _occupied(cloud: Cloud) -> Bool[Tensor, "batch queries"]:
    assert cloud.occupied is not None  # a data set for reconstruction has occupancies
    return cloud.occupied
