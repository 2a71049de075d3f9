"""Progress of work on many shapes, or in many poses."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Progress = Callable[[int, int], None]  # called with the number of shapes or poses that are done, and their total


def progress_of(shown: bool = True, verb: str = "read", unit: str = "shapes") -> AbstractContextManager[Progress]:
    """Show a progress bar on a terminal; elsewhere print a line for every tenth of the work. Nothing if not `shown`."""
    if not shown:
        return nullcontext(lambda done, total: None)
    if sys.stderr.isatty():
        return _Bar(unit)
    last = [-1]

    def line(done: int, total: int) -> None:
        tenth = 10 * done // total
        if tenth > last[0] and total:
            last[0] = tenth
            print(f"{verb} {done:,} of {total:,} {unit}", file=sys.stderr)

    return nullcontext(line)


class _Bar(AbstractContextManager[Progress]):
    def __init__(self, unit: str) -> None:
        self.unit = unit

    def __enter__(self) -> Progress:
        from tqdm import tqdm

        self.bar = tqdm(unit=f" {self.unit}")

        def show(done: int, total: int) -> None:
            self.bar.total = total
            self.bar.update(done - self.bar.n)

        return show

    def __exit__(self, *_: object) -> None:
        self.bar.close()
