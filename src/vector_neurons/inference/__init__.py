"""Trained networks in use: on files (`vn.predict`), and exported."""

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
