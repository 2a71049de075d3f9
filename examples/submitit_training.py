"""Train through submitit, and resume after every preemption or time limit: a Slurm job, or a process where no Slurm is.

python examples/submitit_training.py runs/NAME classification --data shapes --epochs 20 --device cuda
"""

import os
import subprocess
import sys
from pathlib import Path
from signal import SIG_IGN, SIGUSR2, signal

import submitit


class Training:
    """`vn train` on the GPUs of one machine; submitit calls `checkpoint` before the end and queues what it returns."""

    def __init__(self, run: Path, flags: list[str]) -> None:
        self.run, self.flags = run.absolute(), flags

    def __call__(self) -> None:
        """Start or resume, and wait: not by `Popen.wait`, whose lock `checkpoint`, which interrupts it, would need."""
        settings = ["--resume", self.run] if (self.run / "config.json").exists() else [*self.flags, "--out", self.run]
        processes = os.environ.get("VN_PROCESSES", "gpu")
        launch = f"-m torch.distributed.run --standalone --nproc-per-node {processes} -m vector_neurons train".split()
        # Slurm sends submitit's signal to all processes of the job: it must not end the training without a checkpoint.
        self.job = subprocess.Popen([sys.executable, *launch, *settings], preexec_fn=lambda: signal(SIGUSR2, SIG_IGN))
        if code := os.waitstatus_to_exitcode(os.waitpid(self.job.pid, 0)[1]):
            raise RuntimeError(f"vn train ended with exit code {code}, see above")

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Stop `vn train`, which writes a checkpoint, and queue what resumes it."""
        self.job.terminate()
        self.job.wait()
        return submitit.helpers.DelayedSubmission(Training(self.run, self.flags))


executor = submitit.AutoExecutor("submitit", slurm_max_num_timeout=100)
executor.update_parameters(timeout_min=12 * 60, gpus_per_node=4, cpus_per_task=16, slurm_signal_delay_s=300)
print("job", executor.submit(Training(Path(sys.argv[1]), sys.argv[2:])).job_id)
