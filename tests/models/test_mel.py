"""The front end against torchaudio's own transform; frames at hop boundaries; padding; statistics; SpecAugment."""

import math
import sys

import pytest
import torch

torchaudio = pytest.importorskip("torchaudio")

from zoo.errors import ZooError  # noqa: E402
from zoo.models.mel import LogMel, SpecAugment  # noqa: E402


def clip(samples: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(samples, generator=torch.Generator().manual_seed(seed)) * 0.3


@pytest.mark.parametrize("sizes", [{}, dict(rate=8000, n_fft=255, win=200, hop=81, mels=32, f_min=0.0, f_max=3500.0)])
def test_it_is_torchaudios_mel_of_the_padded_wave(sizes):
    frontend, wave = LogMel(**sizes), clip(5000)
    before = (frontend.n_fft - frontend.hop) // 2
    padded = torch.nn.functional.pad(wave, (before, 2 * frontend.n_fft))
    peer = torchaudio.transforms.MelSpectrogram(
        frontend.rate, n_fft=frontend.n_fft, win_length=frontend.win, hop_length=frontend.hop, n_mels=frontend.mels, center=False,
        f_min=sizes.get("f_min", 20.0), f_max=sizes.get("f_max", 8000.0), norm="slaney", mel_scale="slaney",
    )
    expected = (peer(padded) + 1e-6).log().T[: math.ceil(5000 / frontend.hop)]
    mel, mask = frontend.log_mel(wave[None])
    assert mask is None
    torch.testing.assert_close(mel[0], expected)
    torch.testing.assert_close(frontend(wave[None])[0][0], (expected - frontend.mean) / frontend.std)


@pytest.mark.parametrize("around", [1, 2, 5])
def test_frame_counts_agree_at_hop_boundaries(around):
    frontend = LogMel()
    for samples in (around * 160 - 1, around * 160, around * 160 + 1):
        count = math.ceil(samples / 160)
        alone, none = frontend(clip(samples)[None])
        wave = torch.full((2, 2000), torch.nan)
        wave[0, :samples], wave[1] = clip(samples), clip(2000, 1)
        mel, mask = frontend(wave, torch.tensor([samples, 2000]))
        assert none is None and alone.shape[1] == frontend.frames(samples) == count == mask[0].sum()
        assert not mask[0, count:].any() and mask[1].all()
        torch.testing.assert_close(mel[0, :count], alone[0], rtol=1e-5, atol=1e-5)
        assert (mel[0, count:] == 0).all()


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf, 1e30])
def test_no_value_in_padding_changes_a_frame_or_a_gradient(value):
    frontend, lengths = LogMel(), torch.tensor([1, 799, 4000])
    results = []
    for padding in (0.5, value):
        wave = torch.stack([clip(4000, i) for i in range(3)])
        wave[torch.arange(4000) >= lengths[:, None]] = padding
        wave.requires_grad_()
        mel, mask = frontend(wave, lengths)
        results.append([mel, torch.autograd.grad(mel.square().sum(), wave)[0]])
    for a, b in zip(*results):
        assert b.isfinite().all() and torch.equal(a, b)


def test_equal_lengths_need_no_mask_and_what_lies_behind_is_cut_off():
    frontend, wave = LogMel(), torch.stack([clip(3000, 1), clip(3000, 2)])
    wave[:, 2000:] = torch.nan
    mel, mask = frontend(wave, torch.tensor([2000, 2000]))
    assert mask is None and torch.equal(mel, frontend(wave[:, :2000])[0])
    mel, mask = frontend(wave, torch.tensor([2000, 500]))
    assert mask.shape == mel.shape[:2] == (2, 13)


def test_silence_and_loud_waves_are_finite():
    frontend, infinite = LogMel(), torch.tensor([[torch.inf, -torch.inf]])
    for wave in (torch.zeros(1, 900), torch.full((1, 900), 1e30), infinite, clip(900)[None] * 32768):
        wave.requires_grad_()
        mel, _ = frontend(wave)
        assert mel.isfinite().all() and torch.autograd.grad(mel.square().sum(), wave)[0].isfinite().all()
    assert torch.allclose(frontend.log_mel(torch.zeros(1, 900))[0], torch.tensor(math.log(1e-6)))


def test_it_computes_in_fp32_whatever_is_around():
    frontend, wave = LogMel(), clip(3000)[None]
    exact = frontend(wave)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(frontend(wave)[0], exact)
    rounded = LogMel().bfloat16()(wave)[0]  # its filters are rounded once, nothing else
    assert rounded.dtype == torch.float32 and (rounded - exact).abs().max() < 0.02


def test_fit_gives_mean_0_and_std_1_over_real_frames():
    frontend, waves = LogMel(), [clip(n, n) * n / 5000 for n in (1, 500, 5000, 12345)]
    frontend.fit(iter(waves))
    frames = torch.cat([frontend(wave[None])[0][0] for wave in waves])
    torch.testing.assert_close(frames.mean(0), torch.zeros(64), rtol=0, atol=1e-4)
    torch.testing.assert_close(frames.std(0, correction=0), torch.ones(64), rtol=1e-4, atol=0)
    assert set(frontend.state_dict()) == {"mean", "std"}
    frontend.fit([torch.zeros(700)])
    assert torch.equal(frontend.std, torch.ones(64)) and frontend(torch.zeros(1, 700))[0].abs().max() < 1e-5
    with pytest.raises(ValueError, match="LogMel.fit: no waves"):
        frontend.fit([])


@pytest.mark.parametrize("wave, lengths, text", [
    (torch.zeros(1, 0), None, r"\(b samples\) with 1 sample or more, got shape \[1, 0\]"),
    (torch.zeros(8), None, r"got shape \[8\]"),
    (torch.zeros(2, 8), torch.tensor([8]), r"lengths must be \(b\) = \[2\], got shape \[1\]"),
    (torch.zeros(2, 8), torch.tensor([8, 0]), r"lengths\[1\]=0; allowed: 1 .. 8 samples"),
    (torch.zeros(2, 8), torch.tensor([9, 3]), r"lengths\[0\]=9; allowed: 1 .. 8 samples"),
])
def test_wrong_waves_are_named(wave, lengths, text):
    with pytest.raises(ValueError, match=text):
        LogMel()(wave, lengths)


@pytest.mark.parametrize("name, value, text", [
    ("rate", 0, "LogMel: rate=0; allowed: an integer >= 1"),
    ("hop", 2.5, "LogMel: hop=2.5; allowed: an integer >= 1"),
    ("win", 513, "LogMel: win=513; allowed: <= n_fft=512"),
    ("hop", 401, "LogMel: hop=401; allowed: <= win=400"),
    ("f_min", 9000.0, "LogMel: f_min=9000.0; allowed: 0 <= f_min < f_max=8000.0"),
    ("f_max", 9000.0, "LogMel: f_max=9000.0; allowed: <= rate / 2 = 8000.0"),
    ("mels", 256, r"\d+ of mels=256 filters are empty \(the first: \d+\) with n_fft=512, rate=16000, .*larger n_fft or fewer"),
])
def test_wrong_arguments_are_named(name, value, text):
    with pytest.raises(ValueError, match=text):
        LogMel(**{name: value})


def test_without_torchaudio_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchaudio.functional", None)
    with pytest.raises(ZooError, match=r"need torchaudio: pip install 'zoo-attention\[audio\]'"):
        LogMel()


def test_spec_augment_masks_each_clip_inside_its_length_and_never_more_than_a_quarter():
    augment, ends = SpecAugment(time=20, freq=8, count=2), torch.tensor([1, 3, 12, 40, 100] * 40)
    mask = torch.arange(100) < ends[:, None]
    mel = torch.where(mask[..., None], torch.rand(200, 100, 64) + 1, 7.0)
    torch.manual_seed(0)
    out = augment(mel, mask)
    assert ((out == mel) | (out == 0)).all()
    hidden = (out == 0).all(2)
    assert not (hidden & ~mask).any() and (hidden.sum(1) <= ends / 4).all() and (hidden.sum(1) <= 40).all()
    bands = (out == 0)[torch.arange(200), (~hidden).float().argmax(1)]  # of a frame that no stripe hides
    assert (bands.sum(1) <= 16).all() and bands.any(0).all()  # every band is hidden in some clip
    assert hidden[ends == 100].sum(1).float().mean() > 10 and hidden[ends == 100].any(0).sum() > 95
    assert not hidden[ends < 8].any() and len({tuple(row.tolist()) for row in hidden[ends == 100]}) > 35
    torch.manual_seed(0)
    assert torch.equal(augment(mel, mask), out)
    assert augment(mel).shape == mel.shape and torch.equal(SpecAugment(0, 0, 1)(mel, mask), mel)
    with pytest.raises(ValueError, match="got time=-1, freq=8, count=2"):
        SpecAugment(time=-1)


def test_level_clip_brings_every_clip_to_the_same_loudness_over_its_real_samples():
    frontend, lengths = LogMel(level="clip"), torch.tensor([3000, 700, 50])
    wave = torch.full((3, 3000), torch.nan)
    for i, end in enumerate(lengths):
        wave[i, :end] = clip(int(end), i)
    mel, mask = frontend(wave, lengths)
    for i, end in enumerate(lengths):
        alone = clip(int(end), i)[None]
        torch.testing.assert_close(mel[i, mask[i]], frontend(alone)[0][0], rtol=1e-5, atol=1e-5)
        loud = alone * 0.05 / alone.square().mean().sqrt()
        torch.testing.assert_close(frontend(alone * 7)[0], LogMel()(loud)[0], rtol=1e-4, atol=1e-4)
    silence = torch.zeros(1, 900, requires_grad=True)
    out = frontend(silence)[0]
    assert torch.equal(out, LogMel()(silence)[0]) and torch.autograd.grad(out.sum(), silence)[0].isfinite().all()
    with pytest.raises(ValueError, match="LogMel: level='loud'; allowed: 'keep', 'clip'"):
        LogMel(level="loud")


def test_colour_shifts_each_band_of_a_clip_alike_over_time_and_leaves_padding_0():
    torch.manual_seed(0)
    mel, mask = torch.zeros(4000, 6, 64), torch.ones(4000, 6, dtype=torch.bool)
    mask[:, 4:] = False
    out = SpecAugment(time=0, freq=0, count=1, colour=0.6)(mel, mask)
    assert not out[:, 4:].any() and torch.equal(out[:, :1].expand(-1, 4, -1), out[:, :4])
    assert out[:, 0].std(0).mean() == pytest.approx(0.6, rel=0.25)
    assert (out[:, 0].diff(dim=1).abs().amax() < 1) and (out[:, 0, 0] - out[:, 0, 63]).abs().mean() > 0.3
