"""`examples/submitit_training.py` with submitit's local executor: a job that is preempted and resumes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import metrics

pytest.importorskip("submitit", reason="submitit is not installed: pip install submitit -c constraints.txt")
SCRIPT = Path(__file__).parents[2] / "examples" / "submitit_training.py"
EPOCHS = 20
FLAGS = f"--size 84 --epochs {EPOCHS} --points 64 --stored-points 64 --k 8 --batch-size 14 --widths 12 24"
FLAGS += " --embedding 48 --hidden 16 --threads 1"
pytestmark = pytest.mark.xdist_group("two processes")


def wait_for(file, log):
    deadline = time.monotonic() + 240
    while not list(file.parent.glob(file.name)):
        assert time.monotonic() < deadline, "\n".join(one.read_text() for one in log.glob("*.err"))
        time.sleep(0.05)


def test_a_preempted_job_is_queued_again_and_resumes(tmp_path):
    run, log = tmp_path / "run", tmp_path / "submitit"
    environment = {**os.environ, "VN_PROCESSES": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT, run, "classification", *FLAGS.split()]
    with open(tmp_path / "printed", "w") as output:  # not a pipe, which the local job would keep open
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=output, check=True)
    job = (tmp_path / "printed").read_text().split()[1]
    wait_for(run / "metrics.jsonl", log)
    # The local job is a process that starts the task, and starts it again if it asks for that.
    task = subprocess.check_output(["ps", "-o", "pid=", "--ppid", job], text=True)
    os.kill(int(task), signal.SIGUSR2)
    wait_for(log / "*_result.pkl", log)
    said = "".join(one.read_text() for one in log.glob("*_log.*"))
    assert "stopped by SIGTERM" in said, said
    assert "Requeued job" in said, said
    assert "Job completed successfully" in said, said
    assert [line["epoch"] for line in metrics(run)] == list(range(1, EPOCHS + 1))
    assert (run / "test.json").exists()
