"""SIGTERM and SIGINT are recorded, so that a checkpoint can be written before a run ends."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def recorded() -> Iterator[list[int]]:
    """Record the first SIGTERM or SIGINT instead of exiting; the second one exits."""
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for again in before:
            signal.signal(again, signal.SIG_DFL)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, record)
    except ValueError:
        pass  # not the main thread, which alone receives signals
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
