"""Who sees whom: a sliding window with gaps over one axis. The layout is a band over each run of every step-th token."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from zoo.core.band import Band, BandLayout
from zoo.core.patterns import one_axis, pad_to_multiple


@dataclass(frozen=True)
class Dilated:
    """Tokens i and j see each other where i - j is a multiple of `step` and |i - j| <= step * radius: linear in the length.

    A position (one axis) counts offsets in steps. Raises ValueError where step < 1, radius < 0 or the map has not one axis.
    Source: Beltagy et al. 2020, sec. 3.1 (dilated sliding window).
    """

    radius: int
    step: int

    def __post_init__(self):
        if self.radius < 0 or self.step < 1:
            raise ValueError(f"Dilated: need radius >= 0 and step >= 1, got radius={self.radius}, step={self.step}")

    def layout(self, axes: tuple[int, ...]) -> "DilatedLayout":
        length = one_axis("Dilated", axes)
        band = Band(self.radius).layout(((length + self.step - 1) // self.step,))
        return DilatedLayout(length, self.step, band)


@dataclass(frozen=True)
class DilatedLayout:
    """`step` sequences of every step-th token, one behind another among the groups, each under the same band."""

    length: int
    step: int
    band: BandLayout

    def cut(self, x: Tensor) -> Tensor:
        x = rearrange(pad_to_multiple(x, (self.step,)), "b (t step) c -> (b step) t c", step=self.step)
        return self._beside(self.band.cut(x))

    def join(self, x: Tensor) -> Tensor:
        x = self.band.join(self._apart(x))
        x = rearrange(x, "(b step) t c -> b (t step) c", step=self.step)
        if isinstance(self.length, torch.SymInt):  # torch.export: a slice would be checked against lengths of 1
            return x.index_select(1, torch.arange(self.length, device=x.device))
        return x[:, : self.length]

    def keys(self, x: Tensor) -> Tensor:
        return self._beside(self.band.keys(self._apart(x)))

    def bias(self, position) -> Tensor:
        return self.band.bias(position)

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor:
        """Bool (w 1 n m), or (b w 1 n m) where `real` (b t) marks real tokens. A token always sees itself, so no row is empty."""
        if real is None and not isinstance(self.length, torch.SymInt) and self.length % self.step == 0:
            return self.band.mask(None, device).repeat(self.step, 1, 1, 1)
        real = torch.ones(1, self.length, dtype=torch.bool, device=device) if real is None else real
        real = rearrange(pad_to_multiple(real.unsqueeze(-1), (self.step,)), "b (t step) 1 -> (b step) t", step=self.step)
        return self._beside(self.band.mask(real, device))

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b w h n m) -> (b h t t); 0 where nobody looks."""
        own = rearrange(self.band.dense(self._apart(weights)), "(b step) h n m -> step b h n m", step=self.step)
        full = own.new_zeros(*own.shape[1:4], self.step, own.shape[4], self.step)
        for i, weight in enumerate(own):
            full[:, :, :, i, :, i] = weight
        return rearrange(full, "b h n p m q -> b h (n p) (m q)")[:, :, : self.length, : self.length]

    def _beside(self, x: Tensor) -> Tensor:
        return rearrange(x, "(b step) w ... -> b (step w) ...", step=self.step)

    def _apart(self, x: Tensor) -> Tensor:
        return rearrange(x, "b (step w) ... -> (b step) w ...", step=self.step)
