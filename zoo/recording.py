"""A sound that is read in parts: a file or encoded bytes (through soundfile), or an array with its rate."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zoo.errors import ZooError

BLOCK = 2**18  # frames decoded at a time: the channels of a long file never lie in memory together
LOUDEST = 16.0  # far above full scale 1: such numbers are integers that were not scaled
MOST_CHANNELS = 32
RATES = 100, 10**7  # samples a second; a header that says 1 would make hours of a second's data
UNKNOWN = 2**62  # libsndfile's length of a stream that does not say it
_SCALES = {torch.int8: 2**7, torch.int16: 2**15, torch.int32: 2**31, torch.uint8: 2**7}
_CONTAINERS = (  # (offset, bytes): what soundfile is asked for and cannot read
    (4, b"ftyp", "MPEG-4 (m4a, mp4)"), (0, b"\x1aE\xdf\xa3", "Matroska or WebM"), (8, b"AVI ", "AVI video"),
    (0, b"0&\xb2u", "Windows Media (wma, wmv)"), (0, b"\xff\xf1", "AAC"), (0, b"\xff\xf9", "AAC"), (0, b"#!AMR", "AMR"),
    (0, b"FLV", "Flash video"), (0, b".RMF", "RealMedia"), (0, b"MAC ", "Monkey's Audio"), (0, b"wvpk", "WavPack"))


class _Bytes(io.BytesIO):
    """libsndfile seeks where a broken header points: what is outside is no place, and no traceback on the terminal."""

    def seek(self, offset: int, whence: int = 0) -> int:
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


class Recording:
    """rate in Hz, frames (samples of one channel), name for errors."""

    def __init__(self, name: str, rate: int, frames: int):
        self.name, self.rate, self.frames = name, rate, frames
        if not frames:
            raise ZooError(f"{name}: 0 samples")

    def read(self, first: int, count: int) -> Tensor:
        """(count,) float32 from frame `first`, channels mixed down; shorter where the sound ends. ZooError if broken."""
        blocks = [block.mean(0) for block in self._blocks(first, min(count, self.frames - first))]
        wave = torch.cat(blocks) if blocks else torch.zeros(0)
        if not torch.isfinite(wave).all():
            raise ZooError(f"{self.name}: NaN or infinite samples")
        if (loudest := max((float(block.abs().max()) for block in blocks), default=0.0)) > LOUDEST:
            raise ZooError(f"{self.name}: samples up to {loudest:.6g}; a sound lies in [-1, 1] (divide int16 values by 32768)")
        return wave

    def _blocks(self, first: int, count: int) -> Iterator[Tensor]:
        """(channels, time) float32 each."""
        raise NotImplementedError


class FileRecording(Recording):
    def __init__(self, name: str, opened):
        self.opened = opened
        if opened.frames > UNKNOWN:
            raise ZooError(f"{name}: does not say how long it is; write it anew: {_convert(name)}")
        if not RATES[0] <= opened.samplerate <= RATES[1]:
            raise ZooError(f"{name}: says it has {opened.samplerate} samples a second; a sound has {RATES[0]} to {RATES[1]}")
        super().__init__(name, opened.samplerate, opened.frames)

    def _blocks(self, first: int, count: int) -> Iterator[Tensor]:
        left = count
        try:
            self.opened.seek(first)
            while left > 0:
                room = max(1, BLOCK * MOST_CHANNELS // max(MOST_CHANNELS, self.opened.channels))
                block = self.opened.read(min(room, left), dtype="float32", always_2d=True)
                if not len(block):
                    break
                left -= len(block)
                yield torch.from_numpy(block).T
        except (RuntimeError, ValueError, OSError) as error:
            raise ZooError(f"{self.name}: broken sound ({error})") from error
        # the length of an mp3 without an index is a guess, so a little may be missing
        if left == count or left > self.frames / 100:
            raise ZooError(f"{self.name}: broken sound, {count - left} of {count} samples can be read")


class ArrayRecording(Recording):
    def __init__(self, name: str, wave: Tensor, rate: int):
        self.wave = wave
        super().__init__(name, rate, wave.shape[1])

    def _blocks(self, first: int, count: int) -> Iterator[Tensor]:
        part = self.wave[:, first:first + count]
        scale = _SCALES.get(part.dtype, 1)
        yield (part.float() - (scale if part.dtype == torch.uint8 else 0)) / scale


@contextmanager
def recording(source, name: str | None = None) -> Iterator[Recording]:
    """Opens a path, encoded bytes or a pair (waveform, rate) for reading in parts.

    waveform: array or tensor, (time,) or (channels, time); float in [-1, 1], or int8, int16, int32, uint8 (scaled).
    Raises ZooError that names `name` (default: the path) for whatever is no sound.
    """
    if isinstance(source, (tuple, list)):
        yield _from_pair(source, name or "waveform")
    elif isinstance(source, (bytes, bytearray, memoryview)):
        name = name or "sound in memory"
        if not len(source):
            raise ZooError(f"{name}: empty, 0 bytes")
        with _open(_Bytes(source), name) as opened:
            yield FileRecording(name, opened)
    elif isinstance(source, (str, os.PathLike)):
        name = name or str(source)
        _check_file(Path(source), name)
        with open(source, "rb", buffering=0) as file, _open(file, name) as opened:
            yield FileRecording(name, opened)
    elif isinstance(source, (np.ndarray, Tensor)):
        raise ZooError(f"{name or 'waveform'}: its rate is not known; give (waveform, rate), e.g. (waveform, 16000)")
    else:
        kind = type(source).__name__
        raise ZooError(f"{name or 'sound'}: expected a path, bytes or (waveform, rate), got {kind}")


def _check_file(path: Path, name: str) -> None:
    if not path.is_file():
        what = "is a folder, not a sound" if path.is_dir() else "is no regular file" if path.exists() else "no such file"
        raise ZooError(f"{name}: {what}")
    if not path.stat().st_size:
        raise ZooError(f"{name}: empty, 0 bytes")


def _open(file, name: str):
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise ZooError(f"reading sounds needs soundfile ({error}): pip install 'zoo-attention[audio]'") from error
    start = file.read(64)
    file.seek(0)
    try:
        # a number instead of a named file: the content decides on the format, not the suffix
        return soundfile.SoundFile(file if isinstance(file, io.BytesIO) else file.fileno(), closefd=False)
    except (RuntimeError, ValueError, TypeError, OSError) as error:  # soundfile's own checks of what a header says
        raise _unreadable(name, start, str(error)) from error


def _unreadable(name: str, start: bytes, why: str) -> ZooError:
    found = next((what for at, magic, what in _CONTAINERS if start[at:at + len(magic)] == magic), None)
    if found:
        return ZooError(f"{name}: {found}, which soundfile cannot read; convert it: {_convert(name)}")
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return ZooError(f"{name}: not a sound but text")
    return ZooError(f"{name}: not a sound that soundfile reads ({why.rsplit(': ', 1)[-1].rstrip('.')}); "
                    f"if a player plays it: {_convert(name)}")


def _convert(name: str) -> str:
    file = Path(name)
    return f"ffmpeg -i {file.name} {file.stem}{'-new' if file.suffix == '.flac' else ''}.flac"


def _from_pair(pair, name: str) -> ArrayRecording:
    if len(pair) != 2 or isinstance(pair[1], (np.ndarray, Tensor)) and pair[1].ndim:
        raise ZooError(f"{name}: expected (waveform, rate), in this order; got {tuple(type(p).__name__ for p in pair)}")
    wave, rate = pair
    if not isinstance(wave, (np.ndarray, Tensor)):
        raise ZooError(f"{name}: the waveform must be an array or a tensor, got {type(wave).__name__}")
    try:
        whole = int(rate) == rate and rate > 0
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise ZooError(f"{name}: the rate is {rate!r}; expected a whole number of samples a second, such as 16000")
    return ArrayRecording(name, _channels_first(wave, name), int(rate))


def _channels_first(wave: np.ndarray | Tensor, name: str) -> Tensor:
    """(channels, time). More channels than samples, and than any microphone has, are samples of (time, channels)."""
    shape, kind = tuple(wave.shape), str(wave.dtype).removeprefix("torch.")
    if len(shape) not in (1, 2) or len(shape) == 2 and not shape[0]:
        raise ZooError(f"{name}: expected (time,) or (channels, time), got {shape}")
    if len(shape) == 2 and shape[0] > max(MOST_CHANNELS, shape[1]):
        raise ZooError(f"{name}: {shape} would be {shape[0]} channels of {shape[1]} samples; expected (channels, time): "
                       "give waveform.T")
    if kind not in ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "uint8"):
        raise ZooError(f"{name}: expected float in [-1, 1], int8, int16, int32 or uint8, got {kind}")
    wave = wave.detach().cpu() if isinstance(wave, Tensor) else torch.from_numpy(np.ascontiguousarray(wave))
    return wave if len(shape) == 2 else wave[None]
