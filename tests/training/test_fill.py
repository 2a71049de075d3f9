"""Tables: what is missing is trained, what is unfinished is not a number."""

import os
import signal
from dataclasses import replace

import pytest
from tiny import metrics, tiny

from vector_neurons.training import StoppedError, TrainingError, batches, results, tables
from vector_neurons.training.presets import TABLES

TABLE = replace(TABLES["classification"], rows=TABLES["classification"].rows[1:4:2])  # DGCNN and VN-DGCNN


def plan(row, train, **changes):
    tests = tuple(test for trained, test in TABLE.columns if trained == train)
    config = tiny(train_rotations=train, test_rotations=tests, size=42, **changes)
    return replace(config, network=replace(config.network, neurons=row.network.neurons))


def cells(text, row):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} ")]
    return [word.strip() for word in line.strip("|").split("|")][1:]


def test_a_table_is_filled_and_resumed_where_it_was_stopped(tmp_path, monkeypatch):
    text = tables.fill(TABLE, plan, tmp_path, only=["vn-dgcnn-z"], trials=2)
    ours = results.read(tmp_path / "vn-dgcnn-z")
    means = [results.format_mean(ours[kind], "accuracy") for kind in ("z", "SO3")]
    assert cells(text, "VN-DGCNN")[::2] == [*means, "—"]
    assert cells(text, "VN-DGCNN")[1::2] == ["89.5", "89.5", "90.2"]
    assert cells(text, "DGCNN")[::2] == ["—", "—", "—"]
    assert (tmp_path / "table.md").read_text() == text
    assert (tmp_path / "table.png").stat().st_size > 1000
    before = (tmp_path / "vn-dgcnn-z" / "metrics.jsonl").read_bytes()

    drawn, original = [], batches.training_batch

    def stopping(*arguments):
        drawn.append(1)
        if len(drawn) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "training_batch", stopping)
        with pytest.raises(StoppedError):
            tables.fill(TABLE, plan, tmp_path, only=["vn-dgcnn"])
    every = tables.jobs(TABLE, plan, tmp_path)
    assert cells(tables.markdown(TABLE, every), "VN-DGCNN")[4] == "epoch 1/2"
    text = tables.fill(TABLE, plan, tmp_path, only=["vn-dgcnn"])
    assert float(cells(text, "VN-DGCNN")[4]) >= 0
    assert len(metrics(tmp_path / "vn-dgcnn-SO3")) == 2
    assert (tmp_path / "vn-dgcnn-z" / "metrics.jsonl").read_bytes() == before  # was finished already


def test_a_run_of_another_configuration_is_not_shown(tmp_path):
    tables.fill(TABLE, lambda row, train: plan(row, train, epochs=1), tmp_path, only=["dgcnn-SO3"])
    with pytest.raises(TrainingError, match="another configuration"):
        tables.fill(TABLE, plan, tmp_path, only=["dgcnn-SO3"])


def test_an_unknown_row_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="vn-dgcnn-z"):
        tables.fill(TABLE, plan, tmp_path, only=["gcnn"])


def test_a_method_of_ours_has_no_number_of_the_paper(tmp_path):
    table = TABLES["local"]
    every = tables.jobs(table, lambda row, train: table.config(row, train, "shapes", "fast"), tmp_path)
    text = tables.markdown(table, every)
    assert cells(text, "VN-OccNet, local (ours)") == ["—"] * 6
    assert cells(text, "VN-OccNet")[1::2] == ["69.3", "69.3", "68.8"]
