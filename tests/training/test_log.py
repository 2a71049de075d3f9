"""What a run says."""

import io
import json
import sys
import types

import pytest

from vector_neurons.training.log import METRICS, Log, read_metrics, restore_metrics


def line(epoch):
    numbers = {"loss": 1.0 / epoch, "accuracy": 50.0}
    return {"epoch": epoch, "train": numbers, "val": numbers, "time": {"seconds": 1.0, "clouds_per_second": 7.0}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    log = Log(tmp_path, epochs=2)
    for epoch in range(2):
        for step in range(1, 4):
            log.step(epoch, step, 3, {"loss": 1.234, "accuracy": 56.7}, clouds=32)
            bar = log.bar
            assert (bar.n, bar.total) == (step, 3)
            assert {"loss=1.23", "accuracy=56.7"} <= set(bar.postfix.split(", "))
            assert "clouds/s=" in bar.postfix
            assert "left=0:00:" in bar.postfix
        log.epoch(line(epoch + 1), 3, "accuracy")
        assert log.bar is None
    assert "epoch 2/2" in sys.stderr.getvalue()


def test_plain_lines_elsewhere(tmp_path, capsys):
    log = Log(tmp_path, epochs=2)
    log.step(0, 1, 3, {"loss": 1.0}, clouds=32)
    log.epoch(line(1), 3, "accuracy")
    assert capsys.readouterr().err.startswith("epoch 1/2  loss 1.0000  train 50.00  val 50.00  7 clouds/s  left")
    log.close("accuracy")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_quiet_log_writes_nothing(tmp_path, capsys):
    log = Log(tmp_path, epochs=1, quiet=True)
    log.step(0, 1, 1, {"loss": 1.0}, clouds=32)
    log.epoch(line(1), 1, "accuracy")
    log.close("accuracy")
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().err == ""


def test_lines_that_will_be_trained_again_are_forgotten(tmp_path):
    whole = "".join(json.dumps(line(epoch)) + "\n" for epoch in (1, 2, 3))
    (tmp_path / METRICS).write_text(whole + '{"epoch": 4, "tra')  # killed in mid-line
    assert [x["epoch"] for x in read_metrics(tmp_path)] == [1, 2, 3]
    restore_metrics(tmp_path, [line(1), line(2)])
    assert (tmp_path / METRICS).read_text() == "".join(json.dumps(line(epoch)) + "\n" for epoch in (1, 2))


def test_tensorboard_if_it_is_installed(tmp_path, monkeypatch):
    written = []

    class Writer:
        def __init__(self, folder):
            written.append(folder)

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def close(self):
            written.append("closed")

    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    log = Log(tmp_path, epochs=1)
    log.epoch(line(1), 1, "accuracy")
    log.close("accuracy")
    assert written[0] == str(tmp_path / "tensorboard")
    assert ("val/accuracy", 50.0, 1) in written
    assert written[-1] == "closed"


def test_without_matplotlib_there_is_no_curve(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    log = Log(tmp_path, epochs=1)
    log.epoch(line(1), 1, "accuracy")
    log.close("accuracy")
    assert not (tmp_path / "curve.png").exists()
    with pytest.raises(ImportError):
        import matplotlib.figure  # noqa: F401
