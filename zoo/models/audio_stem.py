"""From mel frames to tokens of two frames: a linear map of both, or convolutions over time and frequency.

Padded frames count as 0 before every layer that looks along time, as what lies behind the end of a clip that stands alone.
"""

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core import Merge, merge_mask
from zoo.core.attention import blank

WIDTH = 32  # channels of the convolutions


class MergeStem(nn.Module):
    """Two neighbouring frames, concatenated, normed, projected: (b frames mels), mask -> (b ceil(frames/2) dim), its mask."""

    def __init__(self, mels: int, dim: int):
        super().__init__()
        self.merge, self.norm = Merge(mels, dim, axes=1), nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.norm(self.merge(x, mask)), merge_mask(mask)


class ConvStem(nn.Module):
    """Two 3x3 convolutions over (time, mel) that halve time once and frequency twice, then one linear map a frame.

    (b frames mels), mask -> (b ceil(frames/2) dim), its mask. Each frame is normed by itself: statistics over time or over the
    batch (BatchNorm) would see padding. Source: Xiao et al. 2021, "Early convolutions".
    """

    def __init__(self, mels: int, dim: int):
        super().__init__()
        half, quarter = (mels + 1) // 2, (mels + 3) // 4
        self.conv1, self.norm1 = nn.Conv2d(1, WIDTH, 3, (1, 2), padding=1), nn.LayerNorm([half, WIDTH])
        self.conv2, self.norm2 = nn.Conv2d(WIDTH, WIDTH, 3, 2, padding=1), nn.LayerNorm([quarter, WIDTH])
        self.proj, self.norm = nn.Linear(quarter * WIDTH, dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x = blank(x, mask).unsqueeze(-1)  # b frames mels 1
        x = F.gelu(self.norm1(_over_map(self.conv1, x))).flatten(2)
        x = blank(x, mask).unflatten(2, (-1, WIDTH))
        x = F.gelu(self.norm2(_over_map(self.conv2, x))).flatten(2)
        return self.norm(self.proj(x)), merge_mask(mask)


def _over_map(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """(b frames bands c) -> the convolution's map in the same order of axes."""
    return rearrange(conv(rearrange(x, "b t f c -> b c t f")), "b c t f -> b t f c")
