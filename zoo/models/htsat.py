"""Audio as a picture, HTS-AT with CLAP's front end: `b 1 (k t) f -> b 1 (k f) t` (k = 4), then the windows of an image.

Sources: Chen et al. 2022 (HTS-AT), sec. 3.1; Wu et al. 2023 (CLAP). Public weights: zoo.convert.clap.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core import masked_mean
from zoo.models.image import Image
from zoo.models.mel import LOUDEST, mel_filters, trim

MELS = 64
FOLD = 4  # pieces of the time axis laid below each other
SIDE = MELS * FOLD  # of the square picture
FRAMES = SIDE * FOLD  # mel frames on that picture
PATCH = 4


class HTSAT(nn.Module):
    """Windowed image model on a folded mel picture. wave (b samples) at 48 kHz, lengths (b) | None -> logits (b classes).

    Arguments: num_classes (0: no classifier; 527 as AudioSet), dims and depths (one entry a stage, at most 5), window
    (tokens per side), head_dim, drop_path (rate of the deepest block), front. ValueError names a wrong one.

    front "pieces": a clip longer than 10 s is cut into pieces of 10 s, in order; each piece is a clip of its own until the tokens
    are pooled. "fused": it is heard squeezed and as three pieces, fused at the stem (zoo.models.htsat_fused).
    """

    def __init__(
        self,
        num_classes: int = 527,
        dims: tuple[int, ...] = (96, 192, 384, 768),
        depths: tuple[int, ...] = (2, 2, 6, 2),
        window: int = 8,
        head_dim: int = 24,
        drop_path: float = 0.0,
        front: str = "pieces",
    ):
        super().__init__()
        if front not in ("pieces", "fused"):
            raise ValueError(f"HTSAT: front={front!r}; allowed: 'pieces', 'fused'")
        if len(dims) > 5:  # the last map must still have a row for each of the FOLD pieces of time
            raise ValueError(f"HTSAT: dims={dims!r}; allowed: at most 5 stages")
        if not isinstance(num_classes, int) or num_classes < 0:
            raise ValueError(f"HTSAT: num_classes={num_classes!r}; allowed: >= 0 (0: no classifier)")
        self.front, self.frontend = front, ClapMel()
        self.mel_norm = nn.BatchNorm2d(MELS)
        self.augment: nn.Module | None = None  # (mel (b frames mels), mask (b frames) | None) -> mel, at training only
        self.image = Image(0, 1, PATCH, window, tuple(dims), tuple(depths), head_dim, drop_path=drop_path)
        if front == "fused":
            from zoo.models.htsat_fused import FusedEmbed, FusedMel

            self.frontend, self.image.patch_embed = FusedMel(), FusedEmbed(dims[0], PATCH)
        self.num_features = self.image.num_features
        self.tokens = FOLD * SIDE // PATCH // 2 ** (len(dims) - 1)  # per piece
        self.reset_classifier(num_classes)

    @property
    def frame_seconds(self) -> float:
        """Seconds of sound per token."""
        return self.frontend.seconds / self.tokens

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.forward_head(*self.forward_features(wave, lengths))

    def forward_features(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(b samples) -> tokens (b t num_features), t = pieces * `tokens`, and the mask (b t) of those that are pooled.

        All tokens of a first piece count, as in CLAP; of a later piece those that have sound of the clip.
        """
        tokens, sound = self._tokens(wave, lengths)
        return tokens, self._pooled(sound, self.tokens)

    def forward_mel(self, mel: Tensor, longer: Tensor | None = None) -> Tensor:
        """CLAP's input_features (b 1 frames mels), at most 1024 frames -> last map (b bins t num_features), normed.

        Fused: (b 4 frames mels), and `longer` (b) bool, CLAP's is_longer: which clips have pieces (None: no clip).
        """
        return _unfold(self.image.forward_features(self._stem_input(mel, longer)))

    def picture(self, mel: Tensor) -> Tensor:
        """(b c frames mels) in dB, c = 1, fused 4 -> normalised, stretched to 1024 frames and folded (b c 256 256)."""
        views = 4 if self.front == "fused" else 1
        if mel.ndim != 4 or mel.shape[1] != views or mel.shape[3] != MELS or not 1 <= mel.shape[2] <= FRAMES:
            raise ValueError(f"HTSAT: mel {[*mel.shape]}; allowed: (b {views} frames {MELS}), frames in 1 .. {FRAMES}")
        mel = rearrange(mel.to(self.mel_norm.weight.dtype), "b c t f -> b f t c")
        mel = rearrange(self.mel_norm(mel), "b f t c -> b c t f")
        if self.augment is not None and self.training:
            mel = self.augment(mel.flatten(0, 1), None).view(mel.shape)
        if mel.shape[2] < FRAMES:
            mel = F.interpolate(mel, (FRAMES, MELS), mode="bicubic", align_corners=True)
        return rearrange(mel, "b c (k t) f -> b c (k f) t", k=FOLD)

    def forward_head(self, tokens: Tensor, mask: Tensor | None = None, pre_logits: bool = False) -> Tensor:
        """Tokens (b t num_features) -> logits (b num_classes), or the pooled vector where `pre_logits`."""
        pooled = masked_mean(tokens, mask)
        return pooled if pre_logits else self.classifier(pooled)

    def forward_frames(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of every token (b t num_classes) and the mask (b t) of those that have sound of the clip."""
        tokens, sound = self._tokens(wave, lengths)
        if self.front == "fused":
            self.frontend.check_short(sound)
        return self.classifier(tokens), self._heard(sound, self.tokens)

    def forward_embed(self, wave: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(b samples) -> unit vectors (b num_features)."""
        return F.normalize(self.forward_head(*self.forward_features(wave, lengths), pre_logits=True), dim=-1)

    def forward_intermediates(
        self, wave: Tensor, lengths: Tensor | None = None, indices: list[int] | None = None
    ) -> tuple[tuple[Tensor, Tensor | None], list[tuple[Tensor, Tensor | None]]]:
        """Last normed tokens and those after each stage in `indices` (default all): (b t dim), mask (b t) | None of each."""
        picture, sound = self._heard_picture(wave, lengths)
        last, maps = self.image.forward_intermediates(picture, indices)
        found = [_unfold(x).mean(1) for x in (last, *(rearrange(x, "b c h w -> b h w c") for x in maps))]
        last, *maps = [(_spread(x, sound), self._pooled(sound, x.shape[1])) for x in found]
        return last, maps

    def reset_classifier(self, num_classes: int) -> None:
        """A new, untrained classifier for `num_classes` (0: none)."""
        self.num_classes = num_classes
        self.classifier = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        if num_classes:
            nn.init.trunc_normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)
        self.classifier.to(self.mel_norm.weight)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.image.set_grad_checkpointing(enable)

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's description of the depth of every parameter, for layer-wise learning rates."""
        inner = self.image.group_matcher(coarse)["blocks"]
        blocks = _inside(inner) if coarse else [(_inside(pattern), depth) for pattern, depth in inner]
        return {"stem": r"^(?:mel_norm|image\.patch_embed)", "blocks": blocks}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are position tables."""
        return {f"image.{name}" for name in self.image.no_weight_decay()}

    def _tokens(self, wave: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens (b t num_features), the mean over the frequency bins, and `sound` (b pieces) of ClapMel."""
        picture, sound = self._heard_picture(wave, lengths)
        return _spread(_unfold(self.image.forward_features(picture)).mean(1), sound), sound

    def _heard_picture(self, wave: Tensor, lengths: Tensor | None) -> tuple:
        """What the stem takes, and `sound` of the front end."""
        mel, sound = self.frontend(wave, lengths)
        if self.front == "fused":
            return self._stem_input(mel, self.frontend.longer(sound)), sound
        return self._stem_input(mel.unsqueeze(1)), sound

    def _stem_input(self, mel: Tensor, longer: Tensor | None = None):
        picture = self.picture(mel)
        if self.front == "pieces":
            return picture
        return picture, torch.zeros(len(mel), dtype=torch.bool, device=mel.device) if longer is None else longer

    def _heard(self, sound: Tensor, tokens: int) -> Tensor:
        """Samples of sound in each piece (b pieces) -> bool (b t): which of its `tokens` have any."""
        heard = torch.arange(tokens, device=sound.device) * self.frontend.samples < sound.unsqueeze(-1) * tokens
        return rearrange(heard, "b n t -> b (n t)")

    def _pooled(self, sound: Tensor, tokens: int) -> Tensor | None:
        """Bool (b t): all tokens of the first piece, of later ones those that have sound; None where there is one piece."""
        if sound.shape[1] == 1:
            return None
        heard = self._heard(sound, tokens)
        return heard | (torch.arange(heard.shape[1], device=sound.device) < tokens)


class ClapMel(nn.Module):
    """CLAP's front end: wave (b samples) in [-1, 1], lengths (b) | None -> (mel (p 1001 64) in dB, sound (b pieces)).

    48 kHz, n_fft 1024, hop 480, 64 slaney mels 50-14000 Hz, 10 log10(max(power, 1e-10)). Each clip is cut into pieces of
    10 s by its own length; `sound` counts the samples of each, and the p pieces that have any come clip by clip. A piece that is
    not full is repeated as often as it fits, then 0 ("repeatpad", what the public weights saw). Values in padding, NaN too, are
    never read. Always computed in fp32. ValueError where wave or lengths do not fit; ZooError where torchaudio is missing.
    """

    rate, seconds, n_fft, hop = 48000, 10, 1024, 480
    scale = "slaney"

    def __init__(self):
        super().__init__()
        self.samples = self.rate * self.seconds
        self.register_buffer("window", torch.hann_window(self.n_fft), persistent=False)
        self.register_buffer("filters", mel_filters(self.rate, self.n_fft, MELS, 50.0, 14000.0, self.scale), persistent=False)

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        pieces, sound = self.cut(wave, lengths)
        return self.mel(pieces), sound

    def mel(self, wave: Tensor) -> Tensor:
        """(b samples) -> (b 1 + samples // hop 64) in dB."""
        with torch.autocast(wave.device.type, enabled=False):
            wave = wave.to(torch.promote_types(wave.dtype, torch.float32)).clamp(-LOUDEST, LOUDEST)
            waves = torch.stft(wave, self.n_fft, self.hop, window=self.window.to(wave), return_complex=True)
            power = rearrange(torch.view_as_real(waves).square().sum(-1), "b bins t -> b t bins")
            return 10 * F.linear(power, self.filters.to(power)).clamp(min=1e-10).log10()

    def cut(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(b samples) -> the filled pieces (p 480000) and `sound` (b pieces), the samples of each that are the clip's own."""
        wave, lengths = trim(wave, lengths)
        ends = lengths if lengths is not None else torch.full(wave.shape[:1], wave.shape[1], device=wave.device)
        start = torch.arange((wave.shape[1] + self.samples - 1) // self.samples, device=wave.device) * self.samples
        sound = (ends[:, None] - start).clamp(0, self.samples)
        clip = torch.arange(wave.shape[0], device=wave.device)[:, None]
        clip, start, filled = (x.add(torch.zeros_like(sound)).view(-1, 1) for x in (clip, start, sound))
        if lengths is not None and sound.shape[1] > 1:
            clip, start, filled = (x[sound.flatten() > 0] for x in (clip, start, filled))
        i = torch.arange(self.samples, device=wave.device)
        pieces = wave[clip, start + i % filled]
        times = torch.full_like(filled, self.samples) // filled
        return pieces.masked_fill(i >= times * filled, 0), sound


def _unfold(x: Tensor) -> Tensor:
    """The picture's map (b (k bins) t d) -> (b bins (k t) d): frequency and the whole time."""
    return rearrange(x, "b (k bins) t d -> b bins (k t) d", k=FOLD)


def _spread(tokens: Tensor, sound: Tensor) -> Tensor:
    """Tokens of the p pieces that have sound (p t d) -> (b (pieces t) d), 0 where a clip has no such piece."""
    pieces = sound.shape[1]
    if tokens.shape[0] != sound.numel():
        out = tokens.new_zeros(sound.numel(), *tokens.shape[1:])
        out[sound.flatten() > 0] = tokens
        tokens = out
    return tokens if pieces == 1 else rearrange(tokens, "(b n) t d -> b (n t) d", n=pieces)


def _inside(pattern: str) -> str:
    """A pattern on names of the image model, for names of this one."""
    return pattern.replace("^", r"^image\.")
