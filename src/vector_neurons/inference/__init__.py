"""Trained networks on files: what `vn predict` calls."""

from .inputs import Sampled, read_cloud, read_mesh, sample_clouds

__all__ = ["Sampled", "read_cloud", "read_mesh", "sample_clouds"]
