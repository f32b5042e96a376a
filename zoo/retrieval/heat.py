"""A heat map laid over a picture, blue to yellow (cividis): the same for every kind of colour vision."""

from dataclasses import replace

import numpy as np
from PIL import Image

from zoo.preprocess import ImagePreprocess, load_image

# Nunez, Anderton, Renslow 2018 (doi:10.1371/journal.pone.0199239); lightness only rises
CIVIDIS = (
    (0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115), (138, 134, 120),
    (165, 156, 116), (195, 179, 105), (254, 232, 56),
)  # fmt: skip
SLIGHT = 0.1
COVER = 0.62  # how much of a pixel is heat; the rest is the picture in gray


def seen(model, picture, side: int = 288) -> Image.Image:
    """What the model sees of a picture (its preprocessing may cut the edges), about `side` pixels large."""
    picture = load_image(picture)
    settings = model.card.preprocess
    steps = ImagePreprocess.from_dict(settings.get("image", settings))  # a text-image model has both kinds
    scale = max(1, round(side / max(steps.size)))
    return replace(steps, size=(steps.size[0] * scale, steps.size[1] * scale)).resize(picture)


def overlay(picture: Image.Image, heat: np.ndarray) -> Image.Image:
    """The picture in gray under its heat (rows, columns), >= 0; see `_levels`."""
    heat = Image.fromarray(_levels(np.asarray(heat, np.float32)))
    heat = heat.resize(picture.size, Image.Resampling.BICUBIC)
    level = np.clip(np.asarray(heat), 0, 1)[..., None] * (len(CIVIDIS) - 1)
    table = np.asarray(CIVIDIS, np.float32)
    low = np.minimum(level.astype(int), len(CIVIDIS) - 2)[..., 0]
    colour = table[low] + (table[low + 1] - table[low]) * (level - low[..., None])
    gray = np.asarray(picture.convert("L"), np.float32)[..., None]
    return Image.fromarray((COVER * colour + (1 - COVER) * gray).round().astype(np.uint8))


def _levels(heat: np.ndarray) -> np.ndarray:
    """Where on the colours: 0 to the largest value, where that is twice the mean or more.

    Else the mean is the middle, and what differs from it by most, or by SLIGHT of it, is at an end: what little a word
    prefers is seen, and noise is not.
    """
    relative = heat / max(float(heat.mean()), 1e-12)
    if relative.max() >= 2:
        return heat / heat.max()
    return 0.5 + (relative - 1) / (2 * max(float(np.abs(relative - 1).max()), SLIGHT))
