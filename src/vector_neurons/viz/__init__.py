"""Figures of clouds and confusion matrices, and HTML pages. Heavy packages are imported when they are needed."""

from .figures import confusion, gallery
from .page import Page

__all__ = ["Page", "confusion", "gallery"]
