"""Items -> training samples, each a function of (seed, epoch, item) only: not of batch, worker or order."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch.utils.data import Dataset

from zoo.data.augment import augmentation, kept_random_state, number, seed_all
from zoo.data.items import Items
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess

CACHE_BYTES = 2**30


class PictureDataset(Dataset):
    """Pictures of `items` as float32 (3, h, w), normalised and augmented (none, light, medium, strong).

    A place is an index, or what the loader sends: (index, epoch, repeat), repeat counting the draws of an
    item within an epoch. cache: pictures stay in memory as uint8 at the model's size if all fit in 1 GiB.
    """

    def __init__(self, items: Items, preprocess: ImagePreprocess, augment: str | None = None, seed: int = 0,
                 cache: bool = True):
        self.items, self.preprocess, self.seed, self.epoch = items, preprocess, seed, 0
        self.augment = augmentation(augment, preprocess)
        whole = self.augment is not None and self.augment.resize is not None
        shape = (len(items), *preprocess.size, 3)
        fits = cache and items.held and not whole and math.prod(shape) <= CACHE_BYTES
        self._cache = np.empty(shape, np.uint8) if fits else None
        self._cached = np.zeros(len(items), bool)

    def __len__(self) -> int:
        return len(self.items)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of places given as a bare index."""
        self.epoch = epoch

    def prepare(self) -> None:
        """Fills the cache now, so that workers inherit it instead of decoding the same again every epoch."""
        if self._cache is not None and not self._cached.all():
            with ThreadPoolExecutor(2) as pool:
                for _ in pool.map(self._resized, range(len(self))):
                    pass

    def images(self, places: list) -> torch.Tensor:
        """(b, 3, h, w) float32."""
        if self.augment is None:
            return self._normalised([self._resized(self._place(at)[0]) for at in places])
        with kept_random_state():
            images = self._normalised([self._augmented(*self._place(at)) for at in places])
            if self.augment.erase:
                for image, at in zip(images, places, strict=True):
                    seed_all("erase", self.seed, *self._place(at))
                    self.augment.erase(image)
        return images

    def _place(self, at) -> tuple[int, int, int]:
        return at if isinstance(at, tuple) else (int(at), self.epoch, 0)

    def _augmented(self, index: int, epoch: int, repeat: int) -> np.ndarray:
        whole = self.augment.resize is not None
        picture = self.items.image(index) if whole else self._resized(index)
        seed_all("pixels", self.seed, index, epoch, repeat)
        return self.augment.pixels(picture)

    def _resized(self, index: int) -> np.ndarray:
        if self._cached[index]:
            return self._cache[index]
        pixels = self.preprocess.image(self.items.sources[index], self.items.keys[index])
        if self._cache is not None:
            self._cache[index] = pixels
            self._cached[index] = True
        return pixels

    def _normalised(self, pixels: list[np.ndarray]) -> torch.Tensor:
        return self.preprocess.normalise(torch.from_numpy(np.stack(pixels)))  # a batch at once is cheaper

    def __getitem__(self, at):
        return self.__getitems__([at])[0]


class ImageDataset(PictureDataset):
    """Samples (image (3, h, w), label)."""

    def __init__(self, items: Items, preprocess: ImagePreprocess, augment: str | None = None, seed: int = 0,
                 cache: bool = True):
        if items.labels is None:
            raise ZooError("image data set: the items have no labels")
        super().__init__(items, preprocess, augment, seed, cache)

    def __getitems__(self, places: list) -> list[tuple[torch.Tensor, int]]:
        labels = [self.items.labels[self._place(at)[0]] for at in places]
        return list(zip(self.images(places), labels, strict=True))


class PairDataset(PictureDataset):
    """Samples (image (3, h, w), caption, item index); one caption of the item, drawn anew every epoch.

    first: the share of draws that take the first caption (the name, where tags follow it); 0: all captions alike.
    """

    def __init__(self, items: Items, preprocess: ImagePreprocess, augment: str | None = None, seed: int = 0,
                 cache: bool = True, first: float = 0.0):
        captions = (items.captions or [[]] * len(items)) if items.held else []  # of shards they were looked at on opening
        bare = [key for key, texts in zip(items.keys, captions) if not texts]
        if bare:
            raise ZooError(f"pairs: {len(bare)} of {len(items)} items have no caption: {', '.join(bare[:3])}")
        super().__init__(items, preprocess, augment, seed, cache)
        self.first = first

    def caption(self, at) -> str:
        index, epoch, repeat = self._place(at)
        texts = self.items.captions[index]
        drawn = number("caption", self.seed, index, epoch, repeat)
        if drawn >> 32 < self.first * 2**32:
            return texts[0]
        return texts[(drawn & 0xFFFFFFFF) % len(texts)]

    def __getitems__(self, places: list) -> list[tuple[torch.Tensor, str, int]]:
        indices = [self._place(at)[0] for at in places]
        return list(zip(self.images(places), map(self.caption, places), indices, strict=True))
