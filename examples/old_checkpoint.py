"""Use a checkpoint of the authors' repository, or code that is written with its `vn_layers.py`.

python examples/old_checkpoint.py best_model.pth        a whole network of theirs, saved as a folder for vn.load
python examples/old_checkpoint.py                       a network of your own with their layers, in small
"""

import sys

import torch
from torch import Tensor, nn

import vector_neurons as vn
from vector_neurons.compat.vnn import VNLinearLeakyReLU, VNStdFeature  # was: from models.vn_layers import ...
from vector_neurons.models import reference


class Old(nn.Module):
    """Code as it is found in other repositories: axes `[B, C, 3, N]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = VNLinearLeakyReLU(1, 12, dim=4, negative_slope=0.0)
        self.std_feature = VNStdFeature(12, dim=4)

    def forward(self, x: Tensor) -> Tensor:
        """Invariants of clouds `[B, 3, N]`."""
        return self.std_feature(self.conv(x.unsqueeze(1)))[0].amax(dim=-1)


if len(sys.argv) > 1:
    vn.save(reference.load(sys.argv[1]), "converted")
    print("wrote converted/, to be opened by vn.load")
else:
    torch.save(Old().state_dict(), "old.pth")
    network = Old().eval()
    print(network.load_state_dict(torch.load("old.pth", weights_only=True), strict=True))
    points = torch.randn(2, 3, 200)
    rotated = vn.geometry.rotations.draw("SO3", 2) @ points
    print(f"change under rotation: {(network(points) - network(rotated)).abs().max():.0e}")
