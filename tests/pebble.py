"""An occupancy network that sees a pebble in every cloud, without training."""

import torch

from vector_neurons.models import OccupancyNetwork, store


def pebble():
    """About a ball of radius 0.6 where the cloud has radius 1, with bumps that turn with the cloud."""
    torch.manual_seed(0)
    model = OccupancyNetwork(code=48, hidden=48, decoder_hidden=32, k=8).eval()
    with torch.no_grad():
        code = model.encode(torch.randn(4, 80, 3)).overall
        first, last = model.decoder.queries.linear, model.decoder.logits
        first.weight[:, 0] = -4.0  # of the squared distance from the center
        first.weight[:, 1:17] = torch.randn(32, 16) * 0.15 / code.std()
        first.weight[:, 17:] = 0.0
        first.bias.fill_(2.4)
        last.weight.fill_(1 / 32)
        last.bias.fill_(-1.0)
    model.metadata = store.Metadata(points=80, threshold=0.5)
    return model
