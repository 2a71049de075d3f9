"""What a network is trained for: a loss, counts that can be added over batches and processes, and a report of them."""

from .classification import Classification
from .reconstruction import Reconstruction, reconstruct
from .segmentation import Segmentation
from .task import ClassReport, Counts, Task, add

__all__ = ["ClassReport", "Classification", "Counts", "Reconstruction", "Segmentation", "Task", "add", "reconstruct"]
