"""The scalar networks of the authors' repositories, and ours from the same state dict."""

import pytest
import torch

from vector_neurons.models import DGCNN, DGCNNSegmenter, PointNet, PointNetSegmenter, reference
from vector_neurons.testing import relative_error

from . import scalars

NETWORKS = {
    "dgcnn_cls": (scalars.DGCNNCls, DGCNN, {"k": 8}),
    "dgcnn_partseg": (scalars.DGCNNPartSeg, DGCNNSegmenter, {"k": 8}),
    "pointnet_cls": (scalars.PointNetCls, PointNet, {}),
    "pointnet_partseg": (scalars.PointNetPartSeg, PointNetSegmenter, {}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_the_authors(name):
    theirs, ours, settings = NETWORKS[name]
    network = theirs(outputs=7, **settings).double().eval()
    model = reference.load(scalars.random_state(network), **settings)
    assert type(model) is ours
    assert model.arguments["neurons"] == "scalar"
    points = torch.randn(3, 24, 3, dtype=torch.float64)
    parts = name.endswith("partseg")
    expected = network(points.mT, torch.eye(16, dtype=torch.float64)[:3]) if parts else network(points.mT)
    found = model(points, torch.arange(3)) if parts else model(points)
    if name == "dgcnn_partseg":
        expected = expected.mT
    if name.startswith("pointnet"):
        found = found.log_softmax(-1)
    assert relative_error(found, expected) <= 1e-12


def test_a_pointnet_with_normals_is_told_by_its_shapes():
    state = scalars.random_state(scalars.PointNetCls().double())
    state["feat.conv1.weight"] = torch.zeros(64, 6, 1)
    with pytest.raises(reference.CheckpointError, match=r"feat\.conv1\.weight is \(64, 6\), not \(64, 3\)"):
        reference.load(state)
