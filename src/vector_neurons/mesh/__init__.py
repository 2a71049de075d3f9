"""Surfaces: triangle meshes and bare clouds in files, points on them, meshes of functions, and how close two are."""

from .compare import Comparison, compare, compare_points, iou, volume_iou
from .io import read, write
from .mesh import Mesh, MeshError, MeshWarning, UnreadableError
from .mise import extract
from .precision import save
from .surface import sample, watertight

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
    "save",
    "volume_iou",
    "watertight",
    "write",
]
