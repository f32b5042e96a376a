"""Items of sound -> training samples, each a function of (seed, epoch, item) only, and how they become a batch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from zoo.data.augment import LEVELS, number
from zoo.data.items import Items
from zoo.errors import UsageError, ZooError
from zoo.recording import recording
from zoo.sound import SoundPreprocess, length, load_sound, part

CACHE_BYTES = 2**30


@dataclass(frozen=True)
class SoundAugment:
    """gain: at most so many dB louder or softer; shift: in time, by at most this share of the clip, zeros move in; speed: at most
    this share faster or slower, pitch and length with it (other voices); noise: white, so many dB (least, most) below the clip's
    mean power."""

    gain: float
    shift: float
    speed: float = 0.0
    noise: tuple[float, float] | None = None

    def __call__(self, wave: Tensor, draw: np.random.Generator) -> Tensor:
        """(samples,) -> (samples,), with `speed` of another length."""
        if self.speed:
            size = max(1, round(len(wave) / (1 + draw.uniform(-self.speed, self.speed))))
            wave = F.interpolate(wave[None, None], size, mode="linear")[0, 0]
        wave = _shifted(wave, round(draw.uniform(-self.shift, self.shift) * len(wave)))
        wave = wave * 10 ** (draw.uniform(-self.gain, self.gain) / 20)
        if self.noise:
            level = wave.square().mean().sqrt() * 10 ** (-draw.uniform(*self.noise) / 20)
            wave = wave + level * torch.from_numpy(draw.standard_normal(len(wave), np.float32))
        return wave


_AUGMENTS = {"none": None, "light": SoundAugment(3, 0.05), "medium": SoundAugment(6, 0.1, 0.1),
             "strong": SoundAugment(10, 0.2, 0.2, (10, 40))}


def _shifted(wave: Tensor, offset: int) -> Tensor:
    out = torch.zeros_like(wave)
    kept = len(wave) - abs(offset)
    out[max(0, offset):][:kept] = wave[max(0, -offset):][:kept]
    return out


def collate(samples: list[tuple[Tensor, int | Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """waves (b, longest) padded with zeros, lengths (b,) int64, labels (b,) int64 or (b, classes) float32."""
    waves, labels = zip(*samples, strict=True)
    labels = torch.stack(labels) if isinstance(labels[0], Tensor) else torch.tensor(labels)
    return pad_sequence(waves, batch_first=True), torch.tensor([len(wave) for wave in waves]), labels


class SoundDataset(Dataset):
    """Samples (wave (samples,) float32 at preprocess.rate, label); of items with tags the label is float32 (classes,).

    A place is an index, or what the loader sends: (index, epoch, repeat). augment: none is the preprocessing of
    inference (with preprocess.seconds: the centre). The others cut at random where preprocess.seconds is set, and
    light: gain +-3 dB, shift in time by at most 5 % of the clip; medium: 6 dB, 10 %, speed +-10 %; strong: 10 dB, 20 %,
    speed +-20 %, white noise 10 to 40 dB below the clip. cache: waves stay in memory if all fit in 1 GiB; if not, of a long
    file only the part that is cut out is read.
    """

    collate = staticmethod(collate)

    def __init__(self, items: Items, preprocess: SoundPreprocess, augment: str | None = None, seed: int = 0,
                 cache: bool = True):
        if items.labels is None and items.tags is None:
            raise ZooError("sound data set: the items have neither labels nor tags")
        if augment is not None and augment not in LEVELS:
            raise UsageError(f"augment: {augment!r}; allowed: {', '.join(LEVELS)}")
        self.items, self.preprocess, self.seed, self.epoch = items, preprocess, seed, 0
        self.augment = _AUGMENTS[augment or "none"]
        # all or none: an item must not be a bit different once others have filled the cache
        self._cache = [None] * len(items) if cache and self._fits() else None

    def __len__(self) -> int:
        return len(self.items)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of places given as a bare index."""
        self.epoch = epoch

    def prepare(self) -> None:
        """Fills the cache now, so that workers inherit it instead of decoding the same again every epoch."""
        if self._cache is not None and any(wave is None for wave in self._cache):
            with ThreadPoolExecutor(2) as pool:
                for _ in pool.map(self._kept, range(len(self))):
                    pass

    def wave(self, at) -> Tensor:
        """(samples,) float32."""
        index, epoch, repeat = at if isinstance(at, tuple) else (int(at), self.epoch, 0)
        if self.augment is None:
            return self._kept(index)
        draw = np.random.default_rng(number("sound", self.seed, index, epoch, repeat))
        return self.augment(self._cut(index, draw.random()), draw)

    def label(self, at) -> int | Tensor:
        index = at[0] if isinstance(at, tuple) else int(at)
        if self.items.tags is None:
            return self.items.labels[index]
        label = torch.zeros(len(self.items.classes))
        label[self.items.tags[index]] = 1
        return label

    def __getitem__(self, at):
        return self.wave(at), self.label(at)

    def _cut(self, index: int, place: float) -> Tensor:
        """The clip, or a part of preprocess.seconds that begins at the share `place` of the possible beginnings."""
        longest, rate = self.preprocess.longest, self.preprocess.rate
        if longest is None or self._cache is not None:
            wave = self._kept(index)
            first = int(place * (max(0, len(wave) - (longest or len(wave))) + 1))
            return wave[first:first + (longest or len(wave))]
        with recording(self.items.sources[index], self.items.keys[index]) as sound:
            return part(sound, rate, int(place * (max(0, length(sound, rate) - longest) + 1)), longest)

    def _kept(self, index: int) -> Tensor:
        """The wave that cutting and augmentation start from."""
        if self._cache is not None and self._cache[index] is not None:
            return self._cache[index]
        source, key = self.items.sources[index], self.items.keys[index]
        if self.augment is None:
            wave = self.preprocess.wave(source, key)
        else:
            wave = load_sound(source, self.preprocess.rate, key)
        if self._cache is not None:
            self._cache[index] = wave
        return wave

    def _fits(self) -> bool:
        """Whether all waves fit in CACHE_BYTES, by the lengths in the files' headers."""
        left, longest = CACHE_BYTES // 4, self.preprocess.longest if self.augment is None else None
        for source, key in zip(self.items.sources, self.items.keys, strict=True):
            try:
                with recording(source, key) as sound:
                    samples = length(sound, self.preprocess.rate)
            except ZooError:  # it is named when its turn comes
                samples = 0
            left -= min(samples, longest or samples)
            if left < 0:
                return False
        return True
