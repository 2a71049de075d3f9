"""Trained networks on files: what `vn predict` and `vn view` call."""

from .inputs import Sampled, read_cloud, read_mesh, sample_clouds
from .parts import Parts
from .predict import PredictError, Prediction, pose_spread, predict, predict_each
from .view import answer, pose_grid, view

__all__ = [
    "Parts",
    "PredictError",
    "Prediction",
    "Sampled",
    "answer",
    "pose_grid",
    "pose_spread",
    "predict",
    "predict_each",
    "read_cloud",
    "read_mesh",
    "sample_clouds",
    "view",
]
