"""Who sees whom: a square that slides with the token over a map of two axes. The layout's methods are those of patterns.py."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from zoo.core.cache import cached
from zoo.core.patterns import Layout, SymbolicLayout


@dataclass(frozen=True)
class Slide:
    """Every token sees the (2 radius + 1) x (2 radius + 1) tokens around it, cut off at the edges: linear in the tokens.

    Queries go in squares of `block` x `block` tokens (0: twice the radius, 4 at least), each with the (block + 2 radius)^2 keys
    around it. A position (two axes) goes by the offsets. Raises ValueError where radius < 0, block < 0 or the map has not two
    axes. Source: Ramachandran et al. 2019 (stand-alone self-attention); in squares as Vaswani et al. 2021 (HaloNet), but exact.
    """

    radius: int
    block: int = 0

    def __post_init__(self):
        if self.radius < 0 or self.block < 0:
            raise ValueError(f"Slide: need radius >= 0 and block >= 0, got radius={self.radius}, block={self.block}")
        object.__setattr__(self, "block", self.block or max(4, 2 * self.radius))

    def layout(self, axes: tuple[int, ...]) -> "SlideLayout":
        if len(axes) != 2:
            raise ValueError(f"Slide: two axes of tokens, got a map of shape {tuple(axes)}")
        if any(isinstance(n, torch.SymInt) for n in axes):
            return SymbolicSlideLayout(tuple(axes), (self.block, self.block), (0, 0), self.radius)
        return SlideLayout(tuple(axes), tuple(min(self.block, n) for n in axes), (0, 0), self.radius)


@dataclass(frozen=True)
class SlideLayout(Layout):
    """Windows of `size` queries; their keys are those of the same tokens and of `radius` more on each side."""

    radius: int

    def keys(self, x: Tensor) -> Tensor:
        place = _places(self, x.device)
        x = rearrange(x, "b w n h d -> b (w n) h d").index_select(1, place.flatten())
        return rearrange(x, "b (w m) h d -> b w h m d", m=place.shape[1])

    def bias(self, position) -> Tensor:
        around = tuple(w + 2 * self.radius for w in self.size)
        whole = position(around).unflatten(-2, around)  # h (row col) m
        inner = (slice(self.radius, self.radius + w) for w in self.size)
        return whole[(slice(None), *inner)].flatten(1, 2)

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor:
        """Bool (w 1 n m), or (b w 1 n m) where `real` (b h w) marks real tokens. A token always sees itself: no row is empty."""
        near = _near(self, device)
        if real is None:
            return near
        seen = self.keys(rearrange(self.cut(real.unsqueeze(-1)), "b w n 1 -> b w n 1 1"))
        return near & rearrange(seen, "b w 1 m 1 -> b w 1 1 m") | _itself(self, device)

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b w h n m) -> (b h tokens tokens) over the flattened map; 0 where nobody looks."""
        b, w, h, *_ = weights.shape
        tokens = self.axes[0] * self.axes[1]
        names = torch.arange(tokens, device=weights.device).view(1, *self.axes, 1)
        real = self.cut(torch.ones_like(names))[0, :, :, 0] == 1
        query = torch.where(real, self.cut(names)[0, :, :, 0], tokens)  # place `tokens` collects the padding
        key = query.flatten()[_places(self, weights.device)]
        key = torch.where(_inside(self, weights.device)[:, 0, 0], key, tokens)
        full = weights.new_zeros(b, h, tokens + 1, tokens + 1)
        full[:, :, query[:, :, None], key[:, None, :]] = rearrange(weights, "b w h n m -> b h w n m")
        return full[:, :, :-1, :-1]


class SymbolicSlideLayout(SymbolicLayout, SlideLayout):
    """The same on a map whose lengths torch.export does not know."""


def _rows(layout: SlideLayout, device: torch.device) -> list[Tensor]:
    """By axis: place on the map of the keys (count w + 2 radius) of every block; outside of 0 .. n - 1: padding."""
    return [torch.arange(count, device=device)[:, None] * w + torch.arange(w + 2 * layout.radius, device=device) - layout.radius
            for count, w in zip(layout.counts, layout.size)]


def _spread(row: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
    """What is told by row (count n), and by column (count m), for all of a block: each broadcastable to (w n m)."""
    return row[:, None, :, None], col[None, :, None, :]


@cached
def _places(layout: SlideLayout, device: torch.device) -> Tensor:
    """Keys (w m) of every block, as places among the flattened queries (w n); any token where there is none."""
    (height, width), (h, w) = layout.axes, layout.size
    row, col = _rows(layout, device)
    row, col = _spread(row.clamp(0, height - 1), col.clamp(0, width - 1))
    window = row // h * layout.counts[1] + col // w
    return (window * (h * w) + row % h * w + col % w).flatten(2).flatten(0, 1)


@cached
def _inside(layout: SlideLayout, device: torch.device) -> Tensor:
    """Bool (w 1 1 m): the key is on the map."""
    row, col = _spread(*((place >= 0) & (place < n) for place, n in zip(_rows(layout, device), layout.axes)))
    return (row & col).flatten(2).flatten(0, 1)[:, None, None]


@cached
def _near(layout: SlideLayout, device: torch.device) -> Tensor:
    """Bool (w 1 n m): near enough and on the map, or the token itself."""
    gaps = [torch.arange(w, device=device)[:, None] + layout.radius - torch.arange(w + 2 * layout.radius, device=device)
            for w in layout.size]
    row, col = (gap.abs() <= layout.radius for gap in gaps)
    near = (row[:, None, :, None] & col[None, :, None, :]).flatten(2).flatten(0, 1)
    return near & _inside(layout, device) | _itself(layout, device)


@cached
def _itself(layout: SlideLayout, device: torch.device) -> Tensor:
    """Bool (n m): the key is the query."""
    row, col = (torch.arange(w, device=device)[:, None] + layout.radius == torch.arange(w + 2 * layout.radius, device=device)
                for w in layout.size)
    return (row[:, None, :, None] & col[None, :, None, :]).flatten(2).flatten(0, 1)
