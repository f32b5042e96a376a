"""Who sees whom: everybody, over one axis. The layout's methods are those of patterns.py."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from zoo.core.patterns import one_axis


@dataclass(frozen=True)
class Whole:
    """Every token of one axis sees every token.

    The keys stand in reverse order: a relative position then is a view of a line of 2t - 1 numbers (ClippedPosition.reversed),
    which the fused kernel reads as it is; t x t numbers are written only where a gradient or a mask needs them.
    """

    def layout(self, axes: tuple[int, ...]) -> "WholeLayout":
        return WholeLayout(one_axis("Whole", axes))


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
        return None if real is None else rearrange(real.flip(-1), "b m -> b 1 1 1 m")

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b 1 h t t), keys reversed -> (b h t t)."""
        return rearrange(weights.flip(-1), "b 1 h n m -> b h n m")
