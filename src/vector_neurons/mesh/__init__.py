"""Surfaces: triangle meshes and bare clouds in files, and points on them."""

from .io import Mesh, MeshError, read, write
from .surface import sample, watertight

__all__ = ["Mesh", "MeshError", "read", "sample", "watertight", "write"]
