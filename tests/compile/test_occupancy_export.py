"""Occupancy networks through torch.export and torch.compile."""

import pytest
import torch

from vector_neurons.models import OccupancyNetwork

SMALL = {"code": 24, "hidden": 24, "decoder_hidden": 16, "k": 6}
METHODS = {
    "OccNet": {"neurons": "scalar"},
    "invariant decoder": {"neurons": "scalar", "decoder": "invariant"},
    "VN-OccNet": {},
    "everything": {"encoder": "dgcnn", "invariants": "product", "conditional": True, "local": 4},
}
ALONE = {
    "products": {"invariants": "product"},
    "DGCNN": {"encoder": "dgcnn"},
    "conditional": {"conditional": True},
    "local": {"local": 4},
}
every_method = pytest.mark.parametrize(
    "method", [*METHODS, *(pytest.param(method, marks=pytest.mark.slow) for method in ALONE)]
)


def network(method):
    torch.manual_seed(0)
    return OccupancyNetwork(**SMALL, **(METHODS | ALONE)[method]).double().eval()


def draw(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_method
def test_networks_export_with_free_sizes(method):
    model, example = network(method), (draw(2, 40, 3), draw(2, 30, 3, seed=2))
    batch, points, queries = (torch.export.Dim(name, min=least) for name, least in SIZES.items())
    shapes = ({0: batch, 1: points}, {0: batch, 1: queries})
    exported = torch.export.export(model, example, dynamic_shapes=shapes).module()
    for given in (example, (draw(3, 55, 3, seed=4), draw(3, 11, 3, seed=5))):
        torch.testing.assert_close(exported(*given), model(*given))


@every_method
@pytest.mark.parametrize(
    "training", [pytest.param(False, marks=pytest.mark.slow, id="eval"), pytest.param(True, id="train")]
)
def test_networks_compile_in_one_graph(method, training):
    torch._dynamo.reset()  # the tests together would exceed its limit
    model, example = network(method).train(training), (draw(2, 40, 3), draw(2, 30, 3, seed=2))
    state = {name: x.clone() for name, x in model.state_dict().items()}
    expected = model(*example)
    model.load_state_dict(state)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(*example), expected)


SIZES = {"batch": 1, "points": 7, "queries": 1}
