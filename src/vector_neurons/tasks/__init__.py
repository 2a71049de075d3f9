"""What a network is trained for: a loss, counts that are summed over batches and processes, and metrics of them."""

from .classification import Classification
from .meshing import EncodedScan, encode_scan, reconstruct
from .reconstruction import Reconstruction
from .segmentation import Segmentation
from .task import ClassReport, Counts, Task, add

__all__ = [
    "ClassReport",
    "Classification",
    "Counts",
    "EncodedScan",
    "Reconstruction",
    "Segmentation",
    "Task",
    "add",
    "encode_scan",
    "reconstruct",
]
