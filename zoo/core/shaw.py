"""Relative position as Shaw et al. have it: a vector per offset, added to the keys and, if wanted, to the values."""

from math import prod

import torch
from einops import einsum
from torch import Tensor, nn

from zoo.core.attention import attend, weigh
from zoo.core.bias import Position, each_limit, offsets


class ShawPosition(Position):
    """score_ij = q_i (k_j + a_r) / sqrt(d), out_i = sum_j w_ij (v_j + b_r), r = clip(i - j, -limit, limit).

    `limit`: an integer (one axis, also that of Axial) or one an axis, each offset clipped by itself. a and b (heads
    prod(2 limit + 1) head_dim) are learned per head; `values`: with b. For every pattern; the term is as large as the scores
    that the pattern computes, so a band stays linear. Raises ValueError where a limit is < 0, and where `values` meets a method
    that does not write out its weights.
    Source: Shaw et al. 2018, eq. 1-5; q_i a_r is computed once per offset and gathered.
    """

    def __init__(self, limit: int | tuple[int, ...], heads: int, head_dim: int, values: bool = False):
        super().__init__()
        self.limit = each_limit("ShawPosition", limit)
        rows = prod(2 * n + 1 for n in self.limit)
        self.keys = nn.Parameter(torch.empty(heads, rows, head_dim))
        self.values = nn.Parameter(torch.empty(heads, rows, head_dim)) if values else None
        for table in self.parameters():
            nn.init.trunc_normal_(table, std=0.02)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        """Row of the tables for each pair of n = prod(size) tokens -> (1 n n)."""
        return offsets(self.limit, tuple(size), self.keys.device).view(1, prod(size), prod(size))

    def reversed(self, n: int) -> Tensor:
        """The same of one axis for keys in reverse order."""
        return self((n,)).flip(-1)

    def look(self, method, place, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        asked = einsum(q * q.shape[-1] ** -0.5, self.keys, "... h n d, h r d -> ... h n r")
        row = place(self).expand(*asked.shape[:-1], k.shape[-2])
        bias = asked.gather(-1, row)
        if self.values is None:
            return method(q, k, v, mask, bias)
        weights_of = weigh if method is attend else getattr(method, "weigh", None)
        if weights_of is None:
            raise ValueError(f"ShawPosition: values=True needs the weights, method={method} has none at hand; use method=None")
        weights = weights_of(q, k, mask, bias)
        total = torch.zeros_like(asked, dtype=weights.dtype).scatter_add(-1, row, weights)  # weight of each offset
        out = einsum(weights.to(v.dtype), v, "... n m, ... m d -> ... n d")
        return out + einsum(total.to(v.dtype), self.values.to(v.dtype), "... h n r, h r d -> ... h n d")
