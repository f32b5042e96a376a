"""Linear (kernelised) attention: the softmax is replaced by a product of positive features, so the keys are summed once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import einsum
from torch import Tensor

from zoo.core.attention import attend, recorder


def positive(x: Tensor) -> Tensor:
    """elu(x) + 1, without the rounding that makes elu(-20) + 1 zero. Source: Katharopoulos et al. 2020, eq. 7."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


@dataclass(frozen=True)
class LinearAttention:
    """A method of Attention: out_i = f(q_i)^T sum_j f(k_j) v_j^T / f(q_i)^T sum_j f(k_j), over the real keys j.

    Time and memory are linear in the length. It is another function than softmax, by how much on one's own data: `error`.
    `feature` f maps (... d) to positive numbers (... e). Computed in float32 also under autocast: sums over all keys.
    Raises ValueError for a term added to the score (there is no score: take an absolute position) and for a mask that differs
    between queries (take pattern None or Whole). Source: Katharopoulos et al. 2020, eq. 5.
    """

    feature: Callable[[Tensor], Tensor] = positive

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if bias is not None:
            raise ValueError("LinearAttention: no term can be added to a score that is never written out; "
                             "use position=None and SinusoidalPosition or LearnedPosition at the input")
        if mask is not None and mask.shape[-2] != 1:
            raise ValueError(f"LinearAttention: the mask {[*mask.shape]} differs between queries; use pattern None or Whole")
        with torch.autocast(q.device.type, enabled=False):
            wide = torch.promote_types(q.dtype, torch.float32)
            q, k = self.feature(q.to(wide)), self.feature(k.to(wide))
            if mask is not None:
                k = k.masked_fill(~mask.mT, 0)
            return self._sum(q, k, v.to(wide)).to(v.dtype)

    def _sum(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        total = einsum(q, k.sum(-2), "... n e, ... e -> ... n").clamp(min=torch.finfo(q.dtype).tiny).unsqueeze(-1)
        if (open_recorder := recorder()) is not None:
            weights = einsum(q, k, "... n e, ... m e -> ... n m") / total
            open_recorder.add(weights)
            return einsum(weights, v, "... n m, ... m d -> ... n d")
        return einsum(q, einsum(k, v, "... m e, ... m d -> ... e d"), "... n e, ... e d -> ... n d") / total


@torch.no_grad()
def error(method: Callable, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> float:
    """|method - softmax| / |softmax| over all numbers of the output: how far a method is from exact attention on this input."""
    exact = attend(q, k, v, mask)
    return float((method(q, k, v, mask, None) - exact).norm() / exact.norm())
