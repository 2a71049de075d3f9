"""The segmentation task: predict the part of every point of a cloud whose category is given."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Cloud
from .task import ClassReport, Counts, Task, from_fixed_point, to_fixed_point


class Segmentation(Task):
    """Cross-entropy of every point; mean IoU as ShapeNet-Part defines it, in percent.

    A point gets the most likely of the parts that its shape's category has. The IoU of a shape is the mean over all
    parts of its category; a part that is absent in both prediction and truth counts as 1. `instance_miou` is the mean
    over shapes, `category_miou` the mean over categories of the mean over their shapes, `accuracy` that of points.

    >>> data = vn.data.Shapes("test", size=4, points=64)
    >>> task, cloud = vn.tasks.Segmentation(data.parts, data.parts_of, data.classes), data.batch(torch.arange(4))
    >>> network = vn.models.PointNetSegmenter(len(data.parts), len(data.classes), k=8, embedding=24).eval()
    >>> task.logits(network, cloud).shape == (4, 64, len(data.parts))
    True
    """

    name = "segmentation"
    metric = "instance_miou"

    def __init__(
        self, parts: Sequence[str], parts_of: Bool[Tensor, "categories parts"], categories: Sequence[str] = ()
    ) -> None:
        self.outputs, self.parts_of, self.categories = tuple(parts), parts_of, tuple(categories)

    def logits(self, model: nn.Module, cloud: Cloud) -> Float[Tensor, "batch points parts"]:
        """Logits of a batch."""
        logits: Tensor = model(cloud.points, cloud.label)
        return logits

    def loss(
        self, logits: Float[Tensor, "batch points parts"], cloud: Cloud, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy over points; label smoothing spreads a part of the target over all parts."""
        assert cloud.parts is not None  # a data set for segmentation has parts
        return F.cross_entropy(logits.float().flatten(0, 1), cloud.parts.flatten(), label_smoothing=label_smoothing)

    def predict(self, logits: Float[Tensor, "batch points parts"], cloud: Cloud) -> Int[Tensor, "batch points"]:
        """The most likely part of those that the category has."""
        allowed = self.parts_of.to(logits.device)[cloud.label].unsqueeze(1)
        return logits.masked_fill(~allowed, -torch.inf).argmax(-1)

    def count(self, logits: Float[Tensor, "batch points parts"], cloud: Cloud) -> Counts:
        """Per category, the number of shapes and the sum of their IoUs; the number of correct and of all points."""
        assert cloud.parts is not None
        assert cloud.label is not None
        predicted, truth = (
            F.one_hot(x, len(self.outputs)).bool() for x in (self.predict(logits, cloud), cloud.parts.long())
        )
        both, either = (predicted & truth).sum(1), (predicted | truth).sum(1)
        iou = torch.where(either > 0, both.double() / either.clamp(min=1), 1.0)
        own = self.parts_of.to(iou.device)[cloud.label]
        of_shape = (iou * own).sum(1) / own.sum(1)
        category = F.one_hot(cloud.label.long(), len(self.parts_of))
        return {
            "iou": (to_fixed_point(of_shape).unsqueeze(1) * category).sum(0),
            "shapes": category.sum(0),
            "right": both.sum(),
            "points": torch.tensor(cloud.parts.numel(), device=iou.device),
        }

    def report(self, counts: Counts) -> dict[str, float]:
        """Means in percent; categories that do not occur have none."""
        iou, shapes = from_fixed_point(counts["iou"]), counts["shapes"].double()
        each = (iou / shapes)[shapes > 0]
        return {
            "instance_miou": 100 * (iou.sum() / shapes.sum()).item(),
            "category_miou": 100 * each.mean().item(),
            "accuracy": 100 * (counts["right"] / counts["points"]).item(),
        }

    def by_class(self, counts: Counts) -> list[ClassReport]:
        """Mean IoU of each category that occurs."""
        means, shapes = (100 * from_fixed_point(counts["iou"]) / counts["shapes"]).tolist(), counts["shapes"].tolist()
        named = zip(self.categories, shapes, means, strict=bool(self.categories))
        return [ClassReport(name, number, mean) for name, number, mean in named if number]
