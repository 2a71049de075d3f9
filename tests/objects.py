"""Meshes that trimesh makes: of kinds that ModelNet40 has, and of one that it has not."""

from typing import Any

import trimesh


def load(path) -> Any:
    """A mesh or a cloud, as trimesh reads it."""
    return trimesh.load(path, process=False)


def boxes(*sizes_and_centers):
    move = trimesh.transformations.translation_matrix
    return trimesh.util.concatenate([trimesh.creation.box(size, move(at)) for size, at in sizes_and_centers])


def legs(x, y, height, width):
    return [((width, width, height), (a, b, height / 2)) for a in (-x, x) for b in (-y, y)]


def known():
    shelves = [((1, 0.3, 0.03), (0, 0, z)) for z in (0.05, 0.5, 0.95, 1.4, 1.95)]
    bottle = [(0, 0), (0.35, 0), (0.36, 0.1), (0.36, 1.2), (0.3, 1.4), (0.12, 1.6), (0.12, 2), (0, 2)]
    bowl = [(0, 0), (0.3, 0.02), (0.7, 0.25), (1, 0.7), (0.97, 0.72), (0.67, 0.3), (0.28, 0.07), (0, 0.06)]
    back = ((0.5, 0.05, 0.5), (0, 0.22, 0.72))
    return {
        "table": boxes(((1.6, 1, 0.06), (0, 0, 0.73)), *legs(0.7, 0.4, 0.7, 0.06)),
        "chair": boxes(((0.5, 0.5, 0.05), (0, 0, 0.45)), back, *legs(0.22, 0.22, 0.45, 0.04)),
        "bottle": trimesh.creation.revolve(bottle),
        "bowl": trimesh.creation.revolve(bowl),
        "bookshelf": boxes(((0.04, 0.3, 2), (-0.5, 0, 1)), ((0.04, 0.3, 2), (0.5, 0, 1)), *shelves),
    }


def jack():
    """Three crossed bars."""
    return boxes(((1, 0.1, 0.1), (0, 0, 0)), ((0.1, 0.1, 1), (0, 0, 0)), ((0.1, 1, 0.1), (0, 0, 0)))
