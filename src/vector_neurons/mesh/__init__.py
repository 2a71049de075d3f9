"""Surfaces: triangle meshes and bare clouds in files, points on them, meshes of functions, and how close two are."""

from .compare import Comparison, compare, compare_points, iou, volume_iou
from .io import read
from .mesh import Mesh, MeshError, MeshWarning, UnreadableError
from .mise import extract
from .surface import sample, watertight
from .writing import write

__all__ = [
    "Comparison",
    "Mesh",
    "MeshError",
    "MeshWarning",
    "UnreadableError",
    "compare",
    "compare_points",
    "extract",
    "iou",
    "read",
    "sample",
    "volume_iou",
    "watertight",
    "write",
]
