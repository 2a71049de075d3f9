"""The classification task: predict the class of a cloud."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..data import Cloud
from .task import ClassReport, Counts, Task


class Classification(Task):
    """Cross-entropy; `accuracy` over all clouds, `class_accuracy` the mean over classes, both in percent.

    The count is the confusion matrix: `confusion[i, j]` clouds of class i were predicted as j.

    >>> data = vn.data.Shapes("test", size=4, points=64)
    >>> task, cloud = vn.tasks.Classification(data.classes), data.batch(torch.arange(4))
    >>> logits = task.logits(vn.models.PointNet(len(data.classes), k=8, embedding=24).eval(), cloud)
    >>> sorted(task.report(task.count(logits, cloud)))
    ['accuracy', 'class_accuracy']
    """

    name = "classification"
    metric = "accuracy"

    def __init__(self, classes: Sequence[str]) -> None:
        self.outputs = tuple(classes)

    def logits(self, model: nn.Module, cloud: Cloud) -> Float[Tensor, "batch classes"]:
        """Logits of a batch."""
        logits: Tensor = model(cloud.points)
        return logits

    def loss(
        self, logits: Float[Tensor, "batch classes"], cloud: Cloud, label_smoothing: float = 0.0
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy; label smoothing spreads a part of the target over all classes."""
        assert cloud.label is not None  # a data set for classification has labels
        return F.cross_entropy(logits.float(), cloud.label, label_smoothing=label_smoothing)

    def count(self, logits: Float[Tensor, "batch classes"], cloud: Cloud) -> Counts:
        """The confusion matrix of a batch."""
        assert cloud.label is not None
        classes = len(self.outputs)
        pairs = cloud.label * classes + logits.argmax(-1)
        return {"confusion": torch.bincount(pairs, minlength=classes**2).view(classes, classes)}

    def report(self, counts: Counts) -> dict[str, float]:
        """Accuracies in percent; classes that do not occur have none."""
        confusion = counts["confusion"].double()
        right, number = confusion.diagonal(), confusion.sum(1)
        each = (right / number)[number > 0]
        return {
            "accuracy": 100 * (right.sum() / number.sum()).item(),
            "class_accuracy": 100 * each.mean().item(),
        }

    def by_class(self, counts: Counts) -> list[ClassReport]:
        """Accuracy of each class that occurs, and the classes it is most often mistaken for."""
        reports = []
        for label, row in enumerate(counts["confusion"].tolist()):
            others = sorted((-count, self.outputs[i]) for i, count in enumerate(row) if count and i != label)
            mistakes = ", ".join(f"{name} {-count}" for count, name in others[:3])
            if total := sum(row):
                reports.append(ClassReport(self.outputs[label], total, 100 * row[label] / total, mistakes))
        return reports
