"""Kept results: whole, small, free of anybody's paths, and the numbers that the docs show."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vector_neurons as vn
from vector_neurons.models import store
from vector_neurons.training import TrainingError, checkpoint, read_config, results
from vector_neurons.training.log import read_metrics

ROOT = Path(__file__).parents[2]
RUNS = sorted(best.parent for best in (ROOT / "results").glob("*/best"))
EXPERIMENTS = sorted((ROOT / "results" / "experiments").iterdir())
METRICS = {"classification": "accuracy", "segmentation": "category_miou", "reconstruction": "iou"}
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)


@pytest.mark.parametrize("run", [*RUNS, *EXPERIMENTS], ids=lambda run: run.name)
def test_the_numbers_of_a_result_are_whole(run):
    config = read_config(run)
    lines = read_metrics(run)
    assert [line["epoch"] for line in lines] == list(range(1, config.recipe.epochs + 1))
    assert config.data.data_root is None
    assert set(results.read(run)) == set(config.protocol.test_rotations)


@every_run
def test_the_weights_of_a_result_are_small_and_finite(run):
    assert sum(file.stat().st_size for file in run.rglob("*")) < 8e6
    model = store.load(run)
    assert next(model.parameters()).dtype == torch.float16
    assert all(p.isfinite().all() for p in model.state_dict().values())


@every_run
def test_the_docs_show_its_numbers(run):
    metric = METRICS[read_config(run).task]
    page = (ROOT / "docs" / "results.md").read_text()
    assert f"results/{run.name}" in page
    for reports in json.loads((run / results.TEST).read_text()).values():
        assert f"{reports[0][metric]:.2f}" in page


@pytest.mark.parametrize("run", EXPERIMENTS, ids=lambda run: run.name)
def test_the_docs_show_the_numbers_of_experiments(run):
    task = read_config(run).task
    page = ROOT / "docs" / ("reconstruction.md" if task == "reconstruction" else "results.md")
    (report,) = results.read(run)["SO3"]
    assert f" {report[METRICS[task]]:.1f} " in page.read_text().replace("*", " ")


def test_there_are_results():
    assert {"modelnet40-vn-dgcnn-z", *SHIPPED.values()} <= {run.name for run in RUNS}
    assert set(SHIPPED) == set(store.pretrained_names())


SHIPPED = {
    "classification": "modelnet40-framenet-z",
    "segmentation": "shapenet-part-framenet-z-balanced",
    "reconstruction": "scanned-objects-framenet",
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_model_of_the_package_is_that_of_its_run(name):
    kept = checkpoint.load(ROOT / "results" / SHIPPED[name] / "best")
    shipped = vn.pretrained(name)
    assert shipped.arguments == kept.arguments
    assert shipped.metadata == kept.metadata
    assert shipped.state_dict().keys() == kept.state_dict().keys()
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in shipped.state_dict().items())


def test_a_run_with_older_names_is_refused_in_one_line_and_can_be_converted(tmp_path):
    run = shutil.copytree(RUNS[0], tmp_path / "run")
    config, metrics = json.loads((run / "config.json").read_text()), (run / "metrics.jsonl").read_text()
    config["recipe"]["rate"] = config["recipe"].pop("lr")
    config["data"]["pool"] = config["data"].pop("stored_points")
    config["data"]["near"] = config["data"].pop("near_fraction")
    (run / "config.json").write_text(json.dumps(config))
    (run / "metrics.jsonl").write_text(metrics.replace('"lr":', '"rate":'))
    with pytest.raises(TrainingError, match=r"unknown setting 'pool'[^\n]*rename_settings.py of the repo"):
        read_config(run)
    older = {"data": "clouds", "runtime": "machine"}
    (run / "config.json").write_text(json.dumps({older.get(name, name): value for name, value in config.items()}))
    with pytest.raises(TrainingError, match=r"lacks some of the groups data, [^\n]*rename_settings.py"):
        read_config(run)
    script = ROOT / "benchmarks" / "rename_settings.py"
    subprocess.run([sys.executable, script, run], check=True, capture_output=True)
    assert read_config(run) == read_config(RUNS[0])
    assert (run / "metrics.jsonl").read_text() == metrics
