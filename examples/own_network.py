"""Train a small network of your own on upright shapes, test it on rotated ones: `python examples/own_network.py`."""

import torch
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.data import Shapes


class Tiny(nn.Module):
    """Edges, two blocks, invariants, a maximum over the points."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Sequential(vn.EdgeConv(1, 16, k=10), vn.Block(16, 32), vn.Block(32, 32))
        self.invariant = vn.Invariant(32, frame="linear")
        self.head = nn.Linear(self.invariant.out_channels, classes)

    def forward(self, points: Tensor) -> Tensor:
        """Logits `(B, classes)` of clouds `(B, N, 3)`."""
        return self.head(self.invariant(self.vectors(vn.lift(points))).amax(dim=1))


torch.manual_seed(0)
families = ["chair", "mug", "hammer", "lamp"]
train, test = (Shapes(split, size=80, points=128, families=families) for split in ("train", "test"))
network = Tiny(len(families))
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
for chosen in torch.cat([torch.randperm(len(train)) for _ in range(12)]).split(16):
    batch = train.batch(chosen)
    loss = nn.functional.cross_entropy(network(batch.points), batch.label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

clouds = test.batch(torch.arange(len(test)))
for name, R in {"upright": torch.eye(3), "rotated": vn.geometry.rotations.draw("SO3", len(test))}.items():
    answers = network.eval()(clouds.points @ R.mT).argmax(-1)
    print(f"{name}: {(answers == clouds.label).double().mean():.1%} of {len(test)} test shapes")
