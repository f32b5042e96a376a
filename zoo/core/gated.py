"""Gated sparse attention: a learned gate per pair and head closes keys, and the weights are shared among the open ones."""

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core.attention import recorder, weigh

FLOOR = 1e-30  # a row whose open keys hold less of the weight counts as closed


class Gated(nn.Module):
    """A method of Attention: a_ij = w_ij g_ij / sum_j w_ij g_ij, w the softmax over the visible keys.

    g_ij = 1 where s_ij = sigmoid(q_i^T W k_j / sqrt(d) + b) > threshold, else 0; W (d d) and b per head, at the start W = 1 and
    b = `start` (2: nearly all is open). A row without an open key gives 0. At training the gradient is that of the same formula
    with s in place of g (straight-through, Bengio et al. 2013, sec. 4), so that a closed row can open again; in eval mode g is a
    constant. All pairs are computed: sparsity is for the model and the reader, it saves no time. Under a Recorder maps hold a,
    and `closed` the share of visible pairs with g = 0 (queries of padding count too). Raises ValueError where the threshold is
    not between 0 and 1.
    """

    def __init__(self, heads: int, head_dim: int, threshold: float = 0.5, start: float = 2.0):
        super().__init__()
        if not 0 < threshold < 1:
            raise ValueError(f"Gated: threshold={threshold}; allowed: between 0 and 1")
        self.threshold = threshold
        self.map = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1))
        self.shift = nn.Parameter(torch.full((heads,), float(start)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        gate, weights = self.gate(q, k), weigh(q, k, mask, bias)
        opened = gate > self.threshold
        if self.training:
            soft = _shared(weights, gate)
            weights = _shared(weights, opened).detach() + (soft - soft.detach())
        else:
            weights = _shared(weights, opened)
        if (open_recorder := recorder()) is not None:
            open_recorder.add(weights, closed=_closed(opened, mask))
        return einsum(weights.to(v.dtype), v, "... n m, ... m d -> ... n d")

    def gate(self, q: Tensor, k: Tensor) -> Tensor:
        """s for each pair (... h n m), at least float32."""
        asked = einsum(q * q.shape[-1] ** -0.5, self.map, "... h n d, h d e -> ... h n e")
        score = einsum(asked, k, "... n d, ... m d -> ... n m")
        return (score.to(torch.promote_types(score.dtype, torch.float32)) + rearrange(self.shift, "h -> h 1 1")).sigmoid()


def _shared(weights: Tensor, gate: Tensor) -> Tensor:
    """The weights behind the gate, 1 in total again; 0 where nothing is open."""
    kept = weights * gate
    return kept / kept.sum(-1, keepdim=True).clamp(min=FLOOR)


def _closed(opened: Tensor, mask: Tensor | None) -> float:
    """Share of the visible pairs that are closed."""
    return 1 - float(opened.float().mean() if mask is None else opened[mask.expand_as(opened)].float().mean())
