"""What a file of triangles or points holds, and what is refused of it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


class MeshError(ValueError):
    """A file or a mesh that cannot be used; the message is one line."""


class UnreadableError(MeshError, OSError):
    """A file that the system does not give (permission denied, too many open files): it may be whole."""


class MeshWarning(UserWarning):
    """A file that was read in part: columns that are not used, points that were dropped."""


@dataclass(frozen=True)
class Mesh:
    """Triangles, or a bare cloud when there are no faces. `normals` are what a file gives for the points of a cloud."""

    vertices: Float[Tensor, "vertices 3"]
    faces: Int[Tensor, "faces 3"]
    normals: Float[Tensor, "vertices 3"] | None = None

    @property
    def is_cloud(self) -> bool:
        """Whether there are only points."""
        return len(self.faces) == 0


def check(mesh: Mesh) -> None:
    """Refuse a mesh without points, with coordinates that are no numbers, or with faces that name no vertex."""
    if len(mesh.vertices) == 0:
        raise MeshError("it has no points")
    remedy = ": leave them out with drop_nan=True, or --drop-nan" if mesh.is_cloud else ""
    bad = int((~torch.isfinite(mesh.vertices)).any(-1).sum())
    if bad:
        count = f"{bad:,} of {len(mesh.vertices):,} points"
        raise MeshError(f"{count} have coordinates that are NaN or infinite{remedy}")
    if mesh.normals is not None and not mesh.normals.isfinite().all():
        raise MeshError(f"some of its normals are NaN or infinite{remedy}")
    if len(mesh.faces) and not 0 <= int(mesh.faces.min()) <= int(mesh.faces.max()) < len(mesh.vertices):
        raise MeshError("it is damaged, its faces name vertices that do not exist")
