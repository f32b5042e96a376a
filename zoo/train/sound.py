"""What training a sound model needs beside loss and data: statistics of the mel bands, masks on the spectrogram."""

from torch import nn

from zoo.train.recipe import Recipe
from zoo.train.sets import Sets

MASKS = {"none": None, "light": (10, 8, 1), "medium": (20, 12, 2), "strong": (30, 16, 2, 0.5)}  # time, freq, count, colour


def prepare(model: nn.Module, recipe: Recipe, data: Sets) -> None:
    """Mean and deviation of every mel band from the training split (a checkpoint's own are kept), SpecAugment by `augment`."""
    from zoo.models.mel import SpecAugment

    if not recipe.start and hasattr(model.frontend, "fit"):
        model.frontend.fit(data.preprocess(source) for source in data.train.sources)
    masks = MASKS[recipe.augment]
    if masks is not None and hasattr(model, "augment"):
        model.augment = SpecAugment(*masks)
