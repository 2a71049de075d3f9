"""`examples/slurm.sh`: a job of two processes that is preempted, queued again, and resumed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import metrics

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
FLAGS = "--size 84 --epochs 60 --points 64 --stored-points 64 --k 8 --batch-size 14 --widths 12 24 --embedding 48"
FLAGS += " --hidden 16 --threads 1"
# What the script needs of SLURM: one node, and a queue that remembers what it was told.
SRUN = '#!/bin/sh\nshift\nexec "$@"\n'
SCONTROL = '#!/bin/sh\n[ "$1" = show ] && echo localhost || echo "$@" >> "$QUEUE"\n'
pytestmark = pytest.mark.xdist_group("two processes")


@pytest.fixture
def environment(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    torchrun = f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "torchrun": torchrun}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "VN_PROCESSES": "2"}
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **slurm, "PATH": path, "QUEUE": str(tmp_path / "queue"), "OMP_NUM_THREADS": "1"}


def test_a_preempted_job_is_queued_again_and_resumes(tmp_path, environment):
    run, log = tmp_path / "run", tmp_path / "log"
    command = ["bash", SCRIPT, run, "classification", *FLAGS.split()]
    with open(log, "w") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        deadline = time.monotonic() + 240
        while not (run / "metrics.jsonl").exists():
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()  # noqa: PT018
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=120) != 0
    assert "stopped by SIGTERM" in log.read_text(), log.read_text()
    assert (tmp_path / "queue").read_text() == "requeue 17\n"
    epochs = len(metrics(run))
    assert 1 <= epochs < 60
    # As sbatch would: the same command. The rest of the epochs is left out, to save time.
    (run / "config.json").write_text(
        (run / "config.json").read_text().replace('"epochs": 60', f'"epochs": {epochs + 1}')
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert [line["epoch"] for line in metrics(run)] == list(range(1, epochs + 2))
    assert (tmp_path / "queue").read_text() == "requeue 17\n"  # a job that has ended is not queued again
