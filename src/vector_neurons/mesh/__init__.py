"""Surfaces: triangle meshes and bare clouds in files, points on them, meshes of functions, and how close two are."""

from .compare import Comparison, compare, compare_points, iou, volume_iou
from .io import Mesh, MeshError, read, write
from .mise import extract
from .surface import sample, watertight

__all__ = [
    "Comparison",
    "Mesh",
    "MeshError",
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
