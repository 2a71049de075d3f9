"""An inside test that shares nothing with winding numbers: count the triangles above a point, in a turned frame."""

import numpy as np


def inside(points, vertices, faces, seed=0, block=500):
    """Odd number of crossings of a ray in a random direction; points, vertices (n, 3), faces (m, 3) NumPy arrays."""
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    points, corners = points @ turn, (vertices @ turn)[faces]
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]

    def side(p, q, x, y):  # twice the signed area of the triangle p, q, (x, y), seen along the ray
        return (q[:, 0] - p[:, 0]) * (y - p[:, 1]) - (q[:, 1] - p[:, 1]) * (x - p[:, 0])

    odd = []
    for start in range(0, len(points), block):
        x, y, z = (points[start : start + block, i, None] for i in range(3))
        u, v, w = side(b, c, x, y), side(c, a, x, y), side(a, b, x, y)
        under = ((u > 0) & (v > 0) & (w > 0)) | ((u < 0) & (v < 0) & (w < 0))
        total = np.where(under, u + v + w, 1)
        height = (u * a[:, 2] + v * b[:, 2] + w * c[:, 2]) / total
        odd.append((under & (height > z)).sum(1) % 2 == 1)
    return np.concatenate(odd)
