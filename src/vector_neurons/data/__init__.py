"""Data: shapes from the box, the public sets, your own files. Every set is delivered z-up and never turned."""

from . import shapes
from .cloud import Cloud, Dataset
from .shapes import Shapes

__all__ = ["Cloud", "Dataset", "Shapes", "shapes"]
