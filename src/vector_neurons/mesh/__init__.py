"""Triangle meshes and point clouds in files, surface sampling, iso-surface extraction, and metrics between surfaces."""

from .compare import Comparison, compare, compare_points, iou, volume_iou
from .inspection import Quality, bodies, genus, largest_body, quality
from .io import read
from .mesh import Mesh, MeshError, MeshWarning, UnreadableError, check_mesh, describe_nonfinite
from .mise import extract
from .surface import sample, vertex_normals, watertight
from .writing import Written, encode_ply, write

__all__ = [
    "Comparison",
    "Mesh",
    "MeshError",
    "MeshWarning",
    "Quality",
    "UnreadableError",
    "Written",
    "bodies",
    "check_mesh",
    "compare",
    "compare_points",
    "describe_nonfinite",
    "encode_ply",
    "extract",
    "genus",
    "iou",
    "largest_body",
    "quality",
    "read",
    "sample",
    "vertex_normals",
    "volume_iou",
    "watertight",
    "write",
]
