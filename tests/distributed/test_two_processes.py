"""Two processes are one: the same losses, the same numbers. A process that dies leaves a good checkpoint."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import metrics, tiny
from torch.nn import functional as F

from vector_neurons import kernels
from vector_neurons.training import batches, checkpoint, factory, fit, read_config, results

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HERE = str(Path(__file__).parents[1])
pytestmark = pytest.mark.xdist_group("two processes")  # one job for several tests


def together(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*TORCHRUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


# Plain descent: AdamW's first steps have the sign of a gradient, be it as small as a rounding error.
FLAGS = "--size 84 --epochs 1 --points 64 --stored-points 64 --k 8 --batch-size 14 --widths 12 24 --embedding 48"
FLAGS += " --hidden 16 --dropout 0 --optimizer sgd --lr 0.01 --ema 0.9 --threads 1"


def test_two_processes_have_the_losses_and_numbers_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    arguments = ["-m", "vector_neurons", "train", "classification", *FLAGS.split(), "--out", two]
    done = together(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rotations") == done.stderr.count("epoch 1/1") == 1  # one of them prints
    fit(read_config(two), one)
    tested_by_two, tested_by_one = results.read(two), results.measure(two, ["z", "SO3"], save=True).reports
    ((a,), (b,)) = metrics(one), metrics(two)
    for part in ("train", "val"):
        assert b[part]["loss"] == pytest.approx(a[part]["loss"], abs=1e-5)
    assert tested_by_two == tested_by_one  # to the last bit


def gradients(group=None):
    """Gradients and running statistics of every kind of network after two batches, on every body, in float64."""
    found = {}
    for body in kernels.available():
        for name, neurons in (("dgcnn", "vector"), ("dgcnn", "scalar"), ("framenet", "vector")):
            width = {"widths": None, "embedding": 16, "hidden": (16,)} if name == "framenet" else {}
            config = tiny(model=name, neurons=neurons, dropout=0.0, **width)
            data = factory.open_dataset(config.data, "train")
            model = factory.build_network(config, data).double()
            for start in (0, 14):
                indices = torch.arange(start, start + 14)
                indices = indices if group is None else group.shard(indices)
                cloud = batches.training_batch(data, indices, config, 0).to(torch.float64)
                model.zero_grad()
                with kernels.using(body):
                    F.cross_entropy(model(cloud.points), cloud.label).backward()
                if group is not None:
                    group.average_gradients(model)
            tensors = [p.grad for p in model.parameters()] + [b.double() for b in model.buffers()]
            found[f"{body} {name} {neurons}"] = torch.cat([x.flatten() for x in tensors])
    return found


SCRIPT = """
import os, signal, sys
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from pathlib import Path
from test_two_processes import gradients
from tiny import tiny
from vector_neurons.training import fit, loop, process_group
folder, steps, train_step = Path({folder!r}), 0, loop.Trainer.train_step
def counting(*arguments):
    global steps
    steps += 1
    if steps == 8 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    train_step(*arguments)
loop.Trainer.train_step = counting
with process_group() as group:
    found = gradients(group)
    if group.is_main:
        torch.save(found, folder / "gradients.pt")
    fit(tiny(), folder / "run", group)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Two processes that find gradients and then train, until one of them is killed."""
    folder = tmp_path_factory.mktemp("job")
    paths = [HERE, str(Path(__file__).parent)]
    (folder / "script.py").write_text(SCRIPT.format(paths=paths, folder=str(folder)))
    return folder, together(folder / "script.py")


def test_gradients_are_those_of_the_whole_batch(job):
    folder, done = job
    assert (folder / "gradients.pt").exists(), done.stderr
    two, one = torch.load(folder / "gradients.pt"), gradients()
    assert two.keys() == one.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-10, rtol=1e-8, msg=name)


def test_a_killed_worker_ends_the_job_with_a_good_checkpoint(job):
    folder, done = job
    assert done.returncode != 0
    assert signal.Signals(9).name in done.stderr
    run = folder / "run"
    assert checkpoint.read(run / "last")[1]["progress"]["epoch"] == 1
    fit(read_config(run), run, resume=True)  # by one process, too
    assert len(metrics(run)) == 2


LONELY = """
import os, signal, sys
from vector_neurons import cli
from vector_neurons.training import loop
train_step = loop.Trainer.train_step
def killed(*arguments):
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    train_step(*arguments)
loop.Trainer.train_step = killed
cli.main()
"""


def test_the_survivor_of_a_killed_process_says_so_in_one_line(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LONELY, "train", "classification", *FLAGS.split(), "--out", str(tmp_path / "run")]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    survivor, killed = (process.communicate(timeout=120)[1] for process in ranks)
    assert ranks[1].returncode == -signal.SIGKILL, killed
    assert ranks[0].returncode == 2, survivor
    assert survivor.splitlines()[-1].startswith("vn train: another process of this training has ended")
    assert "Traceback" not in survivor


def test_a_batch_that_cannot_be_shared_is_refused_before_any_work(tmp_path, monkeypatch, vn_command):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = vn_command("train", "classification", *FLAGS.split(), "--batch-size", 15, "--out", tmp_path / "run")
    assert code == 2
    assert "cannot be shared by 2 processes" in err
    assert not (tmp_path / "run").exists()
