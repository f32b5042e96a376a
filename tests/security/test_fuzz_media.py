"""Pictures and sounds with broken bytes: read, or refused by name."""

import io
import warnings

import numpy as np
import pytest
from fuzzing import broken, ends_well, fuzz
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from zoo.preprocess import load_image
from zoo.sound import check_sound, load_sound

PICTURES = {"JPEG": {}, "PNG": {}, "GIF": {}, "WEBP": {}, "TIFF": {}, "BMP": {}, "PPM": {}, "ICO": {}, "TGA": {}, "JPEG2000": {},
            "AVIF": {}}
SOUNDS = {"WAV": "PCM_16", "FLAC": "PCM_16", "OGG": "VORBIS", "MP3": "MPEG_LAYER_III", "AIFF": "PCM_16", "AU": "FLOAT",
          "CAF": "PCM_16", "W64": "PCM_16"}


def picture(kind: str, mode: str) -> bytes:
    out, pixels = io.BytesIO(), np.random.default_rng(0).integers(0, 255, (16, 24, 4), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("kind", PICTURES)
def test_fuzz_pictures(kind):
    modes = {"JPEG": ["RGB", "L", "CMYK"], "PNG": ["RGBA", "P", "I;16"], "GIF": ["P"], "TIFF": ["RGB", "I;16", "F"]}
    if kind not in set(Image.registered_extensions().values()):
        pytest.skip(f"this Pillow has no {kind}")
    examples = [picture(kind, mode) for mode in modes.get(kind, ["RGB"])]

    @fuzz(25)
    @given(st.sampled_from(examples).flatmap(broken))
    def run(data):
        found = ends_well(lambda: load_image(data, "a.jpg"), "a.jpg")
        assert isinstance(found, Exception) or found.mode == "RGB"

    run()


def sound(kind: str, subtype: str) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    out, wave = io.BytesIO(), np.random.default_rng(0).uniform(-0.5, 0.5, (800, 2))
    soundfile.write(out, wave, 8000, format=kind, subtype=subtype)
    return out.getvalue()


@pytest.mark.parametrize("kind", SOUNDS)
def test_fuzz_sounds(kind, tmp_path):
    data, file = sound(kind, SOUNDS[kind]), tmp_path / "a.wav"

    @fuzz(20)
    @given(broken(data, 120))
    def run(data):
        file.write_bytes(data)
        ends_well(lambda: check_sound(file), str(file))
        ends_well(lambda: load_sound(data, 16000, "a.wav"), "a.wav")
        ends_well(lambda: load_sound(data, 16000, "a.wav", start=0.01, seconds=0.02), "a.wav")

    run()
