"""What README and docs show is what happens."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

import vector_neurons as vn
from vector_neurons import kernels

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/networks.md", "docs/shapes.md", "docs/training.md", "docs/reconstruction.md"]
BLOCKS = [
    block for page in PAGES for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
]


@cache
def run(block: str) -> dict:
    torch.manual_seed(0)
    scope: dict = {}
    exec(compile(block, "README.md", "exec"), scope)
    return scope


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_python_block_of_the_docs_runs(number):
    run(BLOCKS[number])


def test_the_battery_of_the_readme_passes():
    battery = next(run(block) for block in BLOCKS if "EquivarianceTests" in block)["TestMyBlock"]()
    for name in [name for name in dir(battery) if name.startswith("test_")]:
        getattr(battery, name)()


# On generic clouds, with 40 % duplicated points, on a grid. In float32 the plain body rounds more often than the native
# one; docs/precision.md has the distribution over seeds.
FLOAT32 = (2e-6, 2e-6, 1e-5) if "native" in kernels.available() else (1e-5, 1e-5, 5e-5)
BOUNDS = {torch.float64: (1e-12, 1e-10, 1e-10), torch.float32: FLOAT32}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_tiny_is_invariant_on_generic_clouds_duplicates_and_grids(dtype, training, seed):
    build = run(BLOCKS[0])["Tiny"]
    torch.manual_seed(seed)
    network, generic = build(40).to(dtype).train(training), torch.randn(1, 1024, 3, dtype=dtype)
    duplicated = generic.clone()
    duplicated[:, :410] = duplicated[:, 500:910]
    axis = torch.linspace(-1, 1, 8, dtype=dtype)
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), dim=-1).reshape(1, -1, 3)
    for cloud, bound in zip((generic, duplicated, grid), BOUNDS[dtype], strict=True):
        assert vn.testing.equivariance_error(network, cloud, "points", "scalars") <= bound


def test_the_demo_shows_what_it_promises():
    demo = [sys.executable, str(ROOT / "examples" / "turn_a_cloud.py")]
    out = subprocess.run(demo, capture_output=True, text=True, check=True).stdout
    change = {kind: float(re.search(rf"{kind} neurons .*: (\S+)", out).group(1)) for kind in ("vector", "scalar")}
    assert change["vector"] <= 1e-5
    assert change["scalar"] >= 1e-1


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_pages_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        if "://" not in link:
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_the_readme_starts_with_the_two_commands():
    head = (ROOT / "README.md").read_text().split("```")[1]
    assert "make demo" in head
    assert "make test" in head


def test_import_loads_torch_and_nothing_heavy():
    code = "import sys, torch\nbefore = set(sys.modules)\nimport vector_neurons\nprint(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in run.stdout.split()} - set(sys.stdlib_module_names)
    assert packages == {"vector_neurons", "jaxtyping", "numpy"}
