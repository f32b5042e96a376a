"""Who sees whom: everybody. The layout's methods are those of patterns.py."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor


@dataclass(frozen=True)
class Whole:
    """Every token sees every token, over any number of axes.

    Over one axis the keys stand in reverse order: a relative position then is a view of a line of 2t - 1 numbers
    (ClippedPosition.reversed), which the fused kernel reads as it is; t x t numbers are written only where a gradient or a mask
    needs them.
    """

    def layout(self, axes: tuple[int, ...]) -> "WholeLayout | WholeMapLayout":
        return WholeLayout(*axes) if len(axes) == 1 else WholeMapLayout(tuple(axes))


@dataclass(frozen=True)
class WholeLayout:
    """All `length` tokens as one group."""

    length: int

    def cut(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n c -> b 1 n c")

    def join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b 1 n c -> b n c")

    def keys(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n h d -> b w h n d").flip(-2)

    def bias(self, position) -> Tensor:
        return position.reversed(self.length)

    def mask(self, real: Tensor | None, _device: torch.device) -> Tensor | None:
        return None if real is None else _keys(real.flip(-1))

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b 1 h t t), keys reversed -> (b h t t)."""
        return rearrange(weights.flip(-1), "b 1 h n m -> b h n m")


@dataclass(frozen=True)
class WholeMapLayout:
    """All tokens of a map of `axes` as one group, in row-major order."""

    axes: tuple[int, ...]

    def cut(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).unsqueeze(1)

    def join(self, x: Tensor) -> Tensor:
        return x.squeeze(1).unflatten(1, self.axes)

    def keys(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n h d -> b w h n d")

    def bias(self, position) -> Tensor:
        return position(self.axes)

    def mask(self, real: Tensor | None, _device: torch.device) -> Tensor | None:
        return None if real is None else _keys(real.flatten(1))

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b 1 h n n) -> (b h n n)."""
        return weights.squeeze(1)


def _keys(real: Tensor) -> Tensor:
    """(b m) -> (b 1 1 1 m); an item without a real token sees its padding, so that no row is empty."""
    return rearrange(real | ~real.any(-1, keepdim=True), "b m -> b 1 1 1 m")
