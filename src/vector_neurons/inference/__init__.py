"""Trained networks on files: classes and parts, similar shapes, alignment."""

from .align import Alignment, align
from .inputs import Sampled, read_cloud, read_mesh, sample_clouds
from .parts import Parts
from .predict import PredictError, Prediction, pose_spread, predict, predict_each
from .retrieval import Index, Match, RetrievalError, embed, embed_each, load_index, similar

__all__ = [
    "Alignment",
    "Index",
    "Match",
    "Parts",
    "PredictError",
    "Prediction",
    "RetrievalError",
    "Sampled",
    "align",
    "embed",
    "embed_each",
    "load_index",
    "pose_spread",
    "predict",
    "predict_each",
    "read_cloud",
    "read_mesh",
    "sample_clouds",
    "similar",
]
