"""Waveform -> normalised log-mel frames, on the model's device, and masks on them at training (SpecAugment).

Frame i is centred on samples i hop .. (i + 1) hop - 1, zeros stand before the first and behind the last sample: a clip of L
samples has ceil(L / hop) frames, and a frame is real where its hop holds a real sample.
"""

import warnings
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core.attention import blank
from zoo.errors import ZooError

FLOOR = 1e-6  # power; far below the quietest recording
LEVEL, QUIETEST = 0.05, 1e-4  # root mean squares: what a clip is brought to, and the least that is made louder
LOUDEST = 1e5  # amplitude; integer samples that nobody scaled pass, powers stay finite


class LogMel(nn.Module):
    """(b samples) -> (b frames mels): (log(power in each mel band + 1e-6) - mean) / std, always in fp32, padding 0.

    Arguments: rate (Hz), n_fft (samples of a transform), win (of its Hann window), hop (samples from frame to frame), mels
    (bands, Slaney's scale and area), f_min and f_max (Hz; None: rate / 2), level ("keep", or "clip": every clip is brought to the
    same loudness first). The default mean and std fit speech roughly; `fit`
    measures them, and they travel with the weights. ValueError names a wrong argument; ZooError where torchaudio is missing.
    """

    def __init__(
        self,
        rate: int = 16000,
        n_fft: int = 512,
        win: int = 400,
        hop: int = 160,
        mels: int = 64,
        f_min: float = 20.0,
        f_max: float | None = None,
        level: str = "keep",
    ):
        super().__init__()
        f_max = rate / 2 if f_max is None else f_max
        _check(rate, n_fft, win, hop, mels, f_min, f_max)
        if level not in ("keep", "clip"):
            raise ValueError(f"LogMel: level={level!r}; allowed: 'keep', 'clip'")
        self.level = level
        self.rate, self.n_fft, self.win, self.hop, self.mels = rate, n_fft, win, hop, mels
        self.register_buffer("window", torch.hann_window(win), persistent=False)
        self.register_buffer("bank", mel_filters(rate, n_fft, mels, f_min, f_max), persistent=False)
        self.register_buffer("mean", torch.full((mels,), -8.0))
        self.register_buffer("std", torch.full((mels,), 4.0))

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """wave (b samples), real samples of each (b) -> normalised log-mel (b frames mels), mask (b frames).

        The mask is None where every frame is real. Samples behind `lengths` may hold anything. ValueError as `trim`.
        """
        x, mask = self.log_mel(wave, lengths)
        return blank((x - self.mean.float()) / self.std.float(), mask), mask

    def log_mel(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As forward, before mean and std."""
        wave, lengths = trim(wave, lengths)
        mask = None
        if lengths is not None:
            wave = blank(wave.unsqueeze(-1), torch.arange(wave.shape[1], device=wave.device) < lengths[:, None]).squeeze(-1)
            mask = torch.arange(self.frames(wave.shape[1]), device=wave.device) * self.hop < lengths[:, None]
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.float().clamp(-LOUDEST, LOUDEST)
            if self.level == "clip":
                wave = to_level(wave, lengths)
            return (F.linear(self._power(wave), self.bank.float()) + FLOOR).log(), mask

    def _power(self, wave: Tensor) -> Tensor:
        """(b samples) -> squared magnitude of the windowed transform (b frames bins)."""
        before = (self.n_fft - self.hop) // 2
        behind = (self.frames(wave.shape[1]) - 1) * self.hop + self.n_fft - before - wave.shape[1]
        wave = F.pad(wave, (before, behind))
        sizes = dict(n_fft=self.n_fft, hop_length=self.hop, win_length=self.win, window=self.window.float())
        waves = torch.stft(wave, **sizes, center=False, return_complex=True)
        return rearrange(torch.view_as_real(waves).square().sum(-1), "b bins frames -> b frames bins")

    def frames(self, samples: int) -> int:
        """Frames of a clip: ceil(samples / hop)."""
        return (samples + self.hop - 1) // self.hop

    @torch.no_grad()
    def fit(self, waves: Iterable[Tensor]) -> None:
        """mean and std of every band over all frames of `waves` (each 1-D, of the training split). A constant band: std 1.

        ValueError without a wave.
        """
        count, total, square = 0, 0.0, 0.0
        for wave in waves:
            x = self.log_mel(wave.to(self.mean.device)[None])[0][0].double()
            count, total, square = count + len(x), total + x.sum(0), square + x.square().sum(0)
        if not count:
            raise ValueError("LogMel.fit: no waves")
        mean = total / count
        std = (square / count - mean.square()).clamp(min=0).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 1e-5, std, 1))


def to_level(wave: Tensor, lengths: Tensor | None) -> Tensor:
    """(b samples), 0 behind `lengths` (b) -> a root mean square of 0.05 over the real samples; silence stays silent."""
    count = wave.shape[1] if lengths is None else lengths.to(wave).unsqueeze(1)
    power = (wave.square().sum(1, keepdim=True) / count).clamp(min=QUIETEST**2)  # before the root: its slope at 0 is infinite
    return wave * (LEVEL / power.sqrt())


class SpecAugment(nn.Module):
    """At training `count` stripes of up to `time` frames and of up to `freq` bands of every clip become 0, the mean.

    colour: deviation of a smooth change of the whole clip's spectrum, as another microphone or room gives. mel (b frames mels),
    mask (b frames) | None -> mel. Stripes are drawn for each clip inside its real frames, and hide no more
    than a quarter of them. Draws from torch's global generator. Source: Park et al. 2019, sec. 2.
    """

    share = 0.25

    def __init__(self, time: int = 20, freq: int = 8, count: int = 2, colour: float = 0.0):
        super().__init__()
        if min(time, freq) < 0 or count < 1:
            raise ValueError(f"SpecAugment: need time >= 0, freq >= 0, count >= 1, got time={time}, freq={freq}, count={count}")
        self.time, self.freq, self.count, self.colour = time, freq, count, colour

    def forward(self, mel: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, frames, bands = mel.shape
        real = mel.new_full((batch,), frames) if mask is None else mask.sum(1).to(mel)
        times = self._stripes(real, (real * self.share / self.count).clamp(max=self.time), frames)
        freqs = self._stripes(mel.new_full((batch,), bands), mel.new_full((batch,), min(self.freq, bands)), bands)
        if self.colour:
            mel = mel + self.colour * self._curves(batch, bands, mel.device).unsqueeze(1)
            mel = blank(mel, mask)
        return mel.masked_fill(times.unsqueeze(2) | freqs.unsqueeze(1), 0)

    def _curves(self, batch: int, bands: int, device: torch.device) -> Tensor:
        """(b bands): a random tilt and three slow waves over the bands, each of deviation 1/2."""
        waves = torch.cos(torch.pi * torch.arange(1, 5, device=device)[:, None] * torch.linspace(0, 1, bands, device=device))
        return torch.randn(batch, 4, device=device) @ waves * 2**-0.5

    def _stripes(self, room: Tensor, widest: Tensor, size: int) -> Tensor:
        """Bool (b size): stripes of 0 .. widest (b) places, each inside the first `room` (b)."""
        draw = torch.rand(2, len(room), self.count, device=room.device)
        width = (draw[0] * (widest.floor() + 1)[:, None]).floor()
        start = (draw[1] * (room[:, None] - width + 1)).floor()
        place = torch.arange(size, device=room.device)
        return ((place >= start.unsqueeze(2)) & (place < (start + width).unsqueeze(2))).any(1)


def trim(wave: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """wave (b samples) cut to the longest length, lengths on its device; lengths None where all are equal.

    ValueError for a wave that is not (b samples >= 1) and for a length outside of 1 .. samples. While compiling or exporting
    nothing depends on values: no check, no cut.
    """
    if wave.ndim != 2 or wave.shape[1] == 0:
        raise ValueError(f"wave must be (b samples) with 1 sample or more, got shape {[*wave.shape]}")
    if lengths is None:
        return wave, None
    if lengths.shape != wave.shape[:1]:
        raise ValueError(f"lengths must be (b) = {[len(wave)]}, got shape {[*lengths.shape]}")
    if torch.compiler.is_compiling() or len(wave) == 0:
        return wave, lengths
    least, most = (int(end) for end in lengths.aminmax())
    if least < 1 or most > wave.shape[1]:
        wrong = least if least < 1 else most
        raise ValueError(f"lengths[{lengths.tolist().index(wrong)}]={wrong}; allowed: 1 .. {wave.shape[1]} samples")
    return wave[:, :most], None if least == most else lengths.to(wave.device)


def mel_filters(rate: int, n_fft: int, mels: int, f_min: float, f_max: float, scale: str = "slaney") -> Tensor:
    """Mel filters (mels bins) of scale "slaney", of equal area, or "htk", of equal height. ValueError names an empty one."""
    try:
        from torchaudio.functional import melscale_fbanks
    except (ImportError, OSError) as error:
        raise ZooError("audio models need torchaudio: pip install 'zoo-attention[audio]'") from error
    with torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchaudio's own word on empty filters names no remedy
        norm = "slaney" if scale == "slaney" else None
        bank = melscale_fbanks(n_fft // 2 + 1, f_min, f_max, mels, rate, norm=norm, mel_scale=scale)
    empty = (bank.amax(0) == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"LogMel: {len(empty)} of mels={mels} filters are empty (the first: {empty[0]}) with n_fft={n_fft}, "
                         f"rate={rate}, f_min={f_min}, f_max={f_max}; a larger n_fft or fewer mels")
    return bank.T.contiguous()


def _check(rate, n_fft, win, hop, mels, f_min, f_max) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"LogMel: {name}={value!r}; allowed: {allowed}")

    for name, value in {"rate": rate, "n_fft": n_fft, "win": win, "hop": hop, "mels": mels}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    if win > n_fft:
        refuse("win", win, f"<= n_fft={n_fft}")
    if hop > win:
        refuse("hop", hop, f"<= win={win}, or samples between two frames are lost")
    if not 0 <= f_min < f_max:
        refuse("f_min", f_min, f"0 <= f_min < f_max={f_max}")
    if f_max > rate / 2:
        refuse("f_max", f_max, f"<= rate / 2 = {rate / 2}")
