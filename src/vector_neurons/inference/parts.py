"""Parts of a shape: of the points that a network has seen, of all points, and of the faces; written in color."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from .._files import write_file
from ..mesh import Mesh, encode_ply
from ..viz.figures import PALETTE
from .inputs import Sampled

COLORS = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in PALETTE], dtype=np.uint8)


@dataclass(frozen=True)
class Parts:
    """The parts of a shape.

    Args:
        category: of the shape, as it was given.
        names: of the parts.
        cloud: the points that the network has seen, in the units and pose of the source.
        parts: index of the part of each of these points.
        probabilities: of these parts.
        mesh: the source.

    Shape:
        - cloud: `(N, 3)`
        - parts, probabilities: `(N,)`
    """

    category: str
    names: Sequence[str]
    cloud: Float[Tensor, "points 3"]
    parts: Int[Tensor, " points"]
    probabilities: Float[Tensor, " points"]
    mesh: Mesh

    @classmethod
    def of(
        cls,
        sampled: Sampled,
        parts: Int[Tensor, " points"],
        probabilities: Float[Tensor, " points"],
        names: Sequence[str],
        category: str,
    ) -> "Parts":
        """Parts of the points of sampled clouds."""
        cloud = sampled.clouds.flatten(0, 1).double() * sampled.size + sampled.center
        return cls(category, names, cloud, parts, probabilities, sampled.mesh)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k largest parts, and the fraction of points that are in each."""
        share = torch.bincount(self.parts, minlength=len(self.names)).double() / len(self.parts)
        largest = share.argsort(descending=True, stable=True)[:k].tolist()
        return [(self.names[i], share[i].item()) for i in largest if share[i] > 0]

    def at(self, points: Float[Tensor, "n 3"]) -> Int[Tensor, " n"]:
        """The part of other points: that of the nearest point of the cloud."""
        from scipy.spatial import cKDTree  # type: ignore[import-untyped]

        _, index = cKDTree(self.cloud.numpy()).query(points.numpy())
        return self.parts[torch.from_numpy(index)]

    def write(self, path: str | Path) -> None:
        """Write the shape as .ply file in the colors of its parts: all points of a cloud, or vertices and faces."""
        vertices, faces = self.mesh.vertices, self.mesh.faces
        colors = self._colors(self.at(vertices))
        centers = vertices[faces].mean(1)
        content = encode_ply(self.mesh, colors, self._colors(self.at(centers)) if len(faces) else None)
        write_file(Path(path), content)

    def _colors(self, parts: Int[Tensor, " n"]) -> NDArray[np.uint8]:
        # Numbered within the shape, so that its parts differ in color.
        present = torch.unique(self.parts)
        return COLORS[torch.searchsorted(present, parts).numpy() % len(COLORS)]
