"""SIGTERM and SIGINT: noted, so that a checkpoint can be written before a run ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def noted() -> Iterator[list[int]]:
    """Note SIGTERM and SIGINT instead of dying of them; the second one kills."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for again in before:
            signal.signal(again, signal.SIG_DFL)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    except ValueError:
        pass  # not the main thread: whoever runs it sees to signals
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
