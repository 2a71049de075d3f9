"""Code in a process of its own, soon: each is a copy of one that has loaded torch, and nothing of this library."""

import multiprocessing
import os
import tempfile
import textwrap
from pathlib import Path

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch"])


def python(code, **environment):
    """Run code; give its exit code and the two streams."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("out", "err")]
        process = PROCESSES.Process(target=_run, args=(textwrap.dedent(code), os.environ | environment, streams))
        process.start()
        process.join()
        return process.exitcode, *(stream.read_text() for stream in streams)


def _run(code, environment, streams):
    os.environ.clear()  # it is of when the first of them was started
    os.environ.update(environment)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    exec(code, {"__name__": "__main__"})
