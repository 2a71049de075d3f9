"""Inside or outside of a mesh, by generalized winding numbers, which also work for meshes with holes and overlaps."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EXACT_FACES = 20_000  # beyond, the sum over all faces is approximated (to some 0.01), as libigl does for triangle soups


def winding_number(
    points: Float[Tensor, "points 3"], vertices: Float[Tensor, "vertices 3"], faces: Int[Tensor, "faces 3"]
) -> Float[Tensor, " points"]:
    """Generalized winding number of a mesh at each point: 1 inside a closed mesh, 0 outside, between the two in holes.

    Computed by libigl, in float64 on the CPU. It is -1 inside a mesh whose faces point inward.

    >>> vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> faces = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    >>> vn.geometry.inside.winding_number(torch.tensor([[0.1, 0.1, 0.1]]), vertices, faces).round().tolist()
    [1.0]
    """
    try:
        import igl
    except ImportError as error:
        raise ImportError("winding numbers need libigl: pip install 'vector-neurons[mesh]'") from error
    mesh = vertices.detach().double().cpu().numpy(), faces.long().cpu().numpy()
    queries = points.detach().double().cpu().numpy()
    number = igl.winding_number if len(faces) <= EXACT_FACES else igl.fast_winding_number
    return torch.from_numpy(number(*mesh, queries)).to(points)


def inside(
    points: Float[Tensor, "points 3"], vertices: Float[Tensor, "vertices 3"], faces: Int[Tensor, "faces 3"]
) -> Bool[Tensor, " points"]:
    """Whether each point is inside a mesh: the winding number is above 1/2, or below -1/2 for inside-out meshes.

    >>> vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    >>> faces = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    >>> vn.geometry.inside.inside(torch.tensor([[0.1, 0.1, 0.1], [1.0, 1.0, 1.0]]), vertices, faces).tolist()
    [True, False]
    """
    return winding_number(points, vertices, faces).abs() > 0.5


__all__ = ["inside", "winding_number"]
