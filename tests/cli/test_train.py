"""`vn train` and `vn evaluate`."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings

import pytest

SMALL = ["--size", 42, "--epochs", 1, "--points", 64, "--k", 8, "--batch-size", 14]
SMALL += ["--widths", 12, 24, "--embedding", 48, "--hidden", 16]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, made by `python -m vector_neurons`."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    flags = ["--data", "shapes", "--model", "dgcnn", "--neurons", "vector", "--train-rotations", "z"]
    flags += ["--test-rotations", "z", "SO3", "--threads", "1", "--out", str(folder)]
    command = [sys.executable, "-m", "vector_neurons", "train", "classification", *flags, *map(str, SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/1  loss" in done.stderr  # not a terminal: plain lines
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["rotations", "z", "SO3"]
    return folder


def test_evaluate_prints_mean_and_spread(run, vn_command):
    before = (run / "test.json").read_text()
    flags = ["evaluate", run, "--rotations", "SO3", "--trials", 3]
    code, out, _ = vn_command(*flags)
    assert code == 0
    assert "±" in out
    assert (run / "test.json").read_text() == before
    assert vn_command(*flags, "--save")[:2] == (0, out)
    assert len(json.loads((run / "test.json").read_text())["SO3"]) == 3


def test_a_run_can_leave_the_test_set_alone(tmp_path, vn_command, monkeypatch):
    monkeypatch.setattr("vector_neurons.training.evaluation.evaluate", lambda *_: pytest.fail("opened the test set"))
    flags = ["--size", 42, "--points", 64, "--stored-points", 64, "--batch-size", 14, "--k", 4, "--widths", 6]
    code, out, err = vn_command(
        "train", "classification", *flags, "--epochs", 1, "--no-test", "--out", tmp_path / "run"
    )
    assert code == 0, err
    assert out.endswith("epoch 1 was best on the validation set\n")
    assert vn_command("train", "--resume", tmp_path / "run", "--epochs", 2, "--no-test")[0] == 0
    assert not (tmp_path / "run" / "test.json").exists()


def test_evaluate_shows_classes_and_confusion(run, vn_command, tmp_path):
    code, out, err = vn_command("evaluate", run / "best", "--rotations", "so3", "--confusion", tmp_path / "a.csv")
    assert code == 0, err
    head, *rows = out.partition("\n\n")[2].splitlines()
    assert head.split()[:3] == ["class", "clouds", "SO3"]
    assert len(rows) == 8  # of 42 // 5 clouds, each of another class
    table = list(csv.reader((tmp_path / "a.csv").read_text().splitlines()))
    assert table[0][:2] == ["rotations", "class"]
    assert table[1][0] == "SO3"
    assert sum(int(x) for row in table[1:] for x in row[2:]) == 8
    right = sum(int(row[2 + i]) for i, row in enumerate(table[1:]))
    assert f"{100 * right / 8:.2f}" in out.splitlines()[1]
    _, out, _ = vn_command("evaluate", run, "--rotations", "SO3", "--trials", 3)
    assert [row.split()[1] for row in out.partition("\n\n")[2].splitlines()[1:]] == ["1"] * 8
    assert vn_command("evaluate", run, "--rotations", "SO3", "--confusion", tmp_path / "a.png")[0] == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    for file, line in ((tmp_path / "a.txt", "only .csv .png"), (tmp_path / "none" / "a.csv", "there is no folder")):
        code, _, err = vn_command("evaluate", run, "--confusion", file)
        assert code == 2
        assert line in err


def test_a_finished_run_can_be_resumed(run, vn_command):
    assert vn_command("train", "--resume", run)[0] == 0


def test_a_run_is_resumed_elsewhere_and_for_longer(run, tmp_path, vn_command):
    copy = shutil.copytree(run, tmp_path / "run")
    code, _, err = vn_command("train", "--resume", copy, "--threads", 2, "--device", "cpu", "--epochs", 2)
    assert code == 0, err
    config = json.loads((copy / "config.json").read_text())
    assert (config["recipe"]["epochs"], config["runtime"]["threads"]) == (2, 2)
    assert len((copy / "metrics.jsonl").read_text().splitlines()) == 2
    code, _, err = vn_command("train", "--resume", copy, "--epochs", 1)
    assert (code, err.count("\n")) == (2, 1)
    assert "has 2 epochs already" in err


def test_the_best_model_of_a_run_stands_for_it(run, vn_command):
    assert vn_command("train", "--resume", run / "best")[0] == 0


def test_a_folder_of_files_is_found_from_elsewhere(tmp_path, vn_command, monkeypatch):
    for number in range(24):
        file = tmp_path / "here" / "files" / ("a" if number % 2 else "b") / f"{number}.xyz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{i} {number} {i * i}\n" for i in range(70)))
    monkeypatch.chdir(tmp_path / "here")
    flags = ["--data", "folder", "--folder", "files", "--data-root", tmp_path / "packs", "--out", tmp_path / "run"]
    small = [word for word in SMALL if word not in ("--size", 42)]
    code, _, err = vn_command("train", "classification", *flags, *small, "--stored-points", 64)
    assert code == 0, err
    monkeypatch.chdir(tmp_path)
    assert vn_command("evaluate", tmp_path / "run")[0] == 0


def test_a_warning_is_one_line(run, tmp_path, vn_command, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.copytree(copy / "last", copy / "last.previous", dirs_exist_ok=True)
    (copy / "last" / "state.pt").write_bytes(b"")
    monkeypatch.setattr("warnings.warn", lambda text, **_: sys.stderr.write(warnings.formatwarning(text, None, "", 0)))
    code, _, err = vn_command("train", "--resume", copy)
    assert code == 0, err
    assert err.startswith(f"vn train: {copy / 'last'} is damaged: state.pt changed after it was written; resuming from")


@pytest.mark.parametrize("flags", [["--lr", "3"], ["--points", "32"], ["--seed", "1"], ["--out", "x"]])
def test_nothing_else_changes_when_a_run_is_resumed(run, vn_command, flags):
    code, _, err = vn_command("train", "--resume", run, *flags)
    assert code == 2
    assert "only --threads, --device and --epochs" in err or "--lr" in err


def test_rotations_are_named_in_any_case(tmp_path, vn_command):
    flags = ["--train-rotations", "Z", "--test-rotations", "so3", "i", "--out", tmp_path / "run"]
    code, out, err = vn_command("train", "classification", *SMALL, *flags)
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["SO3", "I"]


def test_a_preset_gives_defaults_that_flags_change(tmp_path, vn_command):
    few = ["--size", 42, "--epochs", 1, "--points", 64, "--stored-points", 64, "--early-points", 32, "--batch-size", 14]
    code, _, err = vn_command(
        "train", "classification", "--preset", "fast-pointnet-z", "--out", tmp_path / "run", "--embedding", 48, *few
    )
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["network"]["model"], config["network"]["neurons"]) == ("pointnet", "scalar")
    assert (config["recipe"]["ema"], config["recipe"]["batch_size"]) == (0.998, 14)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "train what?"),
        (["clasification"], "did you mean classification?"),
        (["classification", "--preset", "fast-vn-dgcn-z"], "did you mean fast-vn-dgcnn-z?"),
        (["segmentation", "--data", "modelnet40"], "no parts"),
        (["classification", "--learning-rate", "0.1"], "the flag for the learning rate is --lr"),
        (["classification", "--learning-rate=0.1"], "the flag for the learning rate is --lr"),
        (["classification", "--points", "4096"], "--stored-points"),
        (["classification", "--neurons", "scalar", "--frame", "linear"], "vector neurons"),
        (["classification", "--neurons", "hybrid", "--model", "framenet"], "scalars beside vectors already: choose"),
        (["reconstruction", "--neurons", "hybrid"], "--neurons hybrid has no occupancy network"),
        (["classification", "--device", "cuda:77"], "CUDA"),
        (["classification", "--device", "toaster"], "--device"),
        (["classification", "--out", "/proc/run", "--size", "42"], "cannot write to /proc/run"),
        (["--resume", "/nowhere"], "holds no run"),
        (["classification", "--resume", "/nowhere"], "holds no run"),
        (["--resume", "/nowhere", "--epochs", "3"], "holds no run"),
        (["classification", "--data", "modelnet40", "--data-root", "/nowhere"], "modelnet40"),
    ],
)
def test_mistakes_are_one_line(vn_command, arguments, line):
    code, out, err = vn_command("train", *arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_a_flag_with_a_typo_is_corrected(vn_command):
    code, _, err = vn_command("train", "classification", "--neuron", "vector")
    assert code == 2
    assert "--neurons" in err


def test_help_shows_the_task(vn_command):
    assert vn_command("train", "--help")[1].startswith("usage: vn train TASK [-h]")
    assert vn_command("train", "segmentation", "--help")[1].startswith("usage: vn train segmentation [-h]")


def test_help_groups_the_options(vn_command):
    code, out, _ = vn_command("train", "--help")
    assert code == 0
    assert all(f"{group} options" in out for group in ("data", "network", "recipe", "protocol", "runtime"))


@pytest.mark.parametrize(
    ("arguments", "line"), [(["/nowhere"], "holds no run"), (["/nowhere", "--trials", "0"], "--trials")]
)
def test_mistakes_of_evaluate_are_one_line(vn_command, arguments, line):
    code, _, err = vn_command("evaluate", *arguments)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1


def test_a_saved_model_is_not_a_run(run, vn_command, tmp_path):
    model = shutil.copytree(run / "best", tmp_path / "model")
    for command in (["evaluate", model], ["train", "--resume", model]):
        code, _, err = vn_command(*command)
        assert code == 2
        assert err == f"vn {command[0]}: {model} is a saved model: give the folder of a training run\n"


@pytest.mark.parametrize(("batch_size", "left_out"), [(14, 0), (16, 10)])
def test_clouds_that_an_epoch_leaves_out_are_counted(tmp_path, vn_command, batch_size, left_out):
    code, _, err = vn_command("train", "classification", *SMALL, "--batch-size", batch_size, "--out", tmp_path / "run")
    assert code == 0, err
    line = f"each epoch leaves out {left_out} of 42 training clouds, drawn anew each time: --batch-size {batch_size} "
    assert err.count("leaves out") == err.count(line) == bool(left_out)


@pytest.mark.filterwarnings("always")
def test_a_damaged_file_is_reported_once(tmp_path, vn_command):
    """Training opens three splits of the folder, each of which warns of it."""
    for number in range(24):
        file = tmp_path / "files" / ("a" if number % 2 else "b") / f"{number}.xyz"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{i} {number} {i * i}\n" for i in range(70)))
    (tmp_path / "files" / "a" / "damaged.xyz").write_text("1 2\n")
    flags = ["--data", "folder", "--folder", tmp_path / "files", "--data-root", tmp_path / "packs"]
    small = [word for word in SMALL if word not in ("--size", 42)]
    code, _, err = vn_command("train", "classification", *flags, *small, "--stored-points", 64, "--out", tmp_path / "x")
    assert code == 0, err
    assert err.count("damaged.xyz") == 1
    assert err.startswith("vn train: 1 files of ")


def test_a_signal_leaves_a_run_that_can_be_resumed(tmp_path, vn_command, monkeypatch):
    from vector_neurons.training import batches

    original, drawn = batches.training_batch, []

    def stopping(*arguments):
        drawn.append(1)
        if len(drawn) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    monkeypatch.setattr(batches, "training_batch", stopping)
    code, _, err = vn_command("train", "classification", *SMALL, "--out", tmp_path / "run")
    assert code == 128 + signal.SIGTERM
    assert f"vn train --resume {tmp_path / 'run'}" in err
    code, out, err = vn_command("train", "--resume", tmp_path / "run")
    assert code == 0, err
    assert "SO3" in out


def test_an_interrupt_is_one_line(vn_command, monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr("vector_neurons.cli.train.fit", interrupted)
    code, _, err = vn_command("train", "classification")
    assert (code, err) == (130, "vn train: interrupted\n")


def test_a_reader_that_has_seen_enough_is_no_traceback():
    help_of = f"{sys.executable} -m vector_neurons train --help | head -n 1"
    done = subprocess.run(["bash", "-c", help_of], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: vn train")
    assert done.stderr == ""
