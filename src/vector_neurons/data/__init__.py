"""Data sets of point clouds: procedural shapes, published sets, your own files. All are z-up, and never rotated."""

from . import augment, shapes
from .cloud import Cloud, Dataset
from .folder import Folder
from .modelnet40 import ModelNet40
from .occupancy import Occupancy
from .pack import DataError
from .pack_dataset import PackDataset
from .shapenet_part import ShapeNetPart
from .shapes import Shapes

__all__ = [
    "Cloud",
    "DataError",
    "Dataset",
    "Folder",
    "ModelNet40",
    "Occupancy",
    "PackDataset",
    "ShapeNetPart",
    "Shapes",
    "augment",
    "shapes",
]
