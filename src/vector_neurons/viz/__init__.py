"""Figures of clouds and confusion matrices, and HTML pages. Heavy packages are imported when they are needed."""

from .figures import confusion, gallery
from .page import Page
from .viewer import Answers, Exhibit, Picture, view_page

__all__ = ["Answers", "Exhibit", "Page", "Picture", "confusion", "gallery", "view_page"]
