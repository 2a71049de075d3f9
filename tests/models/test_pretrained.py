"""The networks that come with the package: whole, documented, and with the outputs they had when they were added.

python tests/models/test_pretrained.py      writes the outputs that the tests expect
"""

import json
from pathlib import Path

import pytest
import torch

import vector_neurons as vn
from vector_neurons.data import Shapes

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "vector_neurons" / "pretrained"
EXPECTED = Path(__file__).with_name("pretrained.json")
NAMES = sorted(folder.name for folder in FOLDER.iterdir() if folder.is_dir())
CARD = ("license:", "## Data", "## Training", "## Results", "## Limits")


def outputs(name):
    """Outputs for four shapes of the embedded set, which nobody's license restricts: four numbers for each."""
    model = vn.pretrained(name)
    points = Shapes("test", size=4, points=model.metadata.points, seed=7).batch(torch.arange(4)).points
    with torch.no_grad():
        if name == "reconstruction":
            return model(points, points[:, :4] * 0.9)
        if name == "segmentation":
            return model(points, torch.arange(4)).mean(1)[:, :4]
        return model(points)[:, :4]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_before(name):
    expected = torch.tensor(json.loads(EXPECTED.read_text())[name])
    torch.testing.assert_close(outputs(name), expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_has_a_card(name):
    card = (FOLDER / name / "README.md").read_text()
    assert [part for part in CARD if part not in card] == []
    run = card.split("results/")[1].split("`")[0]
    assert (ROOT / "results" / run / "config.json").exists()
    for reports in json.loads((ROOT / "results" / run / "test.json").read_text()).values():
        metric = next(m for m in ("accuracy", "category_miou", "iou") if m in reports[0])
        assert f"{reports[0][metric]:.2f}" in card


def test_all_weights_are_small():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*")) < 8e6


if __name__ == "__main__":
    made = {name: [[round(x, 4) for x in row] for row in outputs(name).tolist()] for name in NAMES}
    EXPECTED.write_text(json.dumps(made, indent=1) + "\n")
