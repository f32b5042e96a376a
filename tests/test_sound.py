"""Sounds of any container, rate and number of channels, in whole, in part and in windows; what is no sound is named."""

import io
import math
import os
import sys

import numpy as np
import pytest
import torch

from zoo.errors import ZooError
from zoo.sound import SoundPreprocess, _resampler, check_sound, load_sound, windows

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("torchaudio.transforms", exc_type=(ImportError, OSError))

FORMATS = {"wav": {}, "flac": {}, "ogg": {}, "mp3": {}, "opus": {"format": "OGG", "subtype": "OPUS"}, "aiff": {}, "au": {}}


def tone(hertz: float, rate: int, seconds: float = 1.0) -> torch.Tensor:
    t = torch.arange(round(rate * seconds), dtype=torch.float64) / rate
    return (0.5 * torch.sin(2 * torch.pi * hertz * t)).float()


def peak(wave: torch.Tensor, rate: int) -> float:
    """The frequency in Hz with the most power."""
    return torch.fft.rfft(wave * torch.hann_window(len(wave))).abs().argmax().item() * rate / len(wave)


def level(wave: torch.Tensor) -> float:
    """Of a sine: its amplitude; without the edges, where the filter sees the silence around."""
    edge = len(wave) // 10
    return wave[edge:-edge].square().mean().mul(2).sqrt().item()


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (0.1 * rng.standard_normal(16000 * 4)).astype(np.float32)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_container_whole_in_part_and_as_bytes(tmp_path, noise, suffix):
    file = tmp_path / f"a.{suffix}"
    soundfile.write(file, np.stack([noise, 0.5 * noise], 1), 16000, **FORMATS[suffix])
    truth = torch.from_numpy(soundfile.read(file, dtype="float32")[0].mean(1))
    whole = load_sound(file, 16000)
    assert whole.dtype == torch.float32 and whole.shape == truth.shape
    torch.testing.assert_close(whole, truth)
    assert torch.equal(load_sound(file.read_bytes(), 16000), whole) and torch.equal(load_sound(str(file), 16000), whole)
    for rate in (8000, 16000, 22050):
        resampled = load_sound(file, rate)
        assert len(resampled) == math.ceil(len(noise) * rate / 16000)
        got, first = load_sound(file, rate, start=1.3, seconds=0.7), round(1.3 * rate)
        assert len(got) == round(0.7 * rate)
        torch.testing.assert_close(got, resampled[first:first + len(got)], atol=1e-6, rtol=0)
    check_sound(file)


def test_the_content_decides_not_the_suffix(tmp_path, noise):
    for name in ("a.raw", "a.mp3", "no_suffix"):
        soundfile.write(tmp_path / "a.wav", noise, 16000)
        os.replace(tmp_path / "a.wav", tmp_path / name)
        assert len(load_sound(tmp_path / name, 16000)) == len(noise)


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22254, 44099, 44100, 48000, 96000])
def test_a_tone_stays_that_tone(rate):
    """22254 and 44099 Hz share hardly a factor with 16000: written out, their kernels would take gigabytes."""
    wave = load_sound((tone(1000, rate), rate), 16000)
    assert len(wave) == 16000
    assert peak(wave, 16000) == pytest.approx(1000, abs=1) and level(wave) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("hertz, kept", [(7000, 0.5), (8500, 0), (9000, 0), (10000, 0), (15000, 0), (20000, 0)])
def test_what_16_khz_cannot_hold_leaves_no_alias(hertz, kept):
    assert level(load_sound((tone(hertz, 44100), 44100), 16000)) == pytest.approx(kept, abs=1e-3)


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("samples", [1, 2, 3, 399, 400, 401])
def test_short_clips(rate, samples):
    wave = load_sound((torch.full((samples,), 0.5), rate), 16000)
    assert len(wave) == math.ceil(samples * 16000 / rate) and wave.isfinite().all()


def test_channels_are_mixed_down(tmp_path):
    eight = np.outer(np.ones(1000), np.arange(8) / 8).astype(np.float32)
    soundfile.write(tmp_path / "8.wav", eight, 16000, subtype="FLOAT")
    assert torch.equal(load_sound(tmp_path / "8.wav", 16000), torch.full((1000,), 3.5 / 8))
    left, right = tone(440, 16000), tone(880, 16000)
    for pair in (torch.stack([left, right]), torch.stack([left, right]).numpy()):
        torch.testing.assert_close(load_sound((pair, 16000), 16000), (left + right) / 2)
    assert torch.equal(load_sound((left.numpy(), np.int64(16000)), 16000), left)
    assert load_sound((torch.zeros(2, 1), 16000), 16000).shape == (1,)
    assert load_sound((torch.zeros(64, 100), 16000), 16000).shape == (100,)


@pytest.mark.parametrize("kind, low, high", [("int8", -128, 127), ("int16", -(2**15), 2**15 - 1), ("int32", -(2**31), 2**31 - 1),
                                             ("uint8", 0, 255)])
def test_integers_are_scaled(kind, low, high):
    array = np.array([low, high], kind)
    for wave in (array, torch.from_numpy(array)):
        assert load_sound((wave, 16000), 16000).tolist() == pytest.approx([-1, 1], abs=0.01)


@pytest.mark.parametrize("source, said", [
    (np.zeros(9), r"its rate is not known; give \(waveform, rate\)"),
    (torch.zeros(9), r"its rate is not known; give \(waveform, rate\)"),
    ((np.zeros((16000, 2)), 16000), r"\(16000, 2\) would be 16000 channels .* give waveform\.T"),
    ((16000, np.zeros(9)), r"\(waveform, rate\), in this order; got \('int', 'ndarray'\)"),
    ((np.zeros(9), 16000, 1), r"expected \(waveform, rate\)"),
    (([0.0, 1.0], 16000), "must be an array or a tensor, got list"),
    ((np.zeros((2, 3, 4)), 16000), r"expected \(time,\) or \(channels, time\), got \(2, 3, 4\)"),
    ((np.zeros(()), 16000), r"got \(\)"),
    ((np.zeros((0, 5)), 16000), r"got \(0, 5\)"),
    ((np.zeros(0), 16000), "0 samples"),
    ((np.zeros((2, 0)), 16000), "0 samples"),
    ((np.zeros(9), 0), "the rate is 0"),
    ((np.zeros(9), -16000), "the rate is -16000"),
    ((np.zeros(9), 16000.5), "the rate is 16000.5"),
    ((np.zeros(9), "16k"), "the rate is '16k'"),
    ((np.zeros(9), None), "the rate is None"),
    ((np.zeros(9, bool), 16000), "got bool"),
    ((np.zeros(9, np.int64), 16000), "got int64"),
    ((np.zeros(9, complex), 16000), "got complex128"),
    ((np.array([0.0, np.nan]), 16000), "NaN or infinite"),
    ((np.array([0.0, np.inf]), 16000), "NaN or infinite"),
    ((np.array([0.0, 3e4]), 16000), r"samples up to 30000; .*divide int16 values by 32768"),
    (5, "expected a path, bytes or .waveform, rate., got int"),
    (None, "got NoneType"),
    (b"", "empty, 0 bytes"),
    (b"hello world", "not a sound but text"),
])
def test_what_is_no_sound_is_refused(source, said):
    with pytest.raises(ZooError, match=said) as error:
        load_sound(source, 16000, name="item 3")
    assert str(error.value).startswith("item 3: ") and len(str(error.value).splitlines()) <= 2


def written(samples, rate=16000, **options) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.asarray(samples, np.float32), rate, format="WAV", **options)
    return out.getvalue()


@pytest.mark.parametrize("name, content, said", [
    ("a.wav", b"", "empty, 0 bytes"),
    ("a.wav", b"a text that was renamed\n" * 9, "not a sound but text"),
    ("a.m4a", b"\0\0\0 ftypM4A " + bytes(99), r"MPEG-4 .* which soundfile cannot read; convert it: ffmpeg -i a.m4a a.flac"),
    ("a.wav", b"\0\0\0 ftypmp42" + bytes(99), r"MPEG-4 .* ffmpeg -i a.wav a.flac"),
    ("a.webm", b"\x1aE\xdf\xa3" + bytes(99), "Matroska or WebM, .* ffmpeg"),
    ("a.avi", b"RIFF\0\0\0\0AVI LIST" + bytes(99), "AVI video, .* ffmpeg"),
    ("a.wma", b"0&\xb2u" + bytes(99), "Windows Media"),
    ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(99), r"not a sound that soundfile reads \(Format not recognised\)"),
    ("a.wav", written([])[:44], "0 samples"),
    ("a.wav", written([0, np.nan, 0], subtype="FLOAT"), "NaN or infinite"),
    ("a.wav", written([0, 2e4, 0], subtype="FLOAT"), "samples up to 20000"),
])
def test_files_that_are_no_sound_are_named(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_bytes(content)
    for source in (file, content):
        for read in (lambda: load_sound(source, 16000, str(file)), lambda: check_sound(source, str(file))):
            with pytest.raises(ZooError, match=said) as error:
                read()
            assert str(error.value).startswith(f"{file}: ")


@pytest.mark.parametrize("suffix", ["flac", "mp3"])
def test_a_file_cut_short_is_named(tmp_path, noise, suffix):
    file = tmp_path / f"a.{suffix}"
    soundfile.write(file, noise, 16000)
    file.write_bytes(file.read_bytes()[:file.stat().st_size // 2])
    for read in (check_sound, lambda source: load_sound(source, 16000)):
        with pytest.raises(ZooError, match=rf"a\.{suffix}: broken sound"):
            read(file)


def test_a_stream_of_unknown_length_is_refused(tmp_path, noise):
    soundfile.write(tmp_path / "a.flac", noise, 16000)
    content = bytearray((tmp_path / "a.flac").read_bytes())
    content[21] &= 0xF0  # the 36 bits of STREAMINFO that hold the number of samples; 0 is unknown
    content[22:26] = bytes(4)
    (tmp_path / "a.flac").write_bytes(content)
    with pytest.raises(ZooError, match=r"does not say how long it is; write it anew: ffmpeg -i a.flac a-new.flac"):
        load_sound(tmp_path / "a.flac", 16000)


def test_folders_pipes_and_missing_files(tmp_path):
    os.mkfifo(tmp_path / "pipe.wav")
    for name, said in (("pipe.wav", "is no regular file"), ("", "is a folder"), ("gone.wav", "no such file")):
        with pytest.raises(ZooError, match=said):
            load_sound(tmp_path / name, 16000)


def test_names_that_are_no_utf8(tmp_path):
    file = os.fsencode(tmp_path) + b"/\xff.wav"
    try:
        with open(file, "wb") as out:
            out.write(written([0.5]))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert load_sound(os.fsdecode(file), 16000).tolist() == pytest.approx([0.5], abs=1e-4)


@pytest.fixture
def frames_read(monkeypatch) -> list[int]:
    """How many frames each call of soundfile has decoded."""
    counts, real = [], soundfile.SoundFile.read

    def read(self, *args, **kwargs):
        block = real(self, *args, **kwargs)
        counts.append(len(block))
        return block

    monkeypatch.setattr(soundfile.SoundFile, "read", read)
    return counts


def test_of_a_long_file_only_the_part_is_read(tmp_path, frames_read):
    soundfile.write(tmp_path / "a.wav", np.zeros(44100 * 60, np.int16), 44100)
    assert len(load_sound(tmp_path / "a.wav", 16000, start=30, seconds=2)) == 32000
    assert 2 * 44100 <= sum(frames_read) <= 2 * 44100 + 2000
    frames_read.clear()
    assert len(SoundPreprocess(16000, seconds=1)(tmp_path / "a.wav")) == 16000
    assert sum(frames_read) <= 44100 + 2000


def test_parts_at_the_ends(tmp_path):
    wave = tone(440, 16000, 2)
    assert torch.equal(load_sound((wave, 16000), 16000, start=1.5, seconds=9), wave[24000:])
    with pytest.raises(ZooError, match=r"nothing at 2 s, it is 2 s long"):
        load_sound((wave, 16000), 16000, start=2)
    for start, seconds in ((-1, None), (math.nan, 1), (0, 0), (0, -1), (0, math.nan)):
        with pytest.raises(ZooError, match="start must be >= 0, seconds > 0"):
            load_sound((wave, 16000), 16000, start=start, seconds=seconds)


@pytest.mark.parametrize("source_rate", [16000, 22050])
@pytest.mark.parametrize("seconds, overlap, starts", [
    (2, 0, [0, 2, 4, 5.5]), (2, 0.5, [0, 1, 2, 3, 4, 5, 5.5]), (2.5, 0, [0, 2.5, 5]), (7.5, 0.5, [0]), (60, 0.5, [0])])
def test_windows_cover_the_sound(tmp_path, source_rate, seconds, overlap, starts):
    rng = np.random.default_rng(0)
    file = tmp_path / "a.flac"
    soundfile.write(file, 0.1 * rng.standard_normal(round(7.5 * source_rate)), source_rate)
    whole = load_sound(file, 16000)
    found = list(windows(file, 16000, seconds, overlap))
    assert [start for start, _ in found] == pytest.approx(starts, abs=1e-4)
    for start, wave in found:
        assert len(wave) == min(seconds, 7.5) * 16000
        torch.testing.assert_close(wave, whole[round(start * 16000):][:len(wave)], atol=1e-6, rtol=0)


def test_windows_read_piece_by_piece(tmp_path, frames_read):
    soundfile.write(tmp_path / "a.wav", np.zeros(8000 * 600, np.int16), 8000)
    pieces = windows(tmp_path / "a.wav", 16000, 10, 0.5)
    next(pieces), next(pieces)
    assert sum(frames_read) <= 2 * 8000 * 10 + 500
    for wrong in ((0, 0), (1, 1), (1, -0.1)):
        with pytest.raises(ZooError, match="allowed: seconds > 0"):
            next(windows(tmp_path / "a.wav", 16000, *wrong))


def test_preprocessing_cuts_to_the_centre_and_is_stored():
    wave = tone(440, 16000, 3)
    preprocess = SoundPreprocess(16000, seconds=1)
    assert torch.equal(preprocess((wave, 16000)), wave[16000:32000])
    assert torch.equal(preprocess((wave[:100], 16000)), wave[:100])  # a shorter clip stays as long as it is
    assert torch.equal(SoundPreprocess()((wave, 16000)), wave)
    for settings in (preprocess, SoundPreprocess(8000)):
        assert SoundPreprocess.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("values, said", [
    ({"hz": 8000}, "unknown key 'hz'; allowed: rate, seconds"),
    ({"rate": 0}, "rate is 0"), ({"rate": 16000.0}, "rate is 16000.0"), ({"rate": True}, "rate is True"),
    ({"seconds": 0}, "seconds is 0"), ({"seconds": "5"}, "seconds is '5'")])
def test_wrong_preprocessing_is_refused(values, said):
    with pytest.raises(ZooError, match=f"preprocess: {said}"):
        SoundPreprocess.from_dict(values)


@pytest.mark.parametrize("module, said", [("torchaudio.transforms", "resampling needs torchaudio"),
                                          ("soundfile", "reading sounds needs soundfile")])
def test_missing_packages_name_the_command(monkeypatch, module, said):
    monkeypatch.setitem(sys.modules, module, None)
    _resampler.cache_clear()
    with pytest.raises(ZooError, match=rf"(?s){said}.*pip install 'zoo-attention\[audio\]'"):
        load_sound(written([0.5]), 44100)


def test_sounds_at_the_models_rate_need_no_torchaudio(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio.transforms", None)
    assert load_sound((torch.ones(5), 16000), 16000).tolist() == [1] * 5
