"""Who sees whom: one axis of a map at a time, rows then columns. The layout's methods are those of patterns.py."""

from dataclasses import dataclass
from math import prod

import torch
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True)
class Axial:
    """Tokens see each other where they differ in their place on `axis` only: of a picture, 1 is within a row, 0 within a column.

    One block with Axial(1) and one with Axial(0) join all tokens; a map of r x c tokens costs r c (r + c), not (r c)^2. A
    position (one axis) goes by the offset on that axis. Raises ValueError where the map has no such axis. Source: Ho et al. 2019.
    """

    axis: int

    def __post_init__(self):
        if not 0 <= self.axis < 3:
            raise ValueError(f"Axial: axis={self.axis}; allowed: 0, 1, 2")

    def layout(self, axes: tuple[int, ...]) -> "AxialLayout":
        if self.axis >= len(axes):
            raise ValueError(f"Axial: no axis {self.axis} on a map of shape {tuple(axes)}")
        return AxialLayout(tuple(axes), self.axis)


@dataclass(frozen=True)
class AxialLayout:
    """Every row (or column) is a group: of a map of `axes` tokens, those along `axis`."""

    axes: tuple[int, ...]
    axis: int

    def cut(self, x: Tensor) -> Tensor:
        return x.movedim(self.axis + 1, -2).unsqueeze(1).flatten(1, -3)

    def join(self, x: Tensor) -> Tensor:
        others = [n for axis, n in enumerate(self.axes) if axis != self.axis]
        return x.unflatten(1, (1, *others)).squeeze(1).movedim(-2, self.axis + 1)

    def keys(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n h d -> b w h n d")

    def bias(self, position) -> Tensor:
        return position((self.axes[self.axis],))

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor | None:
        """None, or bool (b w 1 n n) where `real` (b *axes) marks real tokens. A token always sees itself: no row is empty."""
        if real is None:
            return None
        seen = rearrange(self.cut(real.unsqueeze(-1)), "b w n 1 -> b w 1 1 n")
        return seen | torch.eye(seen.shape[-1], dtype=torch.bool, device=device)

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b w h n n) -> (b h tokens tokens) over the flattened map; 0 where nobody looks."""
        tokens = prod(self.axes)
        place = self.cut(torch.arange(tokens, device=weights.device).view(1, *self.axes, 1))[0, :, :, 0]
        full = weights.new_zeros(weights.shape[0], weights.shape[2], tokens, tokens)
        full[:, :, place[:, :, None], place[:, None, :]] = rearrange(weights, "b w h n m -> b h w n m")
        return full
