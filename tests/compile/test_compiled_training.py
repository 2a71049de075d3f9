"""`vn train --compile` learns what the plain network does."""

import pytest
from tiny import metrics, tiny

from vector_neurons.training import fit


@pytest.mark.slow
def test_a_compiled_run_has_the_losses_of_a_plain_one(tmp_path):
    few = {"epochs": 1, "size": 42, "stored_points": 64, "dropout": 0.0, "optimizer": "sgd", "lr": 0.01}
    for compiled in (False, True):
        fit(tiny(compile=compiled, **few), tmp_path / str(compiled))
    ((plain,), (compiled,)) = (metrics(tmp_path / name) for name in ("False", "True"))
    assert compiled["train"]["loss"] == pytest.approx(plain["train"]["loss"], abs=1e-3)
