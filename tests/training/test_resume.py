"""Nothing is lost: whatever stops a run, resuming it is bit-identical to an uninterrupted run."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny import killed_run, metrics, same, tiny

from vector_neurons import _files
from vector_neurons.training import ResumeError, StoppedError, TrainingError, batches, checkpoint, fit, loop


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    fit(tiny(), folder)
    return folder


@pytest.mark.parametrize(("step", "minutes"), [(9, 0.0), (9, 10.0)])
def test_a_killed_run_is_resumed_bit_for_bit(straight, tmp_path, step, minutes):
    """With the checkpoint of the step before, and with that of the epoch before."""
    code, _, err = killed_run(tmp_path / "run", step, checkpoint_minutes=minutes)
    assert code == -signal.SIGKILL, err
    assert len(metrics(tmp_path / "run")) == 1
    fit(tiny(checkpoint_minutes=minutes), tmp_path / "run", resume=True)
    same(straight, tmp_path / "run")


@pytest.mark.parametrize("minutes", [0.0, 10.0])
def test_a_run_killed_with_frozen_norms_is_resumed_bit_for_bit(tmp_path, minutes):
    """In mid-epoch, and at the start of the epoch that takes the statistics of the average."""
    fit(tiny(freeze_norms=0.5), tmp_path / "straight")
    changes = {"freeze_norms": 0.5, "checkpoint_minutes": minutes}
    code, _, err = killed_run(tmp_path / "run", 9, **changes)
    assert code == -signal.SIGKILL, err
    fit(tiny(**changes), tmp_path / "run", resume=True)
    same(tmp_path / "straight", tmp_path / "run")


def interrupt(monkeypatch, step, do):
    """Do something in this step of a run."""
    drawn, original = [], batches.training_batch

    def counting(*arguments):
        drawn.append(arguments)
        cloud = original(*arguments)
        return (do(cloud) or cloud) if len(drawn) == step else cloud

    monkeypatch.setattr(batches, "training_batch", counting)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint(straight, tmp_path, monkeypatch, number):
    with monkeypatch.context() as patch:
        interrupt(patch, 8, lambda cloud: os.kill(os.getpid(), number))
        with pytest.raises(StoppedError, match="--resume") as stop:
            fit(tiny(), tmp_path / "run")
    assert stop.value.number == number
    progress = checkpoint.read(tmp_path / "run" / "last")[1]["progress"]
    assert (progress["epoch"], progress["step"]) == (1, 2)
    fit(tiny(), tmp_path / "run", resume=True)
    same(straight, tmp_path / "run")


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(straight, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt(patch, 10, lambda cloud: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(StoppedError):
            fit(tiny(), tmp_path / "run")
    damage(tmp_path / "run" / "last" / "model.safetensors")
    with pytest.warns(UserWarning, match=r"model.safetensors changed.*resuming from .*last\.previous"):
        fit(tiny(), tmp_path / "run", resume=True)
    same(straight, tmp_path / "run")


@pytest.mark.parametrize("hurt", ["flip weights", "flip state", "cut state", "no checksums", "gone"])
def test_damage_of_any_kind_is_noticed(straight, tmp_path, hurt):
    shutil.copytree(straight, tmp_path / "run")
    last = tmp_path / "run" / "last"
    if hurt.startswith("flip"):
        damage(last / ("model.safetensors" if hurt == "flip weights" else "state.pt"))
    elif hurt == "cut state":
        (last / "state.pt").write_bytes((last / "state.pt").read_bytes()[:100])
    elif hurt == "no checksums":
        (last / "checksums.json").unlink()
    else:
        last.rename(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match=r"resuming from .*last\.previous"):
        assert checkpoint.read(last)[1]["progress"]["epoch"] == 1


def test_a_checkpoint_that_was_renamed_half_way_is_found(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "run")
    last = tmp_path / "run" / "last"
    last.rename(last.with_name("last.part"))
    with pytest.warns(UserWarning, match=r"resuming from .*last\.part"):
        assert checkpoint.read(last)[1]["progress"]["epoch"] == 2


def test_without_any_checkpoint(tmp_path):
    with pytest.raises(ResumeError, match="no checkpoint"):
        fit(tiny(), tmp_path, resume=True)


def test_a_finished_run_has_nothing_to_do(straight):
    before = metrics(straight)
    assert fit(tiny(), straight, resume=True).epoch == 2
    assert metrics(straight) == before


def poison(cloud):
    return cloud.map(lambda x: x * float("nan") if x.is_floating_point() else x)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_batch(tmp_path, monkeypatch):
    interrupt(monkeypatch, 8, poison)
    with pytest.raises(TrainingError, match=r"step 2 of epoch 2.*--skip-bad-batches"):
        fit(tiny(), tmp_path / "run")
    kept = load_file(tmp_path / "run" / "bad-batch-0.safetensors")
    assert kept["points"].isnan().all()
    assert kept["indices"].shape == kept["label"].shape == (14,)
    checkpoint.verify(tmp_path / "run" / "last")


def test_a_bad_batch_can_be_skipped(tmp_path, monkeypatch):
    interrupt(monkeypatch, 8, poison)
    fit(tiny(skip_bad_batches=True), tmp_path / "run")
    assert [line["skipped"] for line in metrics(tmp_path / "run")] == [0, 1]
    assert all(x.isfinite().all() for x in load_file(tmp_path / "run" / "best" / "model.safetensors").values())


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    original = _files.flush

    def full(path):
        if len(metrics(tmp_path / "run")) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(path)

    monkeypatch.setattr(_files, "flush", full)
    with pytest.raises(TrainingError, match="No space left on device") as stop:
        fit(tiny(), tmp_path / "run")
    assert "\n" not in str(stop.value)
    assert not list((tmp_path / "run").glob("*.part"))
    monkeypatch.undo()
    assert checkpoint.read(tmp_path / "run" / "last")[1]["progress"]["epoch"] == 1


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match="cannot write to"):
        fit(tiny(), tmp_path / "file" / "run")
    with pytest.raises(TrainingError, match="cannot write to"):
        fit(tiny(), Path("/proc/run"))


def test_torch_reports_a_write_that_failed_in_its_own_way(tmp_path):
    with pytest.raises(TrainingError, match="cannot write"), loop.write_errors(tmp_path):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed\nat ...")
