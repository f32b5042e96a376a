"""Absolute position: a vector per place, added to the tokens at the input. Over one axis or more."""

import torch
from torch import Tensor, nn

from zoo.core.cache import cached


class SinusoidalPosition(nn.Module):
    """x + P, P[p, 2i] = sin(p / 10000^(2i/d)), P[p, 2i+1] = cos(the same): x (b *axes dim) of any length, nothing is learned.

    Over `axes` axes each has d = dim / axes of the channels. ValueError where dim is not a multiple of 2 * axes or the map has
    another number of axes. Source: Vaswani et al. 2017, sec. 3.5.
    """

    def __init__(self, dim: int, axes: int = 1):
        super().__init__()
        if axes < 1 or dim < 1 or dim % (2 * axes):
            raise ValueError(f"SinusoidalPosition: dim must be a multiple of 2 * axes, got dim={dim}, axes={axes}")
        self.dim, self.axes = dim, axes

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != self.axes + 2 or x.shape[-1] != self.dim:
            raise ValueError(f"SinusoidalPosition: {self.axes} axes of {self.dim} channels, got {[*x.shape]}")
        return x + _waves(tuple(x.shape[1:-1]), self.dim // self.axes, x.device).to(x.dtype)


class LearnedPosition(nn.Module):
    """x + table: x (b *axes dim) of at most `size` tokens per axis. ValueError for a longer or another map.

    Source: Devlin et al. 2019 (one axis), Dosovitskiy et al. 2021 (two).
    """

    def __init__(self, size: tuple[int, ...], dim: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(*size, dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        size = self.table.shape
        if x.ndim != len(size) + 1 or x.shape[-1] != size[-1] or any(n > most for n, most in zip(x.shape[1:-1], size)):
            raise ValueError(f"LearnedPosition: at most {[*size]} (*axes dim), got {[*x.shape[1:]]}")
        return x + self.table[tuple(slice(n) for n in x.shape[1:-1])]


@cached
def _waves(size: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """(*size, len(size) * width)."""
    rate = 10000 ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    parts = []
    for axis, n in enumerate(size):
        angle = torch.arange(n, dtype=torch.double)[:, None] * rate
        wave = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
        parts.append(wave.view(*[n if i == axis else 1 for i in range(len(size))], width).expand(*size, width))
    return torch.cat(parts, -1).float().to(device)
