"""Run one command in a process of its own, and tell a clean refusal from a traceback, a hang or a flood of memory.

Processes are forked from one that has imported everything, so that a case takes milliseconds. It must not have started
threads: run this from a script, not from inside another test process.
"""

import contextlib
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60  # after which a case hangs
MEMORY_KB = 2 * 2**20  # of a case at most
ADDRESS_SPACE = 6 * 2**30  # beyond what is mapped already: the machine must survive a case that fails
CRASH = 137


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    code: int
    out: str
    err: str
    seconds: float
    memory_kb: int

    @property
    def trouble(self) -> str:
        """What must never be, or nothing."""
        if self.code == -signal.SIGALRM:
            return f"hangs: more than {SECONDS} s"
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        if self.memory_kb > MEMORY_KB:
            return f"{self.memory_kb / 2**20:.1f} GB of memory"
        if "Traceback" in self.err:
            return f"traceback: {self.err.strip().splitlines()[-1][:200]}"
        if self.code not in (0, 1, 2, CRASH):
            return f"exit code {self.code}"
        if self.code == 2 and not self.err.strip():
            return "refused without a word"
        return ""


def run(function: Callable[[], object], folder: Path, limit: Callable[[], None] = lambda: None) -> Outcome:
    """Call a function in a new process in this folder, under a limit of its own."""
    streams = [os.pipe() for _ in range(2)]
    started, child = time.monotonic(), os.fork()
    if child == 0:
        _be_the_child(function, folder, limit, [write for _, write in streams])
    for _, write in streams:
        os.close(write)
    texts = _read_all([read for read, _ in streams])
    if time.monotonic() - started > SECONDS + 5:  # something that it started holds on
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return Outcome(code, *texts, time.monotonic() - started, used.ru_maxrss)


def command(*arguments: object) -> Callable[[], None]:
    """`vn ...`, to be run."""

    def call() -> None:
        from vector_neurons import cli

        sys.argv = ["vn", *map(str, arguments)]
        cli.main()

    return call


def _be_the_child(function: Callable[[], object], folder: Path, limit: Callable[[], None], streams: list[int]) -> None:
    code = 0
    try:
        os.setsid()  # what it starts ends with it
        os.chdir(folder)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE,) * 2)
        limit()
        function()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except BaseException:
        traceback.print_exc()
        code = 3
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _read_all(streams: list[int]) -> list[str]:
    found = dict.fromkeys(streams, b"")
    waiting, deadline = list(streams), time.monotonic() + SECONDS + 10
    while waiting and time.monotonic() < deadline:
        for stream in select.select(waiting, [], [], 1.0)[0]:
            block = os.read(stream, 2**16)
            found[stream] += block[: 2**20 - len(found[stream])]
            if not block:
                waiting.remove(stream)
                os.close(stream)
    return [found[stream].decode(errors="replace") for stream in streams]


WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.truncate", "os.link", "os.symlink")


def at_write(
    number: int | None, act: Callable[[], None], root: Path, seen: Callable[[int], None] = lambda n: None
) -> None:
    """From here on, count what changes files below a folder, and do something just before change `number`."""
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event in WRITES:
            path = arguments[0]
        else:
            return
        if isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(str(root)):  # type: ignore[arg-type]
            return
        count += 1
        seen(count)
        if count == number:
            act()

    sys.addaudithook(hook)


def crash() -> None:
    """End as if the power had gone."""
    os._exit(CRASH)


def no_space() -> None:
    """Fail as a full disk does."""
    import errno

    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def small_files(most: int) -> Callable[[], None]:
    """No file can grow beyond so many bytes: the disk is full in the middle of writing, whoever writes."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    return limit
