"""Make a PointNet of your own rotation-invariant in two lines: `python examples/own_pointnet.py`.

It is trained on upright shapes and tested on rotated ones, as it stands and wrapped. The wrapped network has the same
accuracy in every pose. It is below that of the plain network on upright shapes: it has to learn the pose as well.
"""

import torch
from torch import nn

from vector_neurons.data import Shapes
from vector_neurons.geometry import rotations
from vector_neurons.models import Canonicalize  # the first line


def pointnet(classes: int) -> nn.Module:
    """A PointNet on clouds `(B, 3, N)`; its output depends on the pose."""
    features = [nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.ReLU(), nn.AdaptiveMaxPool1d(1)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(128, classes))


families = ["guitar", "mug", "helicopter"]
sets = (Shapes(split, size=150, points=96, families=families) for split in ("train", "test"))
train, test = (data.batch(torch.arange(len(data))) for data in sets)
rotated = rotations.rotate(test.points, rotations.draw("SO3", len(test.points)))
for name in ("plain", "wrapped"):
    torch.manual_seed(0)
    network = pointnet(len(families))
    if name == "wrapped":
        network = Canonicalize(network, channels_first=True)  # the second line
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for chosen in torch.cat([torch.randperm(150) for _ in range(16)]).split(25):
        loss = nn.functional.cross_entropy(network(train.points[chosen].mT), train.label[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = [(network.eval()(x.mT).argmax(-1) == test.label).double().mean() for x in (test.points, rotated)]
    print(f"{name}: {found[0]:.1%} upright, {found[1]:.1%} rotated")
