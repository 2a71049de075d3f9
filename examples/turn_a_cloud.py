"""Turn a cloud in front of a vector network and its scalar twin: one does not notice, the other does.

Both are the same dozen lines, built from two kits of layers. Nothing is trained: the symmetry is in the layers.
"""

import torch
from torch import Tensor, nn

import vector_neurons as vn


class Network(nn.Module):
    """A small classifier, for either kind of neurons."""

    def __init__(self, classes: int, neurons: vn.typing.Neurons) -> None:
        super().__init__()
        kit = vn.KITS[neurons]
        self.lift = kit.lift
        self.edge = kit.EdgeConv(kit.width(3), kit.width(96), k=16)
        self.body = nn.Sequential(kit.Block(kit.width(96), kit.width(192)), kit.Block(kit.width(192), kit.width(192)))
        self.read = kit.Invariant(kit.width(192), frame="linear")
        self.head = nn.Linear(self.read.out_channels, classes)

    def forward(self, points: Tensor) -> Tensor:
        """Logits `(B, classes)` of clouds `(B, N, 3)`."""
        x = self.read(self.body(self.edge(self.lift(points))))
        return self.head(x.amax(dim=1))


def main() -> None:
    """Print how much each network's logits change, relative to their size."""
    torch.manual_seed(0)
    points = vn.geometry.sampling.unit_ball(torch.randn(1, 1024, 3))
    print("Largest relative change of the logits when a cloud of 1,024 points is turned (5 random rotations):")
    for neurons in vn.KITS:
        network = Network(classes=40, neurons=neurons).eval()
        count = sum(p.numel() for p in network.parameters())
        change = vn.testing.equivariance_error(network, points, takes="points", gives="scalars", trials=5)
        print(f"  {neurons} neurons ({count:,} parameters): {change:.1e}")


if __name__ == "__main__":
    main()
