"""Who sees whom. Windows over N axes (N = 2: images, Liu et al. 2021, Swin; N = 1: audio frames), shifted or not.

Per axis, token i belongs to cell (i + w - shift) // w; two tokens see each other when they share the cell of every
axis. The cells are cut as Swin does: pad to whole windows, roll by the shift, cut; the first and the last partial cell then
share one window and a mask keeps them, and the padding, apart. An axis no longer than the window is one cell, unshifted.
The axis is that of the map: an item that fits the window alone is cut in two where it is padded beyond it and shifted.
Where items of unequal size share a batch take SteadyWindows, whose cells do not know the map.

A pattern is a frozen dataclass with `layout(axes)`; Attention asks the layout for everything and knows no pattern by name:

    cut(x)              (b *axes c) -> (b w n c)       queries, w groups of n tokens; join undoes it
    keys(x)             (b w n' h d) -> (b w h m d)    the m keys (or values) that each group may see
    bias(position)      (h n m)                        the position module's term for these queries and keys
    mask(real, device)  None, or broadcastable to (b w h n m)
    dense(weights)      (b w h n m) -> (b h t t)       recorded weights over all pairs of tokens

The others: Band (band.py), a window that slides; Dilated (dilated.py), the same with gaps; Axial (axial.py), one axis at a
time; Reach (reach.py), a rule of distance, causal included; and Whole (whole.py), everybody.
"""

from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from zoo.core.cache import cached

CUT = {
    1: "b (col w) c -> b col w c",
    2: "b (row h) (col w) c -> b (row col) (h w) c",
    3: "b (time t) (row h) (col w) c -> b (time row col) (t h w) c",
}


@dataclass(frozen=True)
class Windows:
    """Windows of `size` tokens per axis (1 to 3 axes), shifted by `shift` tokens (default 0).

    Raises ValueError where a size is < 1, a shift is not in 0 .. size - 1, or the axes do not fit the map.
    """

    size: tuple[int, ...]
    shift: tuple[int, ...] = ()

    def __post_init__(self):
        shift = self.shift or (0,) * len(self.size)
        object.__setattr__(self, "shift", shift)
        if len(self.size) not in CUT:
            raise ValueError(f"Windows: 1 to {len(CUT)} axes, got size={self.size}")
        if len(shift) != len(self.size) or any(w < 1 or not 0 <= s < w for w, s in zip(self.size, shift)):
            raise ValueError(f"Windows: need size >= 1 and 0 <= shift < size per axis, got size={self.size}, shift={shift}")

    def layout(self, axes: tuple[int, ...]) -> "Layout":
        """The geometry on a map of `axes` tokens. An axis of unknown length (torch.export) keeps the whole window."""
        if len(axes) != len(self.size):
            raise ValueError(f"Windows: {len(self.size)} axes of windows {self.size} on a map of shape {tuple(axes)}")
        return (SymbolicLayout if any(map(_unknown, axes)) else Layout)(tuple(axes), *self._fit(axes))

    def _fit(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Size and shift of the windows on this map."""
        size = tuple(w if _unknown(n) else min(w, n) for w, n in zip(self.size, axes))
        return size, tuple(s * _longer(n, w) for w, s, n in zip(self.size, self.shift, axes))


class SteadyWindows(Windows):
    """Windows whose cells are the same on a map of any length, so that an item is cut alike alone and padded."""

    def _fit(self, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.size, self.shift


@dataclass(frozen=True)
class Layout:
    """Windows fitted to one map: `axes` tokens, windows of `size`, rolled by `shift`."""

    axes: tuple[int, ...]
    size: tuple[int, ...]
    shift: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Windows per axis."""
        return tuple(_ceil_div(n, w) for n, w in zip(self.axes, self.size))

    @property
    def rolled(self) -> bool:
        return any(self.shift)

    @property
    def ragged(self) -> bool:
        return any(n % w for n, w in zip(self.axes, self.size))

    def cut(self, x: Tensor) -> Tensor:
        """(b *axes c) -> (b windows tokens c); padding is 0."""
        x = pad_to_multiple(x, self.size)
        if self.rolled:
            x = x.roll([-s for s in self.shift], list(range(1, x.ndim - 1)))
        return rearrange(x, CUT[len(self.axes)], **self._lengths())

    def join(self, x: Tensor) -> Tensor:
        """(b windows tokens c) -> (b *axes c): undoes `cut`."""
        whole, windows = CUT[len(self.axes)].split(" -> ")
        x = rearrange(x, f"{windows} -> {whole}", **self._lengths())
        if self.rolled:
            x = x.roll(self.shift, list(range(1, x.ndim - 1)))
        if self.ragged:
            x = x[(slice(None), *(slice(n) for n in self.axes))]
        return x

    def keys(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n h d -> b w h n d")

    def bias(self, position) -> Tensor:
        return position(self.size)

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor | None:
        """Bool (windows 1 n n), or (b windows 1 n n) where `real` (b *axes) marks real tokens; None when all see all.

        A token always sees itself, so no row is empty; rows of padding are cut away by `join`.
        """
        cells = _cell_mask(self, device) if self.ragged or self.rolled else None
        if real is None:
            return cells
        seen = rearrange(self.cut(real.unsqueeze(-1)), "b w n 1 -> b w 1 1 n")
        seen = seen if cells is None else seen & cells
        return seen | torch.eye(prod(self.size), dtype=torch.bool, device=device)

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b windows h n n) -> (b h tokens tokens) over the flattened map; 0 where nobody looks."""
        b, w, h, n, _ = weights.shape
        place = self.cut(torch.arange(prod(self.axes), device=weights.device).view(1, *self.axes, 1) + 1).view(w, n)
        full = weights.new_zeros(b, h, prod(self.axes) + 1, prod(self.axes) + 1)  # place 0 collects the padding
        for i, index in enumerate(place):
            full[:, :, index[:, None], index[None, :]] = weights[:, i]
        return full[:, :, 1:, 1:]

    def _lengths(self) -> dict[str, int]:
        """Length of every axis of the pattern in CUT."""
        axes = len(self.axes)
        return dict(zip("time row col".split()[-axes:], self.counts)) | dict(zip("t h w".split()[-axes:], self.size))


class SymbolicLayout(Layout):
    """The same on a map whose lengths torch.export does not know: one gather each way, and no branch on a length.

    Export under torch.fx.experimental._config.patch(backed_size_oblivious=True): torch itself tells lengths of 1 apart else.
    """

    ragged = True

    def cut(self, x: Tensor) -> Tensor:
        places, padding = [], torch.zeros((), dtype=torch.bool, device=x.device)
        for axis, (n, w, s, count) in enumerate(zip(self.axes, self.size, self.shift, self.counts)):
            i = torch.arange(count, device=x.device)[:, None] * w + torch.arange(w, device=x.device)
            i = ((i + s) % (count * w)).view(*_at(axis, count, len(self.axes)), *_at(axis, w, len(self.axes)))
            places.append(i.clamp(max=n - 1))
            padding = padding | (i >= n)
        x = x[(slice(None), *places)].masked_fill(padding.unsqueeze(-1), 0)  # b *counts *size c
        return x.flatten(1, len(self.axes)).flatten(2, -2)

    def join(self, x: Tensor) -> Tensor:
        window = token = torch.zeros((), dtype=torch.long, device=x.device)
        for axis, (n, w, s, count) in enumerate(zip(self.axes, self.size, self.shift, self.counts)):
            i = ((torch.arange(n, device=x.device) - s) % (count * w)).view(_at(axis, n, len(self.axes)))
            window, token = window * count + i // w, token * w + i % w
        return x[:, window, token]


def one_axis(name: str, axes: tuple[int, ...]) -> int:
    """Length of the only axis of a map. ValueError, with the pattern's name, where it has another number of axes."""
    if len(axes) != 1:
        raise ValueError(f"{name}: one axis of tokens, got a map of shape {tuple(axes)}")
    return axes[0]


def _at(axis: int, length: int, axes: int) -> list[int]:
    """Shape of `axes` ones but for `length` at `axis`."""
    return [length if i == axis else 1 for i in range(axes)]


def pad_to_multiple(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """(b *axes c) with 0 behind every axis up to a multiple of its size; x itself where nothing is missing."""
    axes = x.shape[1:-1]
    whole = [_ceil_div(n, w) * w for n, w in zip(axes, size)]
    if any(map(_unknown, axes)):
        for axis, (n, p) in enumerate(zip(axes, whole), 1):
            i = torch.arange(p, device=x.device)
            outside = (i >= n).view(-1, *[1] * (x.ndim - axis - 1))
            x = x.index_select(axis, i.clamp(max=n - 1)).masked_fill(outside, 0)
        return x
    if any(p > n for n, p in zip(axes, whole)):
        x = F.pad(x, [0, 0, *(length for n, p in zip(reversed(axes), reversed(whole)) for length in (0, p - n))])
    return x


def _ceil_div(n: int, w: int) -> int:
    return (n + w - 1) // w


def _unknown(n: int) -> bool:
    """Whether a length is a symbol (torch.export): then no branch may depend on it."""
    return isinstance(n, torch.SymInt)


def _longer(n: int, w: int) -> int:
    """1 where an axis of n tokens is longer than the window w, else 0."""
    return torch.sym_min(1, (n - 1) // w)


@cached
def _cell_mask(layout: Layout, device: torch.device) -> Tensor:
    """Bool (windows 1 n n): same cell on every axis, the key is no padding; or the token itself."""
    cells = []
    for n, count, w, s in zip(layout.axes, layout.counts, layout.size, layout.shift):
        i = torch.arange(count * w)
        cells.append(torch.where(i < n, (i + (w - s)) // w, -1))
    grid = torch.stack(torch.meshgrid(*cells, indexing="ij"), -1)
    cell = type(layout)(tuple(grid.shape[:-1]), layout.size, layout.shift).cut(grid[None])[0]  # windows n axes
    same = (cell[:, :, None] == cell[:, None, :]).all(-1) & (cell >= 0).all(-1)[:, None, :]
    return (same | torch.eye(cell.shape[1], dtype=torch.bool))[:, None].to(device)
