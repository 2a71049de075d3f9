"""Train a vector-neuron network with Hugging Face Accelerate: `accelerate launch examples/accelerate_training.py`.

Layers and networks are plain modules, so any training framework takes them.
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vector_neurons as vn
from vector_neurons.data import Shapes
from vector_neurons.nn.sync import synchronized

accelerator = Accelerator()
families = ["chair", "mug", "hammer", "lamp"]
shapes = {split: Shapes(split, size=80, points=128, families=families) for split in ("train", "test")}
clouds = {split: data.batch(torch.arange(len(data))) for split, data in shapes.items()}
train = DataLoader(TensorDataset(clouds["train"].points, clouds["train"].label), batch_size=16, shuffle=True)

torch.manual_seed(0)
network: nn.Module = vn.models.FrameNet(len(families), k=8, width=16)
optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
network, optimizer, train = accelerator.prepare(network, optimizer, train)
with synchronized(accelerator.num_processes > 1):  # batch norms see the whole batch, on any device
    for points, label in (batch for _ in range(15) for batch in train):
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(network(points), label))
        optimizer.step()

points, label = clouds["test"].points.to(accelerator.device), clouds["test"].label.to(accelerator.device)
R = vn.geometry.rotations.draw("SO3", len(points)).to(accelerator.device)
for name, seen in {"upright": points, "rotated": points @ R.mT}.items():
    right = (network.eval()(seen).argmax(-1) == label).double().mean()
    accelerator.print(f"{name}: {right:.1%} of {len(label)} test shapes")
