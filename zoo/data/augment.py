"""Training augmentation for pictures, built on timm, and the random state that ties it to the item."""

import hashlib
import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from zoo.errors import UsageError
from zoo.preprocess import ImagePreprocess

LEVELS = ("none", "light", "medium", "strong")


@contextmanager
def kept_random_state():
    """Leaves the global generators of python, numpy and torch as they were."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def number(*parts) -> int:
    """64 bits that depend on all parts, e.g. (seed, epoch, item)."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def seed_all(*parts) -> None:
    """Seeds the global generators (those that timm and torchvision draw from) by `number(*parts)`."""
    value = number(*parts)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)


@dataclass(frozen=True)
class Augment:
    """Steps on one picture, each of which draws from the global generators. None: left out.

    resize: PIL picture of any size -> PIL at the model's size; None: the picture comes at that size already.
    crop:   pixels of reflected border (vertical, horizontal) for a random crop; then a horizontal flip.
    mix:    PIL -> PIL (RandAugment).
    erase:  float (3, h, w) after normalising, in place.
    """

    resize: Callable | None = None
    crop: tuple[int, int] = (0, 0)
    mix: Callable | None = None
    erase: Callable | None = None

    def pixels(self, picture) -> np.ndarray:
        """(h, w, 3) uint8 from a PIL picture (with resize) or from (h, w, 3) uint8."""
        if self.resize:
            picture = self.resize(picture)
        picture = _crop_flip(np.asarray(picture), *self.crop)
        if self.mix:
            picture = self.mix(Image.fromarray(picture))
        return np.asarray(picture)


def augmentation(level: str | None, preprocess: ImagePreprocess) -> Augment | None:
    """The Augment of a level; None for "none". Raises UsageError for a level that does not exist.

    light: crop + flip; medium: + one RandAugment step and erasing; strong: random resized crop + flip, two
    larger RandAugment steps, erasing.
    """
    if level in (None, "none"):
        return None
    if level not in LEVELS:
        raise UsageError(f"augment: {level!r}; allowed: {', '.join(LEVELS)}")
    h, w = preprocess.size
    crop = (h // 8, w // 8)
    if level == "light":
        return Augment(crop=crop)
    from timm.data.auto_augment import rand_augment_transform  # here, because timm costs 3 s
    from timm.data.random_erasing import RandomErasing
    from timm.data.transforms import RandomResizedCropAndInterpolation

    ground = tuple(min(255, max(0, round(255 * m))) for m in preprocess.mean)
    options = {"translate_const": int(min(h, w) * 0.45), "img_mean": ground}
    erase = RandomErasing(probability=0.25, device="cpu")
    if level == "medium":
        return Augment(crop=crop, mix=rand_augment_transform("rand-m5-n1-mstd0.5-inc1", options), erase=erase)
    cut = RandomResizedCropAndInterpolation((h, w), scale=(0.35, 1.0), interpolation=preprocess.interpolation)
    return Augment(resize=cut, mix=rand_augment_transform("rand-m9-n2-mstd0.5-inc1", options), erase=erase)


def _crop_flip(pixels: np.ndarray, border_h: int, border_w: int) -> np.ndarray:
    """Random crop with reflected borders and flip, as one gather: cheaper than padding first."""
    rows = _reflected(pixels.shape[0], random.randint(-border_h, border_h))
    columns = _reflected(pixels.shape[1], random.randint(-border_w, border_w))
    if random.random() < 0.5:
        columns = columns[::-1]
    return pixels[rows[:, None], columns]


def _reflected(size: int, offset: int) -> np.ndarray:
    at = np.abs(np.arange(offset, offset + size))
    return np.minimum(at, 2 * (size - 1) - at)
