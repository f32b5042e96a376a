"""Who sees whom: a rule of distance over one axis, causal included. The layout's methods are those of patterns.py."""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from zoo.core.cache import cached
from zoo.core.patterns import one_axis

Limit = int | None | tuple[int | None, ...]


@dataclass(frozen=True)
class Reach:
    """Token i sees token j where -ahead <= i - j <= behind. None: any distance; a tuple: one limit a head.

    Reach(ahead=0), or CAUSAL, is the causal mask. All pairs are computed: time is quadratic and the mask takes n^2 bytes (a head,
    where limits differ). One short limit for all heads is a Band. Raises ValueError where a limit is < 0, two tuples differ in
    length, or the map has not one axis. Source: Vaswani et al. 2017, sec. 3.2.3 (causal); Sukhbaatar et al. 2019 (per head).
    """

    behind: Limit = None
    ahead: Limit = None

    def __post_init__(self):
        counts = {len(limit) for limit in (self.behind, self.ahead) if isinstance(limit, tuple)}
        if len(counts) > 1 or 0 in counts or any(n is not None and n < 0 for n in (*_each(self.behind), *_each(self.ahead))):
            raise ValueError("Reach: need limits >= 0 or None (any), and as many of both where both are per head, "
                             f"got behind={self.behind}, ahead={self.ahead}")

    @property
    def heads(self) -> int:
        """Limits given per head; 1: the same for all."""
        return max(len(_each(self.behind)), len(_each(self.ahead)))

    def layout(self, axes: tuple[int, ...]) -> "ReachLayout":
        return ReachLayout(one_axis("Reach", axes), _each(self.behind), _each(self.ahead))


@dataclass(frozen=True)
class ReachLayout:
    """All `length` tokens as one group, under the rule."""

    length: int
    behind: tuple[int | None, ...]
    ahead: tuple[int | None, ...]

    @property
    def causal(self) -> bool:
        """Everything up to oneself."""
        return self.behind == (None,) and self.ahead == (0,)

    def cut(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n c -> b 1 n c")

    def join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b 1 n c -> b n c")

    def keys(self, x: Tensor) -> Tensor:
        return rearrange(x, "b w n h d -> b w h n d")

    def bias(self, position) -> Tensor:
        return position((self.length,))

    def mask(self, real: Tensor | None, device: torch.device) -> Tensor:
        """Bool (1 h n m), or (b 1 h n m) where `real` (b t) marks real tokens. A token always sees itself, so no row is empty."""
        rule = _rule(self, device)
        if real is None:
            return rule
        return rule & rearrange(real, "b m -> b 1 1 1 m") | torch.eye(self.length, dtype=torch.bool, device=device)

    def dense(self, weights: Tensor) -> Tensor:
        """Recorded weights (b 1 h t t) -> (b h t t)."""
        return rearrange(weights, "b 1 h n m -> b h n m")


def _each(limit: Limit) -> tuple[int | None, ...]:
    return limit if isinstance(limit, tuple) else (limit,)


CAUSAL = Reach(ahead=0)


@cached
def _rule(layout: ReachLayout, device: torch.device) -> Tensor:
    """Bool (1 h n m)."""
    place = torch.arange(layout.length, device=device)
    gap = place[:, None] - place

    def within(limits: tuple[int | None, ...], gap: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(gap, dtype=torch.bool) if limit is None else gap <= limit for limit in limits])

    return (within(layout.behind, gap) & within(layout.ahead, -gap)).unsqueeze(0)
