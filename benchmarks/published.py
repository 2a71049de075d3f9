"""The networks in the published formulation, which the benchmarks compare with.

The tests' transcription of the networks, with its layers exchanged for ones that do what the published code does step
by step: linear maps on transposed tensors, every edge built, the graph from a full distance matrix, masks as numbers.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional as F


def load() -> ModuleType:
    """The module of network functions, see `tests/models/reference.py`."""
    path = Path(__file__).parents[1] / "tests" / "models" / "reference.py"
    spec = importlib.util.spec_from_file_location("published_networks", path)
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)

    class Layers(networks._Layers):
        def linear(self, name: str, x: Tensor) -> Tensor:
            return F.linear(x.transpose(1, -1), self.state[f"{name}.weight"].flatten(1)).transpose(1, -1)

        def norm(self, name: str, x: Tensor) -> Tensor:
            state = {leaf: self.state[f"{name}.{leaf}"] for leaf in ("running_mean", "running_var", "weight", "bias")}
            past = [state["running_mean"].detach().clone(), state["running_var"].detach().clone()]
            return F.batch_norm(x, *past, state["weight"], state["bias"], self.training, eps=networks.BN_EPS)

        def vector_norm(self, name: str, v: Tensor) -> Tensor:
            length = torch.norm(v, dim=2) + networks.EPS
            changed = self.norm(f"{name}.bn", length)
            return v / length.unsqueeze(2) * changed.unsqueeze(2)

        def block(self, name: str, v: Tensor) -> Tensor:
            q = self.vector_norm(f"{name}.batchnorm", self.linear(f"{name}.map_to_feat", v))
            d = self.linear(f"{name}.map_to_dir", v)
            agreement = (q * d).sum(2, keepdim=True)
            keep = (agreement >= 0).to(q.dtype)
            squares = (d * d).sum(2, keepdim=True)
            bent = keep * q + (1 - keep) * (q - agreement / (squares + networks.EPS) * d)
            return self.slope * q + (1 - self.slope) * bent

    def edges(v: Tensor, k: int, cross: bool = False) -> Tensor:
        batch, channels, _, points = v.shape
        flat = v.flatten(1, 2)
        squares = flat.square().sum(1, keepdim=True)
        nearness = -squares - -2 * (flat.transpose(2, 1) @ flat) - squares.transpose(2, 1)
        nearest = nearness.topk(k, dim=-1).indices + points * torch.arange(batch).view(-1, 1, 1)
        rows = flat.transpose(2, 1).contiguous()
        other = rows.view(batch * points, -1)[nearest.flatten()].view(batch, points, k, channels, 3)
        own = rows.view(batch, points, 1, channels, 3).repeat(1, 1, k, 1, 1)
        parts = [other - own, own] + ([torch.cross(other, own, dim=-1)] if cross else [])
        return torch.cat(parts, dim=3).permute(0, 3, 4, 1, 2).contiguous()

    networks._Layers, networks._edges = Layers, edges
    return networks
