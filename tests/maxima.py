"""Arguments of the operators of maxima, for the tests of kernels."""

import torch

import vector_neurons as vn

B, N, K, C = 2, 9, 4, 5
operators = torch.ops.vector_neurons


def draw(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def arguments():
    projected, neighbors, sign = draw(B, N, 2 * C), vn.knn(draw(B, N, 3), K), draw(C)
    center = draw(C)
    found, centered = (operators.edge_max(projected, neighbors, sign, about) for about in (None, center))
    moments = found[3]
    norm = torch.stack([sign, draw(C), moments[0], 1 / moments[1]])
    return {
        "edge_max": (projected, neighbors, sign, None),
        "edge_max-center": (projected, neighbors, sign, center),
        "edge_norm": (projected, neighbors, *found, norm, 0.2, B * N * K),
        "edge_norm-center": (projected, neighbors, *centered, norm, 0.2, 0),
        "max_mean": (draw(B, N, C),),
        "product_argmax": (draw(B, N, 3), draw(3, C), sign),
    }
