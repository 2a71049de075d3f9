"""Runs that were damaged, moved under other data, or are in use: refused or repaired, never silently wrong."""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import metrics, tiny

from vector_neurons._files import write_checksums
from vector_neurons.data import DataError
from vector_neurons.data.folder import convert
from vector_neurons.data.rows import UPRIGHT
from vector_neurons.training import (
    ConfigError,
    TrainingError,
    check,
    evaluate,
    evaluation,
    factory,
    fit,
    read_config,
    results,
)
from vector_neurons.training.config import (
    DataConfig,
    NetworkConfig,
    ProtocolConfig,
    RecipeConfig,
    RunConfig,
    RuntimeConfig,
)
from vector_neurons.training.log import METRICS, Log, read_metrics

GROUPS = {
    "data": DataConfig,
    "network": NetworkConfig,
    "recipe": RecipeConfig,
    "protocol": ProtocolConfig,
    "runtime": RuntimeConfig,
}


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    fit(tiny(), folder)
    results.measure(folder, ["z"], save=True)
    return folder


@pytest.fixture
def run(straight, tmp_path):
    return shutil.copytree(straight, tmp_path / "run")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of two classes."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(40):
        file = folder / "files" / ("ball" if number % 2 else "stick") / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.random.default_rng(number).normal(size=(80, 3)) * (1, 1, 1 if number % 2 else 9))
    return folder / "files"


def test_other_classes_are_refused_wherever_a_model_meets_data(files, tmp_path):
    source = shutil.copytree(files, tmp_path / "files")
    where = {"data": "folder", "folder": str(source), "data_root": str(tmp_path / "packs"), "size": None}
    fit(tiny(**where, epochs=1), tmp_path / "run")
    results.measure(tmp_path / "run", ["SO3"], save=True)
    before = (tmp_path / "run" / "test.json").read_bytes()
    (source / "ball").rename(source / "zeppelin")  # now the first class is the other one
    with pytest.raises(TrainingError, match=r"other classes.*only the model has ball; only the data has zeppelin"):
        results.measure(tmp_path / "run", ["SO3"], save=True)
    assert (tmp_path / "run" / "test.json").read_bytes() == before
    with pytest.raises(TrainingError, match="only the data has zeppelin"):
        fit(tiny(**where, epochs=2), tmp_path / "run", resume=True)


def test_a_pack_is_taken_by_name_or_path(files, tmp_path):
    made = convert(files, tmp_path / "packs", to="mine")
    where = {"data": "folder", "data_root": str(tmp_path / "packs"), "size": None, "epochs": 1}
    for number, pack in enumerate(("mine", str(made))):
        fit(tiny(**where, pack=pack), tmp_path / f"run{number}")
    assert metrics(tmp_path / "run0") == metrics(tmp_path / "run1")
    with pytest.raises(ConfigError, match="or the --pack"):
        check(tiny(**where, pack="mine", folder=str(files)))
    with pytest.raises(ConfigError, match="--up and --drop-nan"):
        check(tiny(**where, pack="mine", up="y"))


def test_the_axis_that_is_up_is_told(files, tmp_path):
    where = {"data": "folder", "folder": str(files), "data_root": str(tmp_path / "packs"), "size": None}
    upright, lying = (factory.open_dataset(tiny(**where, up=up).data, "train")[0].points for up in ("z", "y"))
    torch.testing.assert_close(upright @ torch.tensor(UPRIGHT["y"], dtype=torch.float32).mT, lying)


def test_a_split_that_would_be_drawn_anew_is_refused(files, tmp_path):
    """With one more file, shapes that were trained on would be tested."""
    source = shutil.copytree(files, tmp_path / "files")
    where = {"data": "folder", "folder": str(source), "data_root": str(tmp_path / "packs"), "size": None, "epochs": 1}
    fit(tiny(**where), tmp_path / "run")
    evaluate(tmp_path / "run", ["SO3"])
    shutil.copy(source / "ball" / "1.npy", source / "ball" / "more.npy")
    with pytest.raises(TrainingError, match="was trained on other files: with them the split is drawn anew"):
        evaluate(tmp_path / "run", ["SO3"])
    with pytest.raises(TrainingError, match="was trained on other files"):
        fit(tiny(**where | {"epochs": 2}), tmp_path / "run", resume=True)


def test_a_pack_that_changed_on_the_disk_is_not_trained_on(files, tmp_path):
    made = convert(files, tmp_path / "packs", to="mine")
    flip(made)
    where = {"data": "folder", "pack": str(made), "size": None, "epochs": 1}
    with pytest.raises(DataError, match="is damaged: its content does not fit its checksum"):
        fit(tiny(**where), tmp_path / "run")


def test_a_model_that_does_not_take_the_clouds_is_one_line(run):
    config = json.loads((run / "best" / "config.json").read_text())
    config["arguments"]["k"] = 100_000
    (run / "best" / "config.json").write_text(json.dumps(config))
    write_checksums(run / "best", ("config.json", "model.safetensors"))
    with pytest.raises(TrainingError, match=r"does not take the clouds of its run: k=100000[^\n]*$"):
        evaluate(run, ["SO3"])


def test_what_differs_between_a_checkpoint_and_its_settings_is_named(run):
    with pytest.raises(ValueError, match=r"last does not fit .*config.json: .* is \(4, 2\), the model has \(5, 2\)$"):
        fit(tiny(widths=(15, 24)), run, resume=True)


def test_files_without_class_folders_are_no_classification(files, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in files.rglob("*.npy"):
        shutil.copy(file, flat)
    where = {"data": "folder", "folder": str(flat), "data_root": str(tmp_path / "packs"), "size": None}
    with pytest.raises(DataError, match="one class only"):
        fit(tiny(**where), tmp_path / "run")


def test_a_run_stopped_before_its_first_checkpoint_starts_again(straight, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(straight / "config.json", run)
    (run / "last.part").mkdir()
    shutil.copy(straight / "last" / "model.safetensors", run / "last.part")  # killed in the middle of it
    fit(tiny(), run, resume=True)
    assert metrics(run) == metrics(straight)


def test_a_run_whose_checkpoints_are_gone_is_not_started_again(run):
    for name in ("last", "last.previous"):
        shutil.rmtree(run / name)
    with pytest.raises(ValueError, match="no checkpoint"):
        fit(tiny(), run, resume=True)


HOLD = """
import sys
from pathlib import Path
from vector_neurons.training.run import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_resume_the_same_run(run):
    command = [sys.executable, "-c", HOLD, run]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(TrainingError, match=rf"is in use: locked by process {holder.pid} on "):
            fit(tiny(epochs=3), run, resume=True)
        holder.kill()
    fit(tiny(epochs=3), run, resume=True)  # a lock dies with its process
    assert not (run / "lock").exists()


def test_more_epochs_resume_a_finished_run(run):
    assert fit(tiny(epochs=3), run, resume=True).epoch == 3
    assert read_config(run).recipe.epochs == 3
    assert [line["epoch"] for line in metrics(run)] == [1, 2, 3]
    with pytest.raises(TrainingError, match="has 3 epochs already"):
        fit(tiny(epochs=1), run, resume=True)


@pytest.mark.parametrize("hurt", ["first line", "gone", "empty", "folder of bytes"])
def test_metrics_that_were_lost_are_restored_and_said(straight, run, capsys, hurt):
    path = run / METRICS
    lines = path.read_text().splitlines()
    damaged = {
        "first line": f"{lines[0][:30]}\n{lines[1]}\n".encode(),
        "empty": b"",
        "folder of bytes": b"\xff\xfe\n" + lines[1].encode() + b"\n",
    }
    if hurt == "gone":
        path.unlink()
    else:
        path.write_bytes(damaged[hurt])
    fit(tiny(), run, resume=True)
    assert metrics(run) == metrics(straight)
    lost = "1, 2" if hurt in ("gone", "empty") else "1"
    assert f"had lost epochs {lost}: restored" in capsys.readouterr().err


def test_a_damaged_line_does_not_hide_the_others(run):
    lines = (run / METRICS).read_text().splitlines()
    for bad in ("{}", "[1]", '{"epoch": "one"}', '{"epoch": 1, "train": {}, "val": {}}', "x", "[" * 50_000):
        (run / METRICS).write_text(f"{bad}\n{lines[1]}\n")
        with pytest.warns(UserWarning, match="line 1 cannot be read"):
            assert [line["epoch"] for line in read_metrics(run)] == [2]
        with pytest.warns(UserWarning, match="line 1 cannot be read"):
            Log(run, epochs=2).plot("accuracy")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_best_model_is_not_replaced_by_another(run):
    shutil.copytree(run / "best", run / "best.previous", dirs_exist_ok=True)  # of an earlier epoch
    before = (run / "test.json").read_bytes()
    flip(run / "best" / "model.safetensors")
    with pytest.raises(ValueError, match=r"best is damaged: model.safetensors changed"):
        results.measure(run, ["SO3"], save=True)
    assert (run / "test.json").read_bytes() == before
    with pytest.warns(UserWarning, match="best is damaged"):
        progress = fit(tiny(epochs=3), run, resume=True)
    assert progress.best_epoch == 3
    assert evaluate(run, ["SO3"])[1]["SO3"]


def test_a_best_model_that_was_not_renamed_yet_is_the_best(run):
    expected = load_file(run / "best" / "model.safetensors")
    (run / "best").rename(run / "best.part")
    assert evaluate(run, ["SO3"])[1]["SO3"]
    fit(tiny(), run, resume=True)
    assert all(torch.equal(x, expected[name]) for name, x in load_file(run / "best" / "model.safetensors").items())


@pytest.mark.parametrize("content", ["{", "[]", '{"z": 3}', '{"z": []}', '{"z": [{"accuracy": "x"}]}', '{"y": [{}]}'])
def test_damaged_results_are_said_before_the_work(run, monkeypatch, content):
    (run / "test.json").write_text(content)
    monkeypatch.setattr(evaluation, "evaluate", lambda *_: pytest.fail("worked for nothing"))
    with pytest.raises(TrainingError, match=r"test.json is damaged[^\n]*move it away$"):
        results.measure(run, ["SO3"], save=True)


def wrong():
    """Every setting with a value of another type, and settings that are not there at all."""
    for group, kind in GROUPS.items():
        for field in fields(kind):
            yield f"{group}.{field.name}", group, field.name
        yield f"{group}.unknown", group, "unknown"
        yield f"{group} of another type", group, None


@pytest.mark.parametrize(("group", "name"), [pytest.param(*x[1:], id=x[0]) for x in wrong()])
def test_settings_of_another_type_are_refused(group, name):
    for value in (
        {},
        [[1]],
        10**400,
        "?" if name not in ("data_root", "folder", "pack", "device", "model", "init") else 1,
    ):
        saved = json.loads(json.dumps(tiny().as_dict()))
        saved[group] = value if name is None else saved[group] | {name: value}
        if name is None and value == {}:
            continue  # all of them at their defaults
        with pytest.raises(ConfigError) as caught:
            RunConfig.from_dict(saved)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "{", '{"task": 3}', "[" * 100_000, '{"task": ' + "9" * 5_000 + "}"]
)
def test_a_damaged_config_is_one_line(run, content):
    (run / "config.json").write_text(content)
    with pytest.raises(TrainingError, match=r"config.json (is damaged|cannot be used)[^\n]*$"):
        evaluate(run, ["SO3"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"threads": 100_000}, "--threads takes 1 to 1,024"),
        ({"points": 10**8, "stored_points": 10**8, "size": 1}, "--points takes 1 to 1,048,576"),
        ({"size": 2 * 10**9}, "more than the 134,217,728 points that are kept"),
        ({"widths": (10**8, 12)}, "--widths takes 3 to 65,536"),
        ({"widths": ()}, "--widths takes 1 to 64 layers"),
        ({"hidden": (16,) * 65}, "--hidden takes 1 to 64 layers"),
        ({"embedding": 0}, "--embedding takes 3 to 65,536"),
        ({"batch_size": 14 * 10**6}, "--batch-size takes 2 to 65,536"),
    ],
)
def test_sizes_have_bounds_in_training_and_in_testing(run, changes, why):
    with pytest.raises(ConfigError, match=why):
        check(tiny(**changes))
    (run / "config.json").write_text(json.dumps(tiny(**changes).as_dict()))
    with pytest.raises((ConfigError, TrainingError), match=why):
        evaluate(run, ["SO3"])


WILD = {"model": "pointnet", "widths": None, "lr": 1e6, "epochs": 3, "clip_grad_norm": 0.0}


def test_a_training_that_diverges_is_one_line(tmp_path):
    """Weights, not clouds, grow beyond the range of float32."""
    with pytest.raises(TrainingError, match=r"(not finite in step|has diverged in epoch)[^\n]*$"):
        fit(tiny(**WILD), tmp_path / "run")


def test_batches_after_a_training_has_diverged_are_skipped(tmp_path):
    try:
        progress = fit(tiny(**WILD, skip_bad_batches=True), tmp_path / "run")
        assert progress.skipped > 0
    except TrainingError as error:
        assert "has diverged in epoch" in str(error)  # noqa: PT017 - either will do


def test_settings_errors_say_what_is_wanted():
    saved = tiny().as_dict()
    for group, name, value, words in (
        ("data", "data", "foo", "data must be one of shapes, modelnet40, "),
        ("data", "up", 3, "up must be one of x, y, z or null"),
        ("protocol", "test_rotations", "SO3", "test_rotations must be a list, each one of I, z, SO3"),
        ("recipe", "epochs", "many", "epochs must be int"),
    ):
        with pytest.raises(ConfigError, match=words):
            RunConfig.from_dict(saved | {group: saved[group] | {name: value}})


def test_a_test_that_cannot_be_written_is_shown(run, vn_command, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(results, "write_file", lambda *_: (_ for _ in ()).throw(full))
    code, out, err = vn_command("evaluate", run, "--rotations", "SO3", "--save")
    assert code == 2
    assert "SO3" in out
    assert "No space left on device" in err
    assert err.count("\n") == 1


def test_a_curve_that_cannot_be_written_does_not_end_a_run(tmp_path, capsys):
    (tmp_path / "run" / "curve.png").mkdir(parents=True)
    fit(tiny(epochs=1), tmp_path / "run")
    assert "curve.png cannot be written" in capsys.readouterr().err
    assert len(metrics(tmp_path / "run")) == 1


def test_a_name_that_no_file_can_have_is_one_line(tmp_path):
    for act in (lambda path: fit(tiny(), path), lambda path: read_config(path)):
        with pytest.raises(TrainingError) as caught:
            act(Path(tmp_path) / ("x" * 300))
        assert "\n" not in str(caught.value)
