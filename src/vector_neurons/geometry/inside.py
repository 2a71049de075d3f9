"""Inside or outside: generalised winding numbers, which give an answer for meshes with holes and overlaps as well."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

EXACT_FACES = 20_000  # beyond, the sum over all faces is approximated (to some 0.01), as libigl does for triangle soups


def winding_number(
    points: Float[Tensor, "points 3"], vertices: Float[Tensor, "vertices 3"], faces: Int[Tensor, "faces 3"]
) -> Float[Tensor, " points"]:
    """How often a surface goes around each point: 1 inside a closed mesh, 0 outside, something between in its holes.

    Computed by libigl, in float64 on the CPU. It is -1 inside a mesh whose faces look inwards.
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
    """Whether the surface goes around a point more than half, in either sense: inside-out meshes have an inside too."""
    return winding_number(points, vertices, faces).abs() > 0.5
