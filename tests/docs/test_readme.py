"""What README shows is what happens."""

import json
import re
import subprocess
import sys

import pytest
import torch
from blocks import ROOT, blocks, text

import vector_neurons as vn
from vector_neurons import kernels

# On generic clouds, with 40 % duplicated points, on a grid. In float32 the eager backend rounds more often than the
# native one; docs/precision.md has the distribution over seeds.
FLOAT32 = (2e-6, 2e-6, 1e-5) if "native" in kernels.available() else (1e-5, 1e-5, 5e-5)
BOUNDS = {torch.float64: (1e-12, 1e-10, 1e-10), torch.float32: FLOAT32}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_tiny_is_invariant_on_generic_clouds_duplicates_and_grids(dtype, training, seed):
    scope: dict = {}
    exec(compile(blocks("README.md", "python")[0], "README.md", "exec"), scope)
    build = scope["Tiny"]
    torch.manual_seed(seed)
    network, generic = build(40).to(dtype).train(training), torch.randn(1, 1024, 3, dtype=dtype)
    duplicated = generic.clone()
    duplicated[:, :410] = duplicated[:, 500:910]
    axis = torch.linspace(-1, 1, 8, dtype=dtype)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(1, -1, 3)
    for cloud, bound in zip((generic, duplicated, grid), BOUNDS[dtype], strict=True):
        assert vn.testing.equivariance_error(network, cloud, "points", "scalars") <= bound


def test_the_readme_starts_with_the_two_commands():
    head = text("README.md").split("```")[1]
    assert "make demo" in head
    assert "make test" in head


def test_the_readme_says_first_what_it_is_and_is_short():
    lines = text("README.md").splitlines()
    assert lines[2] == "Rotation-equivariant neural networks for point clouds, in PyTorch."
    assert "](docs/poses.png)" in "\n".join(lines[:20])
    assert len(lines) <= 120


def test_the_numbers_of_the_readme_are_those_of_the_pages():
    readme, row = text("README.md"), json.loads((ROOT / "docs" / "speed.json").read_text())["rows"][0]
    for mode in ("eval", "train"):
        for backend in ("native", "eager"):
            assert f"{row[f'{mode}_{backend}_ratio']} ×" in readme
    training = text("docs/training.md")
    for network in ("DGCNN", "VN-DGCNN"):
        assert re.search(rf"^\| {network} \|.*$", readme, re.M)[0] in training
    reports = json.loads((ROOT / "results" / "modelnet40-vn-dgcnn-z" / "test.json").read_text())
    assert all(f"**{reports[kind][0]['accuracy']:.2f} %**" in readme for kind in ("z", "SO3"))
    shipped = {"scanned-objects-framenet": "iou", "shapenet-part-framenet-z-balanced": "category_miou"}
    for name, metric in shipped.items():
        (report,) = json.loads((ROOT / "results" / name / "test.json").read_text())["SO3"]
        assert f"**{report[metric]:.2f} %**" in readme


def test_import_loads_torch_and_nothing_heavy():
    code = "import sys, torch\nbefore = set(sys.modules)\nimport vector_neurons\nprint(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in run.stdout.split()} - set(sys.stdlib_module_names)
    assert packages == {"vector_neurons", "jaxtyping", "numpy"}
