"""Kept results: whole, small, free of anybody's paths, and the numbers that the docs show."""

import json
from pathlib import Path

import pytest
import torch

import vector_neurons as vn
from vector_neurons.models import store
from vector_neurons.training import checkpoint, read_settings, results
from vector_neurons.training.log import read_metrics

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "results").iterdir())
PAGES = {"classification": ("training.md", "accuracy"), "reconstruction": ("reconstruction.md", "iou")}
every_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)


@every_run
def test_a_result_is_whole(run):
    settings = read_settings(run)
    lines = read_metrics(run)
    assert [line["epoch"] for line in lines] == list(range(1, settings.recipe.epochs + 1))
    assert settings.clouds.data_root is None
    assert set(results.read(run)) == set(settings.protocol.test_rotations)
    assert sum(file.stat().st_size for file in run.rglob("*")) < 8e6
    model = store.load(run)
    assert next(model.parameters()).dtype == torch.float16
    assert all(p.isfinite().all() for p in model.state_dict().values())


@every_run
def test_the_docs_show_its_numbers(run):
    name, metric = PAGES[read_settings(run).task]
    page = (ROOT / "docs" / name).read_text()
    assert f"results/{run.name}" in page
    for reports in json.loads((run / results.TEST).read_text()).values():
        assert f"{reports[0][metric]:.2f}" in page


def test_there_are_results():
    assert {"modelnet40-vn-dgcnn-z", "scanned-objects-vn-occnet"} <= {run.name for run in RUNS}


def test_the_model_of_the_package_is_that_of_its_run():
    kept = checkpoint.load(ROOT / "results" / "scanned-objects-vn-occnet" / "best")
    shipped = vn.pretrained("reconstruction")
    assert shipped.arguments == kept.arguments
    assert shipped.meaning == kept.meaning
    assert shipped.state_dict().keys() == kept.state_dict().keys()
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in shipped.state_dict().items())
