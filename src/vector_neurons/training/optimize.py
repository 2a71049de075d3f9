"""Optimizers, learning-rate schedules and the moving average of the weights."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .config import RecipeConfig


def optimizer(model: nn.Module, recipe: RecipeConfig) -> torch.optim.Optimizer:
    """The optimizer of a recipe, over all weights."""
    weights = [p for p in model.parameters() if p.requires_grad]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(weights, lr=recipe.lr, weight_decay=recipe.weight_decay)
    # Scales and shifts of norms have a size that means something; decaying them to zero is not regularization.
    matrices = {"params": [p for p in weights if p.ndim > 1], "weight_decay": recipe.weight_decay}
    others = {"params": [p for p in weights if p.ndim <= 1], "weight_decay": 0.0}
    return torch.optim.AdamW([group for group in (matrices, others) if group["params"]], lr=recipe.lr)


def learning_rate(recipe: RecipeConfig, epochs: float) -> float:
    """The learning rate after so many epochs, a function without state.

    >>> recipe = RecipeConfig(epochs=10, lr=1.0, schedule="cosine", warmup=0.0)
    >>> [round(learning_rate(recipe, e), 3) for e in (0.0, 5.0, 10.0)]
    [1.0, 0.5, 0.0]
    """
    rising = recipe.warmup * recipe.epochs
    if epochs < rising:
        done = epochs / rising
        low = recipe.lr / 25 if recipe.schedule == "one-cycle" else 0.0
        share = (1 - math.cos(math.pi * done)) / 2 if recipe.schedule == "one-cycle" else done
        return low + (recipe.lr - low) * share
    if recipe.schedule == "constant":
        return recipe.lr
    if recipe.schedule == "step":
        return recipe.lr * recipe.gamma ** (int(epochs) // recipe.step_size)
    done = (epochs - rising) / (recipe.epochs - rising)
    return recipe.final_lr + (recipe.lr - recipe.final_lr) * (1 + math.cos(math.pi * done)) / 2


def set_lr(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


@torch.no_grad()
def average(averaged: nn.Module, model: nn.Module, decay: float, steps: int) -> None:
    """Update the moving average of weights and statistics; the decay starts low and rises to `decay`."""
    share = 1 - min(decay, (1 + steps) / (10 + steps))
    for mine, new in zip(_tensors(averaged), _tensors(model), strict=True):
        if mine.is_floating_point():
            mine.lerp_(new, share)
        else:
            mine.copy_(new)


def norms_are_frozen(recipe: RecipeConfig, epoch: int) -> bool:
    """Whether batch norms keep their statistics in this epoch, counted from 0."""
    return epoch >= (1 - recipe.freeze_norms) * recipe.epochs


@torch.no_grad()
def freeze_norms(model: nn.Module, averaged: nn.Module | None) -> None:
    """Let the batch norms of a model in training use running statistics: from `averaged` if given, as less noisy."""
    for name, norm in model.named_modules():
        if isinstance(norm, _BatchNorm):
            norm.eval()
            if averaged is not None:
                norm.load_state_dict(norm.state_dict() | dict(averaged.get_submodule(name).named_buffers()))


def _tensors(model: nn.Module) -> Iterable[Tensor]:
    return model.state_dict().values()
