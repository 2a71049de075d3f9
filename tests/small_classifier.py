"""A small classifier with random weights, which rotates its features as a trained one does, and a shape for it."""

import torch
import trimesh

from vector_neurons.models import FrameNet, store

CLASSES = ("bracket", "cup", "plate")


def small_classifier(seed=0, **options):
    """In evaluation mode, for clouds of 512 points."""
    torch.manual_seed(seed)
    model = FrameNet(len(CLASSES), k=8, width=16, hidden=32, **options).eval()
    model.metadata = store.Metadata(classes=CLASSES, points=512)
    return model


def bracket():
    """Three boxes, as trimesh makes them, in an arrangement that only the identity maps to itself."""
    places = {(4, 1, 0.5): (0, 0, 0), (0.5, 1, 2): (1.75, 0, 1.2), (1, 0.4, 0.8): (-1.2, 0.3, 0.6)}
    return trimesh.util.concatenate(
        [trimesh.creation.box(size).apply_translation(center) for size, center in places.items()]
    )
