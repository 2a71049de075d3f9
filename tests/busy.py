"""A file system that fails."""

import os
import time
from pathlib import Path


def failing(monkeypatch, hits, number, times, method="open"):
    """So many times the system does not give the files that `hits` chooses; gives the list of its calls."""
    calls, original = [], getattr(Path, method)

    def fail(self, *arguments, **options):
        if hits(self):
            calls.append(self)
            if len(calls) <= times:
                raise OSError(number, os.strerror(number), str(self))
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, method, fail)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return calls
