"""What a run leaves behind, and that it learns."""

import json
import math
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import metrics, tiny

from vector_neurons.data import Shapes
from vector_neurons.models import store
from vector_neurons.tasks import add
from vector_neurons.training import (
    ConfigError,
    ProcessGroup,
    TrainingError,
    batches,
    check,
    evaluate,
    factory,
    fit,
    loop,
    measure,
    read_config,
)
from vector_neurons.training.config import RunConfig, _ranged


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(tiny(epochs=3), folder)
    return folder


def test_a_run_is_a_folder(run):
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "metrics.jsonl", "curve.png", "last", "best"} <= names
    lines = metrics(run)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert all(line["train_rotations"] == line["val_rotations"] == "z" for line in lines)
    assert {"loss", "accuracy", "class_accuracy"} == set(lines[0]["train"]) == set(lines[0]["val"])
    assert read_config(run) == tiny(epochs=3)
    model = store.load(run / "best")
    assert model.metadata.classes == list(Shapes("val").classes)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_frozen_norms_keep_their_statistics_and_learn(tmp_path, monkeypatch, ema):
    """In the last half of the epochs, with the averaged statistics where there are any; dropout goes on."""
    seen, finish_epoch = [], loop.Trainer.finish_epoch

    def remember(trainer):
        of = {name: x.clone() for name, x in trainer.model.state_dict().items()}
        averaged = None if trainer.averaged is None else dict(trainer.averaged.named_buffers())
        seen.append((of, averaged and {name: x.clone() for name, x in averaged.items()}))
        training = {type(m).__name__: m.training for m in trainer.model.modules() if not list(m.children())}
        assert training["Dropout"]
        assert training["BatchNorm1d"] == (len(seen) <= 2)
        finish_epoch(trainer)

    monkeypatch.setattr(loop.Trainer, "finish_epoch", remember)
    fit(tiny(epochs=4, freeze_norms=0.5, ema=ema), tmp_path / "run")
    (_, _), (second, averaged), (third, _), (fourth, _) = seen
    statistics = [name for name in second if name.endswith("running_var")]
    assert statistics
    for name, x in fourth.items():
        if "running" in name:
            torch.testing.assert_close(x, averaged[name] if ema else second[name], rtol=0, atol=0)
        elif x.ndim > 1:
            assert not torch.equal(x, third[name])
    assert not any(torch.equal(seen[0][0][name], second[name]) for name in statistics)


def test_the_reported_accuracy_is_that_of_every_cloud_counted_once(run):
    """Recounted cloud by cloud, alone, in poses drawn here."""
    task, counts = evaluate(run, ["z", "SO3"], trials=2)
    config = read_config(run)
    data, model = Shapes("test", size=84 // 5, points=80), store.load(run / "best")
    for kind in ("z", "SO3"):
        for trial, counted in enumerate(counts[kind]):
            right = 0
            for index in range(len(data)):
                cloud = batches.evaluation_batch(
                    data, torch.tensor([index]), config.data, kind, config.runtime.seed, trial
                )
                right += int(model(cloud.points).argmax() == data.labels[index])
            assert counted["confusion"].diagonal().sum() == right
            assert counted["confusion"].sum() == counted["clouds"] == len(data)
            assert task.report(counted)["accuracy"] == pytest.approx(100 * right / len(data))


@pytest.mark.parametrize("size", [2, 3, 50])
def test_any_number_of_processes_counts_the_same(run, size):
    """One after the other, and most of 50 have no batch."""

    class Alone(ProcessGroup):
        def sum(self, x):
            return x

    config, model = read_config(run), store.load(run / "best")
    data = factory.open_dataset(config.data, "test")
    task = factory.build_task(config, data)
    total = None
    for rank in range(size):
        total = add(total, measure(model, task, data, config, "SO3", Alone(rank, size)))
    whole = measure(model, task, data, config, "SO3")
    assert all(torch.equal(total[name], whole[name]) for name in whole)


def test_the_test_set_is_not_touched_by_training(tmp_path, monkeypatch):
    opened, original = [], factory.open_dataset
    monkeypatch.setattr(factory, "open_dataset", lambda data, split: opened.append(split) or original(data, split))
    fit(tiny(epochs=1), tmp_path / "run")
    assert opened == ["train", "val"]


def test_it_learns(tmp_path):
    fit(
        tiny(epochs=12, size=126, lr=1e-2, dropout=0.0, anisotropic_scale=1.0, shift=0.0, label_smoothing=0.0),
        tmp_path / "run",
    )
    lines = metrics(tmp_path / "run")
    assert lines[-1]["train"]["loss"] < 0.7 * lines[0]["train"]["loss"]
    assert lines[-1]["train"]["accuracy"] > 25  # chance: 5


def test_segmentation_learns_parts(tmp_path):
    small = {"hidden": (24, 16, 16), "widths": (12, 12)}
    fit(tiny(task="segmentation", epochs=2, lr=1e-2, **small), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert {"instance_miou", "category_miou", "accuracy", "loss"} == set(lines[0]["val"])
    assert lines[1]["train"]["loss"] < lines[0]["train"]["loss"]
    (counts,) = evaluate(tmp_path / "run", ["SO3"])[1]["SO3"]
    assert counts["shapes"].sum() == counts["clouds"] == 16


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "schedule": "cosine", "lr": 0.1, "final_lr": 1e-3, "warmup": 0.0, "clip_grad_norm": 0.0},
        {"optimizer": "adam", "schedule": "step", "step_size": 1, "neurons": "scalar", "ema": 0.0},
        {"model": "pointnet", "widths": None, "schedule": "constant", "scale": 1.25, "jitter": 0.01},
        {"accumulate": 2, "bf16": True, "early_points": 32},
        {"neurons": "vector", "direction": "output", "pooling": "max", "frame": "linear", "mean": False},
    ],
)
def test_every_setting_runs(tmp_path, changes):
    fit(tiny(epochs=1, size=42, **changes), tmp_path / "run")
    (line,) = metrics(tmp_path / "run")
    assert line["skipped"] == 0
    assert 0 < line["train"]["loss"] < 100


def test_accumulation_takes_the_mean_gradient(tmp_path):
    """Without batch statistics, parts of a batch add up to the batch."""
    parts = []
    for accumulate in (1, 2):
        config = tiny(epochs=1, size=14, dropout=0.0, accumulate=accumulate, optimizer="sgd", ema=0.0)
        data = factory.open_dataset(config.data, "train")
        trainer = loop.Trainer(config, tmp_path, ProcessGroup(), data, data)
        model = trainer.model.eval()
        trainer.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer.train_step(torch.arange(14))
        parts.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*parts, atol=1e-5, rtol=1e-4)


def test_best_is_the_averaged_model_and_last_is_not(run):
    assert (run / "last" / "state.pt").exists()
    last, state = load_file(run / "last" / "model.safetensors"), torch.load(run / "last" / "state.pt")
    assert any(not torch.equal(x, state["averaged"][name]) for name, x in last.items())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task": "segmentation", "data": "modelnet40", "size": None}, "no parts"),
        ({"data": "folder", "size": None}, "--folder"),
        ({"folder": "x"}, "--data folder"),
        ({"points": 4096}, "--stored-points"),
        ({"early_points": 4096}, "--early-points"),
        ({"k": 65}, "neighbors"),
        ({"neurons": "scalar", "frame": "linear"}, "vector neurons"),
        ({"model": "pointnet"}, "--widths"),
        ({"test_rotations": ()}, "--test-rotations"),
        ({"accumulate": 4}, "--batch-size"),
        ({"accumulate": 14}, "single"),
        ({"lr": float("nan")}, "--lr"),
        ({"epochs": 0}, "--epochs"),
        ({"label_smoothing": 1.0}, "--label-smoothing"),
        ({"threads": 0}, "--threads"),
        ({"widths": (12, 0)}, "--widths"),
        ({"dropout": 1.5}, "--dropout"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(changes, why):
    with pytest.raises(ConfigError, match=why) as caught:
        check(tiny(**changes))
    assert "\n" not in str(caught.value)


def outside():
    """Every number with a range, with values just outside of it."""
    config = tiny()
    for group in ("data", "network", "recipe", "protocol", "runtime"):
        part = getattr(config, group)
        for name, hint in get_type_hints(type(part), include_extras=True).items():
            several = name in ("widths", "hidden", "test_rotations")
            for _, allowed in _ranged((1,) if several else 1, hint):
                bounds = [allowed.low - 1, float("nan")] + [allowed.high + 1] * (allowed.high < math.inf)
                for value in [*bounds, *[allowed.high] * allowed.excludes_high]:
                    yield pytest.param(name, (value,) if several else value, id=f"{name}={value}")


@pytest.mark.parametrize(("name", "value"), list(outside()))
def test_numbers_outside_their_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"^--{name.replace('_', '-')} takes (.* or more|.* to .*), got "):
        check(tiny(**{name: value}))


def test_a_batch_must_fit_the_training_set_and_the_processes(tmp_path):
    with pytest.raises(TrainingError, match=r"more than the 10 training clouds: pass --batch-size 10 or less$"):
        fit(tiny(size=10), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="3 processes"):
        check(tiny(), processes=3)


def test_a_folder_of_files(tmp_path):
    for number in range(40):
        file = tmp_path / "files" / ("ball" if number % 2 else "stick") / f"{number}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        points = torch.randn(80, 3, generator=torch.Generator().manual_seed(number))
        np.save(file, (points * torch.tensor([1.0, 1.0, 1.0 if number % 2 else 9.0])).numpy())
    where = {"data": "folder", "folder": str(tmp_path / "files"), "data_root": str(tmp_path / "packs"), "size": None}
    fit(tiny(**where, epochs=4, lr=1e-2), tmp_path / "run")
    _, counts = evaluate(tmp_path / "run", ["SO3"])
    assert counts["SO3"][0]["confusion"].shape == (2, 2)
    assert metrics(tmp_path / "run")[-1]["train"]["accuracy"] > 60


def test_a_run_is_not_overwritten(run):
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(TrainingError, match="--resume"):
        fit(tiny(), run)
    assert (run / "metrics.jsonl").read_text() == before


def test_a_configuration_survives_a_file():
    config = tiny(test_rotations=("I", "SO3"), early_points=32)
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    with pytest.raises(ConfigError, match="another version"):
        RunConfig.from_dict({"task": "classification", "data": {"color": "red"}})


@pytest.mark.parametrize(("neurons", "same"), [("vector", True), ("scalar", False)])
def test_rotations_of_the_training_shapes_change_nothing_for_an_invariant_network(tmp_path, neurons, same):
    """So one training fills all columns of a table: augmentation comes before the rotation."""
    losses = []
    for kind in ("I", "z", "SO3"):
        fit(tiny(neurons=neurons, train_rotations=kind, epochs=2, seed=1), tmp_path / kind)
        losses.append([line[split]["loss"] for line in metrics(tmp_path / kind) for split in ("train", "val")])
    aligned, *rotated = torch.tensor(losses)
    assert [torch.allclose(x, aligned, rtol=1e-4) for x in rotated] == [same, same]


def test_a_run_starts_from_the_weights_of_another_where_they_fit(run, tmp_path, capsys):
    wider = tiny(hidden=(20,), epochs=1, lr=0.0, weight_decay=0.0, init=str(run))
    fit(wider, tmp_path / "wider")
    said = capsys.readouterr().out
    assert f"starts from {run}; new are head." in said
    old, new = (load_file(folder / "best" / "model.safetensors") for folder in (run, tmp_path / "wider"))
    weights = [name for name in old if name.endswith("weight") and not name.startswith("head")]
    assert weights
    assert all(torch.equal(old[name], new[name]) for name in weights)
    other = tiny(neurons="scalar", epochs=1, init=str(run), widths=(9, 9), embedding=9, hidden=(9,))
    with pytest.raises(TrainingError, match="none of whose weights fit"):
        fit(other, tmp_path / "other")
    with pytest.raises(TrainingError, match="--init: there is no folder"):
        fit(replace(wider, recipe=replace(wider.recipe, init=str(tmp_path / "nothing"))), tmp_path / "none")
    assert not (tmp_path / "none" / "config.json").exists()
