"""Triangle meshes and point clouds in files, surface sampling, iso-surface extraction, and metrics between surfaces."""

from .compare import Comparison, compare, compare_points, iou, volume_iou
from .io import read
from .mesh import Mesh, MeshError, MeshWarning, UnreadableError, check_mesh, describe_nonfinite
from .mise import extract
from .surface import sample, watertight
from .writing import Written, colored_ply, write

__all__ = [
    "Comparison",
    "Mesh",
    "MeshError",
    "MeshWarning",
    "UnreadableError",
    "Written",
    "check_mesh",
    "colored_ply",
    "compare",
    "compare_points",
    "describe_nonfinite",
    "extract",
    "iou",
    "read",
    "sample",
    "volume_iou",
    "watertight",
    "write",
]
