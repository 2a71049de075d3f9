"""What the parts of FrameNet are worth: the network without each of them, trained alike on a small budget.

    vn train classification --data modelnet40 --model benchmarks/ablations.py:NoFrames --points 256 --epochs 4 ...
    python benchmarks/ablations.py runs/ablation-*          the table of finished runs

`docs/networks.md` has the whole command and the table.
"""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from vector_neurons.geometry.neighbors import gather, knn
from vector_neurons.models import FrameNet
from vector_neurons.models.hierarchy import Stage
from vector_neurons.nn import functional as VF
from vector_neurons.nn import scalar
from vector_neurons.nn.features import Features
from vector_neurons.nn.frame_conv import FrameConv, rms_length
from vector_neurons.nn.hybrid import HybridBlock


class Full(FrameNet):
    """The network as it is."""


class Orthonormal(FrameNet):
    """Frames are rotation matrices: SO(3) in place of O(3)."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes, orthonormal=True)


class NoScalars(FrameNet):
    """Scalars do not pass from layer to layer: what a layer computes of them only weighs and gates its vectors."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        for block in self.modules():
            if isinstance(block, HybridBlock | FrameConv):
                block.register_forward_pre_hook(self.without_scalars)

    @staticmethod
    def without_scalars(layer: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...]:
        """Scalars in are zero, but for those of the convolution whose block follows in the same level."""
        of_conv = isinstance(layer, HybridBlock)
        return tuple(Features(x.scalars * of_conv, x.vectors) if isinstance(x, Features) else x for x in inputs)


class NoFrames(FrameNet):
    """Lengths in place of coordinates in learned frames: of offsets, of vectors, and angles with the center's."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        for module in self.modules():
            if isinstance(module, HybridBlock):
                module.forward = Lengths(module)  # type: ignore[method-assign]
            if isinstance(module, FrameConv):
                module._first_block = messages_of_lengths  # type: ignore[method-assign]
        self.seen = seen_by_lengths  # type: ignore[method-assign]


class Lengths:
    """A hybrid block whose scalars get the lengths of the vectors, three times, so that weights keep their shapes."""

    def __init__(self, block: HybridBlock) -> None:
        self.block = block

    def __call__(self, x: Features, mask: Tensor | None = None) -> Features:
        """Compute what the block computes of lengths."""
        lengths = VF.norm(x.vectors).repeat_interleave(3, dim=-1)
        s = self.block.block(torch.cat([x.scalars, lengths], dim=-1), mask)
        return Features(s, self.block.gate(s).sigmoid().unsqueeze(-2) * self.block.linear(x.vectors))


def messages_of_lengths(
    block: scalar.Block, offset: Tensor, x: Features, frame: Tensor, neighbors: Tensor, mask: Tensor | None
) -> Tensor:
    """The first block of messages, of `‖d‖`, `‖V_m‖`, `⟨V_m, V_n⟩` and `⟨V_m, d⟩` instead of coordinates in a frame."""
    theirs, own = gather(x.vectors, neighbors), gather(x.vectors, neighbors[..., :1])
    along, length = (theirs * offset.unsqueeze(-1)).sum(-2), VF.norm(offset.unsqueeze(-1))
    seen = torch.cat([VF.norm(theirs), (theirs * own).sum(-2), along, length.expand(*length.shape[:-1], 4)], dim=-1)
    on_scalars, on_seen = block.linear.weight.tensor_split([x.scalars.shape[-1]], dim=1)
    mapped = nn.functional.linear(seen, on_seen)
    if x.scalars.shape[-1]:
        mapped = mapped + gather(nn.functional.linear(x.scalars, on_scalars), neighbors)
    return block.activate(mapped, mask)


def seen_by_lengths(points: Tensor, x: Features, frame: Tensor) -> Tensor:
    """Scalars, and the lengths of vectors and positions."""
    v = torch.cat([x.vectors, points.unsqueeze(-1)], dim=-1)
    return torch.cat([x.scalars, VF.norm(v).repeat_interleave(3, dim=-1)], dim=-1)


class NoHierarchy(FrameNet):
    """All levels at all points."""

    def describe(
        self, points: Tensor, vectors: Tensor | None, scalars: Tensor | None, mask: Tensor | None
    ) -> tuple[list[Stage], Tensor, Tensor]:
        """As the network does, without sampling."""
        points = points - points.mean(1, keepdim=True)
        points = points / rms_length(points.unsqueeze(2), None).squeeze(1)
        neighbors = knn(points, self.k)
        x = self.stem(points, vectors, scalars, neighbors, None)
        for level in self.levels:
            x = level(points, x, neighbors, None)
        frame = self.frame(x.vectors.mean(1, keepdim=True))
        h = self.embed(self.seen(points, x, frame))
        return [Stage(points, x, None)], frame, torch.cat([h.amax(1), h.mean(1)], dim=-1)


def table(runs: list[str]) -> None:
    """Print the best validation accuracy of each run, and its time."""
    print("| network | validation accuracy after each epoch | minutes |\n|---|---|---|")
    for run in map(Path, runs):
        if not (run / "metrics.jsonl").exists():
            continue  # no epoch is done yet
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        name = json.loads((run / "config.json").read_text())["network"]["model"].rpartition(":")[2]
        accuracies = ", ".join(f"{epoch['val']['accuracy']:.1f}" for epoch in epochs)
        print(f"| {name} | {accuracies} | {sum(epoch['time']['seconds'] for epoch in epochs) / 60:.0f} |")


if __name__ == "__main__":
    table(sys.argv[1:])
