"""Trained networks on files: what `vn.predict` and `vn predict` call."""

from .inputs import Sampled, read_cloud, read_mesh, sample_clouds
from .parts import Parts
from .predict import PredictError, Prediction, pose_spread, predict, predict_each

__all__ = [
    "Parts",
    "PredictError",
    "Prediction",
    "Sampled",
    "pose_spread",
    "predict",
    "predict_each",
    "read_cloud",
    "read_mesh",
    "sample_clouds",
]
