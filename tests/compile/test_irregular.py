"""Networks on irregular graphs compile without a break and export with free numbers of points, edges and clouds."""

import pytest
import torch
from torch import nn

import vector_neurons as vn


class OnEdges(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.first, self.second = vn.EdgeConv(1, 4, pool=pool), vn.EdgeConv(4, 6, pool=pool)
        self.invariant, self.pool = vn.Invariant(6), vn.MaxPool(6)

    def forward(self, points, edge_index, batch, lengths):
        x = self.second(self.first(vn.lift(points), edge_index), edge_index)
        size = lengths.shape[0]  # a number that is known without a look at batch
        largest, mean, _ = self.invariant(x, batch=batch, size=size, pool=True)
        return largest, mean, self.pool(x, batch=batch, size=size)


def example(points, clouds, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, 3, generator=generator, dtype=torch.float64)
    edges = torch.randint(0, points, (2, 3 * points), generator=generator)
    return x, edges, torch.arange(points) % clouds, torch.zeros(clouds)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_network_on_edges_compiles_and_exports(pool):
    torch.compiler.reset()
    network, inputs = OnEdges(pool).double().eval(), example(30, 3)
    found = torch.compile(network, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(found, network(*inputs))
    points, edges, clouds = (torch.export.Dim(name, min=4) for name in ("points", "edges", "clouds"))
    free = ({0: points}, {1: edges}, {0: points}, {0: clouds})
    exported = torch.export.export(network, example(30, 5), dynamic_shapes=free).module()
    for sizes in ((30, 5), (21, 7)):
        torch.testing.assert_close(exported(*example(*sizes)), network(*example(*sizes)))
