"""Every cell of the paper's tables can be built, and stands beside the paper's number."""

import pytest

from vector_neurons.data import Shapes
from vector_neurons.training import check, factory
from vector_neurons.training.presets import TABLES, presets


def test_every_row_has_a_number_for_every_column():
    for table in TABLES.values():
        assert all(len(row.paper) == len(table.columns) for row in table.rows if "ours" not in row.title)
        assert len({row.name for row in table.rows}) == len(table.rows)


def test_numbers_of_the_paper():
    numbers = {row.name: row.paper for row in TABLES["classification"].rows}
    assert numbers["vn-dgcnn"] == (89.5, 89.5, 90.2)
    assert numbers["pointnet"] == (85.9, 19.6, 74.7)
    ablation = {row.title: (row.name, row.paper) for row in TABLES["invariance"].rows}
    assert ablation["VN-DGCNN, linear frame"] == ("vn-dgcnn-linear-no-mean", (88.8, 88.8, 89.8))
    assert ablation["VN-DGCNN, MLP frame, mean"] == ("vn-dgcnn", (89.5, 89.5, 90.2))
    assert TABLES["aligned-segmentation"].rows[1].paper == (85.2, 43.8, 36.1)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_every_preset_can_work(task):
    found = presets(task)
    for config in found.values():
        check(config)
    assert ("fast-vn-dgcnn-detached-SO3" in found) == (task == "classification")


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_framenet_has_a_fast_recipe_and_none_of_the_paper(task):
    found = presets(task)
    config = found["fast-vn-framenet-SO3"]
    assert (config.network.model, config.recipe.epochs, config.recipe.early_points) == ("framenet", 40, None)
    assert "paper-vn-framenet-SO3" not in found


def test_the_recipes_of_the_paper():
    dgcnn, pointnet = (presets("classification")[f"paper-{name}-z"] for name in ("vn-dgcnn", "vn-pointnet"))
    recipe = dgcnn.recipe
    assert (recipe.optimizer, recipe.lr, recipe.schedule, recipe.final_lr) == ("sgd", 0.1, "cosine", 1e-3)
    assert (recipe.batch_size, recipe.epochs, recipe.label_smoothing, recipe.weight_decay) == (32, 250, 0.2, 1e-4)
    assert (pointnet.recipe.optimizer, pointnet.recipe.batch_size, pointnet.recipe.epochs) == ("adam", 24, 200)
    assert dgcnn.data.points == 1024
    data = Shapes("test", size=1)
    data.classes = tuple(map(str, range(40)))
    network = factory.build_network(dgcnn, data)
    assert sum(p.numel() for p in network.parameters()) == 2_899_830


def test_fast_takes_linear_frames_but_where_frames_are_the_question():
    assert presets("classification")["fast-vn-dgcnn-z"].network.frame == "linear"
    assert presets("classification")["paper-vn-dgcnn-z"].network.frame == "mlp"
    table = TABLES["invariance"]
    frames = [table.config(row, "z", "shapes", "fast").network.frame for row in table.rows]
    assert frames == [row.network.frame for row in table.rows]
