"""Data: shapes from the box, the public sets, your own files. Every set is delivered z-up and never turned."""

from . import augment, shapes
from .cloud import Cloud, Dataset
from .folder import Folder
from .modelnet40 import ModelNet40
from .occupancy import Occupancy
from .pack import DataError
from .shapenet_part import ShapeNetPart
from .shapes import Shapes

__all__ = [
    "Cloud",
    "DataError",
    "Dataset",
    "Folder",
    "ModelNet40",
    "Occupancy",
    "ShapeNetPart",
    "Shapes",
    "augment",
    "shapes",
]
