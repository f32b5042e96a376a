"""Linear (kernelised) attention: the softmax is replaced by a product of positive features, so the keys are summed once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from zoo.core.attention import attend
from zoo.core.patterns import pad_to_multiple
from zoo.core.recorder import recorder


def positive(x: Tensor) -> Tensor:
    """elu(x) + 1, without the rounding that makes elu(-20) + 1 zero. Source: Katharopoulos et al. 2020, eq. 7."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


CHUNK = 64  # tokens: under the causal rule pairs are written out within so many, and summed before them


@dataclass(frozen=True)
class LinearAttention:
    """A method of Attention: out_i = f(q_i)^T sum_j f(k_j) v_j^T / f(q_i)^T sum_j f(k_j), over the keys j that i may see.

    Time and memory are linear in the length: where all see all, under the causal rule (cumulative sums), and in patterns of small
    groups (windows, bands: within them pairs are written out). Other masks that differ between queries, such as Reach, are
    written out too, at the square of the length. It is another function than softmax, by how much on one's own data: `error`.
    `feature` f maps (... d) to positive numbers (... e). Computed in float32 also under autocast: sums over all keys.
    Raises ValueError for a term added to the score (there is no score: take an absolute position).
    Source: Katharopoulos et al. 2020, eq. 5 and (causal) 8 to 12.
    """

    feature: Callable[[Tensor], Tensor] = positive

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            raise ValueError("LinearAttention: no term can be added to a score that is never written out; "
                             "use position=None and SinusoidalPosition or LearnedPosition at the input")
        look = _written_out if recorder() is not None or mask is not None and mask.shape[-2] != 1 else _summed
        return self._featured(look, q, k, v, mask)

    def within(self, layout, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        """The same where the rule is a layout and not yet a mask; `real` (b *axes) marks real tokens."""
        if recorder() is None and getattr(layout, "causal", False):
            keys = None if real is None else rearrange(real, "b m -> b 1 1 1 m")
            return self._featured(_cumulative, q, k, v, keys)
        return self(q, k, v, layout.mask(real, q.device))

    def along(self, q: Tensor, k: Tensor, _score: Tensor, share: Callable) -> Tensor:
        """The weights of listed pairs (P h); q, k (P h d), `share` the softmax over those of a query."""
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = share((self.feature(q.to(wide)) * self.feature(k.to(wide))).sum(-1).log())
        if (open_recorder := recorder()) is not None:
            open_recorder.add(weights)
        return weights

    def _featured(self, look: Callable, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            return look(self.feature(q.to(wide)), self.feature(k.to(wide)), v.to(wide), mask).to(v.dtype)


def _summed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """The keys are summed once for all queries; mask (... 1 m)."""
    if mask is not None:
        k = k.masked_fill(~mask.mT, 0)
    total = _positive(einsum(q, k.sum(-2), "... n e, ... e -> ... n"))
    return einsum(q, einsum(k, v, "... m e, ... m d -> ... e d"), "... n e, ... e d -> ... n d") / total


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """All pairs of a group, under any mask; recorded."""
    weights = einsum(q, k, "... n e, ... m e -> ... n m")
    weights = weights if mask is None else weights.masked_fill(~mask, 0)
    weights = weights / _positive(weights.sum(-1))
    if (open_recorder := recorder()) is not None:
        open_recorder.add(weights)
    return einsum(weights, v, "... n m, ... m d -> ... n d")


def _cumulative(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Each query sees itself and what stands before it: sums up to its chunk, pairs within; mask (... 1 m). q, k, v (... n e)."""
    lead, n = q.shape[:-2], q.shape[-2]
    if mask is not None:
        k = k.masked_fill(~mask.mT, 0)
    v = F.pad(v, (0, 1), value=1)  # one more column: its sum is the normaliser
    q, k, v = (rearrange(pad_to_multiple(t.flatten(0, -3), (CHUNK,)), "b (c n) e -> b c n e", n=CHUNK) for t in (q, k, v))
    sums = einsum(k, v, "b c m e, b c m d -> b c e d")
    before = F.pad(sums.cumsum(1)[:, :-1], (0, 0, 0, 0, 1, 0))
    within = einsum(q, k, "b c n e, b c m e -> b c n m").tril()
    out = einsum(q, before, "b c n e, b c e d -> b c n d") + einsum(within, v, "b c n m, b c m d -> b c n d")
    out = rearrange(out, "b c n d -> b (c n) d")[:, :n].unflatten(0, lead)
    return out[..., :-1] / _positive(out[..., -1])


def _positive(total: Tensor) -> Tensor:
    """(... n) -> (... n 1), never 0: a query without keys then gets 0."""
    return total.clamp(min=torch.finfo(total.dtype).tiny).unsqueeze(-1)


@torch.no_grad()
def error(method: Callable, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> float:
    """|method - softmax| / |softmax| over all numbers of the output: how far a method is from exact attention on this input."""
    exact = attend(q, k, v, mask)
    return float((method(q, k, v, mask, None) - exact).norm() / exact.norm())
