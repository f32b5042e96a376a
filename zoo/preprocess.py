"""From a raw item to a model's input. What is done here is stored in the Card: inference does the same."""

import io
import os
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from zoo.errors import ZooError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_RESAMPLE = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_FITS = ("crop", "squash", "pad")
_ORIENTATION = 0x0112  # the EXIF tag
LARGEST_SIDE = 8192  # of a model's input


def load_image(source, name: str | None = None) -> Image.Image:
    """One upright 8-bit RGB picture from a path, encoded bytes, a PIL image or an array.

    EXIF rotation is applied, 16-bit gray is scaled, transparency is laid over white, an animation gives its
    first frame. Arrays: (h, w) or (h, w, 1|3|4); uint8, bool, uint16 (scaled) or float in [0, 1].
    Raises ZooError that names `name` (default: the path) for whatever cannot be read.
    """
    if isinstance(source, np.ndarray):
        return _rgb(_from_array(source, name or "array"))
    if isinstance(source, Image.Image):
        return _decode(source, name or getattr(source, "filename", "") or "picture")
    if isinstance(source, (bytes, bytearray, memoryview)):
        name = name or "picture in memory"
        if not len(source):
            raise ZooError(f"{name}: empty, 0 bytes")
        return _open(io.BytesIO(source), name)
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.is_file():
            what = "is a folder, not a picture" if path.is_dir() else "no such file"
            raise ZooError(f"{name or path}: {what}")
        if not path.stat().st_size:
            raise ZooError(f"{name or path}: empty, 0 bytes")
        return _open(path, name or str(path))
    kind = type(source).__name__
    raise ZooError(f"{name or 'picture'}: expected a path, bytes, a PIL image or an array, got {kind}")


def _open(file, name: str) -> Image.Image:
    try:
        opened = Image.open(file)
    except Exception as error:
        raise _unreadable(name, error) from error
    with opened:
        return _decode(opened, name)


def _decode(picture: Image.Image, name: str) -> Image.Image:
    try:
        picture.load()
        if picture.getexif().get(_ORIENTATION, 1) != 1:
            picture = ImageOps.exif_transpose(picture)
        return _rgb(picture)
    except Exception as error:  # on broken bytes Pillow's decoders raise whatever they trip over
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ZooError:
    if isinstance(error, Image.DecompressionBombError):
        return ZooError(f"{name}: refused, decompression bomb: {error}")
    if isinstance(error, Image.UnidentifiedImageError):
        return ZooError(f"{name}: not a picture, broken at its start, or of an unknown format")
    why = (str(error).splitlines() or ["no reason given"])[0]
    return ZooError(f"{name}: broken picture ({type(error).__name__}: {why})")


def _rgb(picture: Image.Image) -> Image.Image:
    """8-bit RGB over white. `convert` alone would clip 16 bits to white and turn transparency black."""
    if picture.mode[0] in "IF":
        picture = _deep_gray(picture)
    if picture.mode == "RGB" and "transparency" not in picture.info:
        return picture
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")


def _deep_gray(picture: Image.Image) -> Image.Image:
    """Modes I;16, I (16 bits in both) and F (full scale 1, 255 or 65535, by its maximum) to L or LA."""
    values = np.asarray(picture)
    if picture.mode == "F":
        values = np.nan_to_num(values, nan=0.0)
        scale = next((s for s in (1, 255) if values.max() <= s), 65535)
        gray = np.rint(np.clip(values / scale, 0, 1) * 255).astype(np.uint8)
    else:
        # a shift, no rounded division: 256 levels stay 256, written as v * 256 or as v * 257
        gray = (np.clip(values, 0, 65535).astype(np.uint16) >> 8).astype(np.uint8)
    clear = picture.info.get("transparency")
    if not isinstance(clear, int):
        return Image.fromarray(gray)
    alpha = np.where(values == clear, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(gray), Image.fromarray(alpha)))


def _from_array(array: np.ndarray, name: str) -> Image.Image:
    shape = array.shape[:2] if array.ndim == 3 and array.shape[2] == 1 else array.shape
    if not (len(shape) == 2 or len(shape) == 3 and shape[2] in (3, 4)) or 0 in shape:
        raise ZooError(f"{name}: expected shape (h, w) or (h, w, 1|3|4), got {array.shape}")
    array = array.reshape(shape)
    if array.dtype == np.bool_:
        array = array * np.uint8(255)
    elif array.dtype == np.uint16:
        array = (array >> 8).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ZooError(f"{name}: a float picture must lie in [0, 1], got {array.min()} .. {array.max()}")
        array = np.rint(array * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ZooError(f"{name}: expected uint8, uint16, bool or float in [0, 1], got {array.dtype}")
    return Image.fromarray(array)


def _three(values: tuple) -> bool:
    return len(values) == 3 and all(isinstance(v, (int, float)) and isfinite(v) for v in values)


@dataclass(frozen=True)
class ImagePreprocess:
    """Picture -> float32 tensor (3, h, w), `(pixel / 255 - mean) / std`.

    fit: "crop" scales until the picture covers size / crop_pct and cuts the centre (as timm does), "squash"
    ignores the aspect, "pad" keeps the whole picture on a ground of the mean colour (0 after normalising).
    """

    size: tuple[int, int] = (224, 224)
    fit: str = "crop"
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"
    crop_pct: float = 1.0

    def __post_init__(self):
        size = (self.size, self.size) if isinstance(self.size, int) else tuple(self.size)
        for key, value in (("size", size), ("mean", tuple(self.mean)), ("std", tuple(self.std))):
            object.__setattr__(self, key, value)  # lists come from JSON
        whole = len(size) == 2 and all(isinstance(n, int) and 1 <= n <= LARGEST_SIDE for n in size)
        checks = {
            "size": (whole, f"one or two integers from 1 to {LARGEST_SIDE}"),
            "fit": (self.fit in _FITS, f"one of {', '.join(_FITS)}"),
            "mean": (_three(self.mean), "three numbers"),
            "std": (_three(self.std) and all(s > 0 for s in self.std), "three numbers > 0"),
            "interpolation": (self.interpolation in _RESAMPLE, f"one of {', '.join(_RESAMPLE)}"),
            "crop_pct": (0 < self.crop_pct <= 1, "in (0, 1]"),
        }
        for key, (right, allowed) in checks.items():
            if not right:
                raise ZooError(f"preprocess: {key} is {getattr(self, key)!r}; allowed: {allowed}")

    def __call__(self, source) -> torch.Tensor:
        """(3, h, w) float32; source as for `load_image`."""
        return self.normalise(torch.from_numpy(self.image(source)))

    def image(self, source, name: str | None = None) -> np.ndarray:
        """(h, w, 3) uint8 RGB at the model's size."""
        return np.array(self.resize(load_image(source, name)))  # np.array: a writable copy

    def resize(self, picture: Image.Image) -> Image.Image:
        h, w = self.size
        if picture.size == (w, h) and self.crop_pct == 1:
            return picture
        resample = _RESAMPLE[self.interpolation]
        if self.fit == "squash":
            return picture.resize((w, h), resample)
        if self.fit == "pad":
            ground = tuple(min(255, max(0, round(255 * m))) for m in self.mean)
            return ImageOps.pad(picture, (w, h), resample, color=ground)
        return self._cover(picture, resample)

    def _cover(self, picture: Image.Image, resample) -> Image.Image:
        h, w = self.size
        least_h, least_w = int(h / self.crop_pct), int(w / self.crop_pct)
        if least_h * picture.width >= least_w * picture.height:  # the height decides
            scaled = (max(least_w, int(least_h * picture.width / picture.height)), least_h)
        else:
            scaled = (least_w, max(least_h, int(least_w * picture.height / picture.width)))
        picture = picture.resize(scaled, resample)
        left, top = round((scaled[0] - w) / 2), round((scaled[1] - h) / 2)
        return picture.crop((left, top, left + w, top + h))

    def normalise(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 (..., h, w, 3) -> float32 (..., 3, h, w)."""
        scale, shift = self._scale_shift
        channels_first = pixels.movedim(-1, -3).to(torch.float32, memory_format=torch.contiguous_format)
        return channels_first.mul_(scale).sub_(shift)

    @cached_property
    def _scale_shift(self) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in (self.mean, self.std))
        return (1 / (255 * std)).float(), (mean / std).float()

    def to_dict(self) -> dict:
        """Plain values for the Card."""
        return {"size": list(self.size), "fit": self.fit, "mean": list(self.mean), "std": list(self.std),
                "interpolation": self.interpolation, "crop_pct": self.crop_pct}

    @classmethod
    def from_dict(cls, values: dict) -> "ImagePreprocess":
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            allowed = ", ".join(cls.__dataclass_fields__)
            raise ZooError(f"preprocess: unknown key {unknown[0]!r}; allowed: {allowed}")
        return cls(**values)
