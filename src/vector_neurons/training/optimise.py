"""Optimisers, learning rates and averages of weights."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .settings import Recipe


def optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimiser of a recipe, over all weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(weights, lr=recipe.rate, momentum=0.9, weight_decay=recipe.decay)
    if recipe.optimiser == "adam":
        return torch.optim.Adam(weights, lr=recipe.rate, weight_decay=recipe.decay)
    # Scales and shifts of norms have a size that means something; pulling them to zero is not regularisation.
    matrices = {"params": [p for p in weights if p.ndim > 1], "weight_decay": recipe.decay}
    others = {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0}
    return torch.optim.AdamW([group for group in (matrices, others) if group["params"]], lr=recipe.rate)


def rate(recipe: Recipe, epochs: float) -> float:
    """The learning rate after so many epochs, of which this is a function and has no memory.

    >>> recipe = Recipe(epochs=10, rate=1.0, schedule="cosine", warm_up=0.0)
    >>> [round(rate(recipe, e), 3) for e in (0.0, 5.0, 10.0)]
    [1.0, 0.5, 0.0]
    """
    rising = recipe.warm_up * recipe.epochs
    if epochs < rising:
        done = epochs / rising
        low = recipe.rate / 25 if recipe.schedule == "one-cycle" else 0.0
        share = (1 - math.cos(math.pi * done)) / 2 if recipe.schedule == "one-cycle" else done
        return low + (recipe.rate - low) * share
    if recipe.schedule == "constant":
        return recipe.rate
    if recipe.schedule == "step":
        return recipe.rate * recipe.factor ** (int(epochs) // recipe.every)
    done = (epochs - rising) / (recipe.epochs - rising)
    return recipe.final_rate + (recipe.rate - recipe.final_rate) * (1 + math.cos(math.pi * done)) / 2


def set_rate(optimiser: torch.optim.Optimizer, value: float) -> None:
    """Take this learning rate from here on."""
    for group in optimiser.param_groups:
        group["lr"] = value


@torch.no_grad()
def average(averaged: nn.Module, model: nn.Module, decay: float, steps: int) -> None:
    """Move the averaged weights and statistics towards the model's; a young average has a short memory."""
    share = 1 - min(decay, (1 + steps) / (10 + steps))
    for mine, new in zip(_tensors(averaged), _tensors(model), strict=True):
        if mine.is_floating_point():
            mine.lerp_(new, share)
        else:
            mine.copy_(new)


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    return model.state_dict().values()
