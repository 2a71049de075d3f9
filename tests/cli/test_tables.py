"""`vn tables`."""

from typing import get_args

import pytest

from vector_neurons.cli.tables import TableName
from vector_neurons.training import loop
from vector_neurons.training.presets import TABLES


def test_a_cell_of_the_table(tmp_path, vn_command, monkeypatch):
    """The verb itself; the training is tested elsewhere."""
    trained = []
    monkeypatch.setattr(loop, "fit", lambda config, folder, group, resume: trained.append((config, folder)))
    monkeypatch.setattr("vector_neurons.training.results.measure", lambda *arguments, **options: {})
    flags = ["--data", "shapes", "--recipe", "fast", "--only", "vn-dgcnn-z", "--epochs", 1, "--out", tmp_path]
    code, out, err = vn_command("tables", "classification", *flags)
    assert code == 0, err
    assert "| VN-DGCNN" in out
    assert "89.5" in out
    ((config, folder),) = trained
    assert folder == tmp_path / "vn-dgcnn-linear-z"
    assert (config.recipe.epochs, config.data.points, config.protocol.test_rotations) == (1, 512, ("z", "SO3"))
    assert (tmp_path / "classification.md").read_text() in out


def test_every_table_has_its_name():
    assert set(get_args(TableName)) == set(TABLES)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["segmentation", "--data", "modelnet40"], "no parts"),
        (["classification", "--only", "gcnn"], "the table has dgcnn"),
        (["classification", "--trials", "0"], "--trials"),
    ],
)
def test_mistakes_are_one_line(tmp_path, vn_command, flags, line):
    code, _, err = vn_command("tables", *flags, "--out", tmp_path)
    assert code == 2
    assert line in err
    assert err.count("\n") == 1
