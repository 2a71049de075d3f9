"""An extension of griffe: doctests in docstrings become examples, which the site shows as code."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?:^|(?<=\n))(>>> (?:.+\n?)+)")


class Doctests(griffe.Extension):
    """Give every doctest the heading that Google's style has for it."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None and "Examples:" not in obj.docstring.value:
            indented = re.compile(r"^(?=.)", re.MULTILINE)
            obj.docstring.value = DOCTEST.sub(
                lambda found: "Examples:\n" + indented.sub("    ", found[1]), obj.docstring.value
            )
