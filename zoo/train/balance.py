"""balance: weights. How much a class or tag counts in the loss, by how rare it is in the training split."""

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.train.recipe import Recipe


def class_weights(recipe: Recipe, labels: Sequence[int], classes: int) -> Tensor | None:
    """One weight a class (classes), mean 1 over the items; None where the recipe does not ask for it."""
    if recipe.balance != "weights":
        return None
    counts = torch.bincount(torch.as_tensor(labels), minlength=classes).clamp(min=1)
    return counts.sum() / (classes * counts.float())


def tag_weights(recipe: Recipe, tags: Tensor) -> Tensor | None:
    """How much rarer a tag is than its absence (tags), from (items tags) of 0, 1 and NaN (not known)."""
    if recipe.balance != "weights":
        return None
    present = (tags == 1).sum(0)
    return (tags == 0).sum(0) / present.clamp(min=1).float()
