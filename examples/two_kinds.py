"""Write a point network once, over a kit of layers: it is a classical network and an equivariant one.

    python examples/two_kinds.py

To convert a PyTorch network, take its layers from a kit (`nn.Linear` + norm + ReLU becomes `kit.Block`), put `kit.lift`
first and `kit.Invariant` before the classifier. Nothing is trained here: the symmetry is in the layers.
"""

import torch
from torch import Tensor, nn

import vector_neurons as vn


class Network(nn.Module):
    """A small classifier, for each kind of neurons."""

    def __init__(self, classes: int, neurons: vn.typing.Neurons) -> None:
        super().__init__()
        kit = vn.KITS[neurons]  # kit.width(96) is 96 scalars, a third as many vectors, or 48 scalars and 16 vectors
        self.lift = kit.lift
        self.edge = kit.EdgeConv(kit.width(3), kit.width(96), k=16)
        self.body = nn.Sequential(kit.Block(kit.width(96), kit.width(192)), kit.Block(kit.width(192), kit.width(192)))
        self.invariant = kit.Invariant(kit.width(192), frame="linear")
        self.head = nn.Linear(self.invariant.out_channels, classes)

    def forward(self, points: Tensor) -> Tensor:
        """Logits `(B, classes)` of clouds `(B, N, 3)`."""
        return self.head(self.invariant(self.body(self.edge(self.lift(points)))).amax(dim=1))


torch.manual_seed(0)
points = vn.geometry.sampling.unit_ball(torch.randn(1, 1024, 3))
print("Largest relative change of the logits when a cloud of 1,024 points is rotated (5 random rotations):")
for neurons in vn.KITS:
    network = Network(classes=40, neurons=neurons).eval()
    count = sum(p.numel() for p in network.parameters())
    change = vn.testing.equivariance_error(network, points, takes="points", gives="scalars", trials=5)
    print(f"  {neurons} neurons ({count:,} parameters): {change:.1e}")
