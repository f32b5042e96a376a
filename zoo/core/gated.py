"""Gated sparse attention: a learned gate per pair and head closes keys, and the weights are shared among the open ones."""

from collections.abc import Callable
from functools import partial
from math import log

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core.attention import attend, scores
from zoo.core.chunked import pieces, rows
from zoo.core.recorder import recorder

CLOSED = -1e30  # as a score: its weight is 0 where a key is open, and a row of nothing else has a softmax
PIECE = 256  # queries at a time where no gradient is wanted: the gate of one piece stays in the processor's cache


class Gated(nn.Module):
    """A method of Attention: a_ij = w_ij g_ij / sum_j w_ij g_ij, w the softmax over the visible keys.

    g_ij = 1 where s_ij = sigmoid(q_i^T W k_j / sqrt(d) + b) > threshold, else 0; W (d d) and b per head, at the start W = 1 and
    b = `start` (2: nearly all is open). A row without an open key gives 0. At training the gradient is that of the same formula
    with s in place of g (straight-through, Bengio et al. 2013, sec. 4), so that a closed row can open again; in eval mode g is a
    constant. `sparsity` * the mean of s over the visible pairs is what training adds to the loss (`penalties`), after the
    L0 penalty of Louizos et al. 2018. All pairs are scored: sparsity is for the model and the reader, it saves no time. Under a
    Recorder maps hold a, and `closed` the share of visible pairs with g = 0 (queries of padding count too). Raises ValueError
    where the threshold is not between 0 and 1 or sparsity < 0.
    """

    def __init__(self, heads: int, head_dim: int, threshold: float = 0.5, start: float = 2.0, sparsity: float = 0.0):
        super().__init__()
        if not 0 < threshold < 1:
            raise ValueError(f"Gated: threshold={threshold}; allowed: between 0 and 1")
        if sparsity < 0:
            raise ValueError(f"Gated: sparsity={sparsity}; allowed: >= 0")
        self.threshold, self.sparsity, self.penalty = threshold, sparsity, None
        self.map = nn.Parameter(torch.eye(head_dim).repeat(heads, 1, 1))
        self.shift = nn.Parameter(torch.full((heads,), float(start)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if self.training or recorder() is not None or torch.compiler.is_compiling():  # a trace may not know the length
            weights = self.weigh(q, k, mask, bias)
            return einsum(weights.to(v.dtype), v, "... n m, ... m d -> ... n d")
        return torch.cat([self._open(q[..., at, :], k, v, rows(mask, at), rows(bias, at)) for at in pieces(q, PIECE)], -2)

    def weigh(self, q: Tensor, k: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """The weights a (... h n m), at least float32; recorded."""
        return self._weights(scores(q, k, mask, bias), self.gate(q, k), partial(torch.softmax, dim=-1), mask)
    def along(self, q: Tensor, k: Tensor, score: Tensor, share: Callable) -> Tensor:
        """The weights of listed pairs (P h); q, k (P h d) and the score of each, `share` the softmax over those of a query."""
        gate = einsum(einsum(q * q.shape[-1] ** -0.5, self.map, "p h d, h d e -> p h e"), k, "p h e, p h e -> p h")
        gate = gate.to(score.dtype) + self.shift
        return self._weights(score, gate, share, None)

    def gate(self, q: Tensor, k: Tensor) -> Tensor:
        """Of each pair (... h n m) the number whose sigmoid is s, at least float32."""
        asked = einsum(q * q.shape[-1] ** -0.5, self.map, "... h n d, h d e -> ... h n e")
        score = einsum(asked, k, "... n d, ... m d -> ... n m")
        return score.to(torch.promote_types(score.dtype, torch.float32)) + rearrange(self.shift, "h -> h 1 1")

    def _weights(self, score: Tensor, gate: Tensor, share: Callable, mask: Tensor | None) -> Tensor:
        opened = gate > self._level()
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.training):
            weights = share(score.masked_fill(~opened, CLOSED)).masked_fill(~opened, 0)
        if self.training:
            self.penalty = self.sparsity * _mean(gate.sigmoid(), mask) if self.sparsity else None
            weights = _StraightThrough.apply(weights, share(score + F.logsigmoid(gate)))  # = w s / sum w s
        if (open_recorder := recorder()) is not None:
            open_recorder.add(weights, closed=1 - float(_mean(opened.float(), mask)))
        return weights

    def _open(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        """Softmax over the open keys, by whichever kernel is fit."""
        with torch.no_grad():
            opened = self.gate(q, k) > self._level()
            opened = opened if mask is None else opened & mask
            some = opened.any(-1, keepdim=True)
        return attend(q, k, v, opened | ~some, bias).masked_fill(~some, 0)

    def _level(self) -> float:
        """The threshold before the sigmoid."""
        return log(self.threshold / (1 - self.threshold))

    def __getstate__(self) -> dict:
        """Without the penalty of the last forward: it hangs on a graph, which cannot be copied."""
        return {**super().__getstate__(), "penalty": None}


def penalties(model: nn.Module) -> Tensor | None:
    """What the gates of `model` add to the loss of the last forward, and forgets it; None where no Gated has a `sparsity`."""
    gates = [module for module in model.modules() if isinstance(module, Gated) and module.penalty is not None]
    total = sum(gate.penalty for gate in gates) if gates else None
    for gate in gates:
        gate.penalty = None
    return total


class _StraightThrough(torch.autograd.Function):
    """The first, with the gradient of the second."""

    @staticmethod
    def forward(ctx, hard: Tensor, soft: Tensor) -> Tensor:
        return hard.view_as(hard)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the visible pairs."""
    if mask is None:
        return values.mean()
    seen = mask.expand_as(values)
    return values.masked_fill(~seen, 0).sum() / seen.sum()
