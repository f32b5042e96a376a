"""From a sound to a model's waveform: any rate and any number of channels; of a long file only the part that is needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil

from torch import Tensor

from zoo.errors import ZooError
from zoo.recording import BLOCK, RATES, Recording, recording

# "kaiser_best" of librosa and resampy: 64 zero crossings, flat to 0.95 of the lower Nyquist rate
_WIDTH, _ROLLOFF, _BETA = 64, 0.9475937167399596, 14.769656459379492
_LONGEST_KERNEL = 10**6
LONGEST = 2**27  # samples in memory at once: half a GiB, more than 2 hours at 16 kHz


def load_sound(source, rate: int, name: str | None = None, start: float = 0.0, seconds: float | None = None) -> Tensor:
    """(time,) float32 in [-1, 1] at `rate` Hz, channels mixed down, of a path, encoded bytes or a pair (waveform, rate).

    start, seconds: the part; nothing else is decoded but a margin for the resampling filter. It equals the same part of
    the whole sound, and is shorter where the sound ends. waveform: (time,) or (channels, time), see zoo.recording.
    Raises ZooError that names `name` (default: the path): unreadable, 0 samples, NaN, `start` behind the end.
    """
    if not start >= 0 or seconds is not None and not seconds > 0:
        raise ZooError(f"{name or source}: start is {start} and seconds is {seconds}; start must be >= 0, seconds > 0")
    with recording(source, name) as sound:
        first, total = round(start * rate), length(sound, rate)
        if first >= total:
            raise ZooError(f"{sound.name}: nothing at {start:g} s, it is {sound.frames / sound.rate:g} s long")
        return part(sound, rate, first, total if seconds is None else max(1, round(seconds * rate)))


def windows(source, rate: int, seconds: float, overlap: float = 0.5, name: str | None = None) -> Iterator[tuple[float, Tensor]]:
    """(start in seconds, wave (samples,)) of windows that cover the whole sound, read one by one.

    overlap: the share of a window that the next one repeats. All windows have `seconds`: the last is moved back to end
    with the sound. A shorter sound is one window. Averaging a model's answers over them takes the same memory for any length.
    """
    if not (seconds > 0 and 0 <= overlap < 1):
        raise ZooError(f"windows: seconds is {seconds} and overlap {overlap}; allowed: seconds > 0, overlap in [0, 1)")
    count = max(1, round(seconds * rate))
    step = max(1, round(count * (1 - overlap)))
    with recording(source, name) as sound:
        last = max(0, length(sound, rate) - count)
        for first in (*range(0, last, step), last):
            yield first / rate, part(sound, rate, first, count)


def check_sound(source, name: str | None = None) -> None:
    """Decodes all of a sound, piece by piece. Raises ZooError as load_sound does."""
    with recording(source, name) as sound:
        for first in range(0, sound.frames, BLOCK):
            sound.read(first, BLOCK)


def length(sound: Recording, rate: int) -> int:
    """Samples of the whole sound at `rate`."""
    down, up = _ratio(sound.rate, rate)
    return -(-sound.frames * up // down)


def part(sound: Recording, rate: int, first: int, count: int) -> Tensor:
    """(count,) samples from `first` on, both counted at `rate`; shorter where the sound ends."""
    down, up = _ratio(sound.rate, rate)
    count = min(count, length(sound, rate) - first)
    if count > LONGEST:
        raise ZooError(f"{sound.name}: {count / rate / 3600:.1f} hours at {rate} Hz do not fit into memory at once; cut it, "
                       "or hear it in windows (--window 10)")
    if down == up:
        return sound.read(first, count)
    margin = ceil(_WIDTH * down / (min(down, up) * _ROLLOFF)) + 1
    # every `down` frames become `up` samples: from a whole multiple on, the filters fall as they do from 0 on
    begin = max(0, (first * down // up - margin) // down * down)
    end = -(-(first + count) * down // up) + margin
    wave = _resampler(down, up)(sound.read(begin, end - begin))
    skip = first - begin // down * up
    return wave[skip:skip + count].clone()


def _ratio(source: int, target: int) -> tuple[int, int]:
    """(down, up) without common factors. Odd rates (22254 Hz) are rounded by about a millionth, or the kernel would
    take gigabytes."""
    ratio = Fraction(source, target)
    if ratio.numerator * ratio.denominator > _LONGEST_KERNEL:
        ratio = ratio.limit_denominator(1000) or ratio
    return ratio.numerator, ratio.denominator


@lru_cache(maxsize=16)
def _resampler(down: int, up: int):
    try:
        from torchaudio.transforms import Resample
    except (ImportError, OSError) as error:
        raise ZooError(f"resampling needs torchaudio of the same build as torch ({str(error).splitlines()[0]}):\n"
                       "pip install 'zoo-attention[audio]', or give sounds at the model's rate") from error
    return Resample(down, up, "sinc_interp_kaiser", lowpass_filter_width=_WIDTH, rolloff=_ROLLOFF, beta=_BETA)


@dataclass(frozen=True)
class SoundPreprocess:
    """Sound -> float32 tensor (samples,) at `rate` Hz. seconds: longer clips are cut to their centre; None: never cut."""

    rate: int = 16000
    seconds: float | None = None

    def __post_init__(self):
        whole = isinstance(self.rate, int) and not isinstance(self.rate, bool) and self.rate >= 1
        number = isinstance(self.seconds, (int, float)) and not isinstance(self.seconds, bool)
        checks = {"rate": (whole and self.rate <= RATES[1], f"a whole number of samples a second, 1 to {RATES[1]}"),
                  "seconds": (self.seconds is None or number and self.seconds > 0, "a number > 0, or null for whole clips")}
        for key, (right, allowed) in checks.items():
            if not right:
                raise ZooError(f"preprocess: {key} is {getattr(self, key)!r}; allowed: {allowed}")

    @property
    def longest(self) -> int | None:
        """Samples that a clip has at most; None without a limit."""
        return self.seconds and max(1, round(self.seconds * self.rate))

    def __call__(self, source) -> Tensor:
        """(samples,) float32; source as for `load_sound`."""
        return self.wave(source)

    def wave(self, source, name: str | None = None) -> Tensor:
        with recording(source, name) as sound:
            total = length(sound, self.rate)
            count = min(total, self.longest or total)
            return part(sound, self.rate, (total - count) // 2, count)

    def to_dict(self) -> dict:
        """Plain values for the Card."""
        return {"rate": self.rate, "seconds": self.seconds}

    @classmethod
    def from_dict(cls, values: dict) -> "SoundPreprocess":
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            allowed = ", ".join(cls.__dataclass_fields__)
            raise ZooError(f"preprocess: unknown key {unknown[0]!r}; allowed: {allowed}")
        return cls(**values)
