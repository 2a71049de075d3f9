"""A short part of `make fuzz`, in a process of its own: it forks one for every case."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.xdist_group("fuzz")
def test_no_damage_is_a_traceback_a_hang_or_silently_wrong():
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, script, "--cases", "120", "--every", "20", "--seed", "1", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed")
