"""Networks, each written once for vector and scalar neurons."""

from .base import Encoding, Model
from .calibration import Calibration
from .canonicalize import Canonicalize, CanonicalPose, PoseEncoder
from .dgcnn import DGCNN, DGCNNSegmenter
from .hierarchy import FrameNet, FrameNetSegmenter
from .inputs import Inputs
from .local_occupancy import FrameNetOccupancy
from .occupancy import OccupancyModel, OccupancyNetwork
from .options import LayerOptions
from .pointnet import PointNet, PointNetSegmenter
from .transformer import VNTransformer

MODELS: dict[str, type[Model]] = {
    model.__name__: model
    for model in (
        PointNet,
        PointNetSegmenter,
        DGCNN,
        DGCNNSegmenter,
        VNTransformer,
        FrameNet,
        FrameNetSegmenter,
        OccupancyNetwork,
        FrameNetOccupancy,
    )
}

from . import reference, store  # noqa: E402 - they use MODELS
from .metadata import Metadata  # noqa: E402

__all__ = [
    "DGCNN",
    "MODELS",
    "Calibration",
    "CanonicalPose",
    "Canonicalize",
    "DGCNNSegmenter",
    "Encoding",
    "FrameNet",
    "FrameNetOccupancy",
    "FrameNetSegmenter",
    "Inputs",
    "LayerOptions",
    "Metadata",
    "Model",
    "OccupancyModel",
    "OccupancyNetwork",
    "PointNet",
    "PointNetSegmenter",
    "PoseEncoder",
    "VNTransformer",
    "reference",
    "store",
]
