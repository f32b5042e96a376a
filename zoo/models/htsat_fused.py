"""CLAP's other front end: a clip longer than 10 s is heard as a whole, squeezed, and as three pieces of 10 s; both are fused.

Sources: Wu et al. 2023 (CLAP), sec. 3.2; Dai et al. 2021, attentional feature fusion, eq. 2 and 3. The pieces are drawn at random
from three thirds of the clip at training, as there; else the middle one of each third is taken, so that a clip has one answer.
"""

from math import log

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.errors import ZooError
from zoo.models.htsat import MELS, ClapMel
from zoo.models.image import PatchEmbed
from zoo.models.mel import trim

VIEWS = 4  # the whole clip, then its three pieces


class FusedMel(ClapMel):
    """wave (b samples) in [-1, 1], lengths (b) | None -> (mel (b 4 1001 64) in dB, sound (b 1)), the samples of each clip.

    As ClapMel, but mels on the HTK scale (torchaudio's and the public fused weights'). A clip of at most 10 s is filled as there,
    its four views are equal. Of a longer one the first view is the whole, bilinearly squeezed, then come the pieces.
    """

    scale = "htk"

    def forward(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        wave, lengths = trim(wave, lengths)
        if lengths is None:
            return self._views(wave), torch.full((len(wave), 1), wave.shape[1], device=wave.device)
        clips = [self._views(clip[None, : int(n)]) for clip, n in zip(wave, lengths)]
        return torch.cat(clips), lengths.unsqueeze(1)

    def longer(self, sound: Tensor) -> Tensor:
        """Bool (b): which clips have pieces of their own. The last hop beyond 10 s adds no frame."""
        return sound[:, 0] >= self.samples + self.hop

    def log_mel(self, wave: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """The first view (b 1001 64) in natural logarithms, for pictures. ZooError for clips longer than 10 s."""
        mel, sound = self(wave, lengths)
        self.check_short(sound)
        return mel[:, 0] * (log(10) / 10), None

    def check_short(self, sound: Tensor) -> None:
        """ZooError where a clip is squeezed: its frames are no longer ten seconds."""
        if bool(self.longer(sound).any()):
            raise ZooError(f"the fused front end squeezes clips longer than {self.seconds} s, so their frames have no time; cut "
                           "the clip, or take a model with the unfused one")

    def _views(self, wave: Tensor) -> Tensor:
        """Clips of one length (b samples) -> (b 4 1001 64)."""
        if wave.shape[1] <= self.samples:
            wave, _ = self.cut(wave)
        mel, size = self.mel(wave), self.samples // self.hop + 1
        if mel.shape[1] == size:
            return mel.unsqueeze(1).expand(-1, VIEWS, -1, -1)
        whole = F.interpolate(mel.unsqueeze(1), (size, MELS), mode="bilinear", align_corners=False)
        pieces = [mel[:, start : start + size].unsqueeze(1) for start in self._starts(mel.shape[1] - size + 1)]
        return torch.cat([whole, *pieces], 1)

    def _starts(self, places: int) -> list[int]:
        """First frames of the three pieces, one of each third of the possible ones (the first, where a third is empty)."""
        thirds = [(part[0], len(part)) if len(part) else (0, 1) for part in torch.arange(places).tensor_split(3)]
        if self.training:
            return [int(first) + int(torch.randint(count, ())) for first, count in thirds]
        return [int(first) + count // 2 for first, count in thirds]


class FusedEmbed(PatchEmbed):
    """(pictures (b 4 height width), longer (b) bool) -> (b rows cols dim): the patches of the first, fused with the others' where
    a clip is longer. A patch of a piece is as high as one of the whole and three times as wide.
    """

    def __init__(self, dim: int, patch: int):
        super().__init__(1, dim, patch)
        self.mel_conv2d = nn.Conv2d(1, dim, (patch, 3 * patch), (patch, 3 * patch))
        self.fusion_model = Fusion(dim)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        pictures, longer = x
        tokens = self.proj(pictures[:, :1])
        if bool(longer.any()):
            pieces = self.mel_conv2d(rearrange(pictures[longer, 1:], "b n h w -> (b n) 1 h w"))
            pieces = rearrange(pieces, "(b n) c row col -> b c row (n col)", n=VIEWS - 1)
            pieces = F.pad(pieces, (0, tokens.shape[-1] - pieces.shape[-1]))
            tokens = tokens.index_put((longer.nonzero()[:, 0],), self.fusion_model(tokens[longer], pieces).to(tokens.dtype))
        return self.norm(rearrange(tokens, "b c row col -> b row col c"))


class Fusion(nn.Module):
    """2 x w + 2 y (1 - w), w = sigmoid(local(x + y) + pooled(x + y)): (b c row col), the same -> the same. Names: CLAP's."""

    def __init__(self, dim: int):
        super().__init__()
        self.local_att = nn.Sequential(*_gate(dim))
        self.global_att = nn.Sequential(nn.AdaptiveAvgPool2d(1), *_gate(dim))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weight = torch.sigmoid(self.local_att(x + y) + self.global_att(x + y))
        return 2 * x * weight + 2 * y * (1 - weight)


class LoneNorm(nn.BatchNorm2d):
    """BatchNorm2d that takes its running statistics where a batch has one value per channel, of which there is no deviation."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.numel() == x.shape[1]:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


def _gate(dim: int) -> list[nn.Module]:
    inner = dim // 4
    return [nn.Conv2d(dim, inner, 1), LoneNorm(inner), nn.ReLU(), nn.Conv2d(inner, dim, 1), LoneNorm(dim)]
