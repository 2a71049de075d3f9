"""Data: shapes from the box, the public sets, your own files. Every set is delivered z-up and never turned."""

from .cloud import Cloud, Dataset

__all__ = ["Cloud", "Dataset"]
