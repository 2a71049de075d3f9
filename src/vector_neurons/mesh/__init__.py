"""Surfaces: triangle meshes and bare clouds in files, points on them, and meshes of functions."""

from .io import Mesh, MeshError, read, write
from .mise import extract
from .surface import sample, watertight

__all__ = ["Mesh", "MeshError", "extract", "read", "sample", "watertight", "write"]
