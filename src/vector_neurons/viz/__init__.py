"""Pictures of clouds. Heavy packages are imported where they are used; one that is missing is named in one line."""

from . import page, stills

__all__ = ["page", "stills"]
