"""The class `Mesh`, its errors, and its validity check."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

FILE_MAX_BYTES = 2**28  # of one mesh or cloud: parsed, it takes a few times as much memory
ARRAYS_MAX_BYTES = 2**29  # of the arrays of one mesh or cloud, in memory


class MeshError(ValueError):
    """A file or a mesh that cannot be used; the message is one line."""


class UnreadableError(MeshError, OSError):
    """A file that the system does not give (permission denied, too many open files); it may be undamaged."""


class MeshWarning(UserWarning):
    """A file that was read in part: columns that are not used, points that were dropped."""


@dataclass(frozen=True)
class Mesh:
    """A triangle mesh, or a point cloud if there are no faces.

    Args:
        vertices: coordinates.
        faces: indices of the three vertices of each triangle; `(0, 3)` for a cloud.
        normals: unit normals of the vertices, or None.
        confidence: how sure a reconstruction is of each vertex, between 0 and 1, or None.

    Shape:
        - vertices: `(vertices, 3)`
        - faces: `(faces, 3)`
        - normals: `(vertices, 3)`
        - confidence: `(vertices,)`

    >>> Mesh(torch.rand(5, 3), torch.empty(0, 3, dtype=torch.int64)).is_cloud
    True
    """

    vertices: Float[Tensor, "vertices 3"]
    faces: Int[Tensor, "faces 3"]
    normals: Float[Tensor, "vertices 3"] | None = None
    confidence: Float[Tensor, " vertices"] | None = None

    @property
    def is_cloud(self) -> bool:
        """Whether the mesh has no faces."""
        return len(self.faces) == 0


def describe_nonfinite(points: Float[Tensor, "points dim"]) -> str | None:
    """Say how many points have NaN or infinite coordinates; None if all are finite.

    >>> describe_nonfinite(torch.tensor([[0.0, torch.nan], [1.0, 2.0]]))
    '1 of 2 points have coordinates that are NaN or infinite'
    """
    bad = int((~torch.isfinite(points)).any(-1).sum())
    return f"{bad:,} of {len(points):,} points have coordinates that are NaN or infinite" if bad else None


def check_mesh(mesh: Mesh) -> None:
    """Raise `MeshError` for a mesh without points, with NaN or infinite coordinates, or with invalid face indices."""
    if len(mesh.vertices) == 0:
        raise MeshError("it has no points")
    remedy = ": leave them out with drop_nan=True, or --drop-nan" if mesh.is_cloud else ""
    if nonfinite := describe_nonfinite(mesh.vertices):
        raise MeshError(f"{nonfinite}{remedy}")
    if mesh.normals is not None and not mesh.normals.isfinite().all():
        raise MeshError(f"some of its normals are NaN or infinite{remedy}")
    if len(mesh.faces) and not 0 <= int(mesh.faces.min()) <= int(mesh.faces.max()) < len(mesh.vertices):
        raise MeshError("it is damaged, its faces name vertices that do not exist")
