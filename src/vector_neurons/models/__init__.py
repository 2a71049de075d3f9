"""Networks, each written once for vector and scalar neurons."""

from .base import Encoding, Inputs, LayerOptions, Model
from .dgcnn import DGCNN, DGCNNSegmenter
from .occupancy import OccupancyNetwork
from .pointnet import PointNet, PointNetSegmenter
from .transformer import VNTransformer

MODELS: dict[str, type[Model]] = {
    model.__name__: model
    for model in (PointNet, PointNetSegmenter, DGCNN, DGCNNSegmenter, VNTransformer, OccupancyNetwork)
}

__all__ = [
    "DGCNN",
    "MODELS",
    "DGCNNSegmenter",
    "Encoding",
    "Inputs",
    "LayerOptions",
    "Model",
    "OccupancyNetwork",
    "PointNet",
    "PointNetSegmenter",
    "VNTransformer",
]
