"""Trained networks in use: classes, parts, similar shapes and alignment of files; pages to turn them in; export."""

from .align import Alignment, align
from .inputs import Sampled, read_cloud, read_mesh, sample_clouds
from .parts import Parts
from .predict import PredictError, Prediction, pose_spread, predict, predict_each
from .retrieval import Index, Match, RetrievalError, embed, embed_each, load_index, similar
from .view import answer, pose_grid, view

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
    "answer",
    "embed",
    "embed_each",
    "load_index",
    "pose_grid",
    "pose_spread",
    "predict",
    "predict_each",
    "read_cloud",
    "read_mesh",
    "sample_clouds",
    "similar",
    "view",
]
