"""Relative position as Shaw et al. have it: a vector per offset, added to the keys and, if wanted, to the values."""

import torch
from einops import einsum
from torch import Tensor, nn

from zoo.core.attention import attend, weigh
from zoo.core.bias import Position


class ShawPosition(Position):
    """score_ij = q_i (k_j + a_r) / sqrt(d), out_i = sum_j w_ij (v_j + b_r), r = clip(i - j, -limit, limit), over one axis.

    a and b (heads 2 limit + 1 head_dim) are learned per head; `values`: with b. For every pattern of one axis, and along the axis
    of Axial; the term is as large as the scores that the pattern computes, so a band stays linear. Raises ValueError where
    limit < 0, and where `values` meets a method that has no softmax weights.
    Source: Shaw et al. 2018, eq. 1-5; q_i a_r is computed once per offset and gathered.
    """

    def __init__(self, limit: int, heads: int, head_dim: int, values: bool = False):
        super().__init__()
        if limit < 0:
            raise ValueError(f"ShawPosition: limit={limit}; allowed: >= 0")
        self.limit = limit
        self.keys = nn.Parameter(torch.empty(heads, 2 * limit + 1, head_dim))
        self.values = nn.Parameter(torch.empty(heads, 2 * limit + 1, head_dim)) if values else None
        for table in self.parameters():
            nn.init.trunc_normal_(table, std=0.02)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        """Row of the tables for each pair of n tokens, size (n,) -> (1 n n)."""
        place = torch.arange(*size, device=self.keys.device)
        return ((place[:, None] - place).clamp(-self.limit, self.limit) + self.limit).unsqueeze(0)

    def reversed(self, n: int) -> Tensor:
        """The same for keys in reverse order."""
        return self((n,)).flip(-1)

    def look(self, method, place, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        asked = einsum(q * q.shape[-1] ** -0.5, self.keys, "... h n d, h r d -> ... h n r")
        row = place(self).expand(*asked.shape[:-1], k.shape[-2])
        bias = asked.gather(-1, row)
        if self.values is None:
            return method(q, k, v, mask, bias)
        if method is not attend:
            raise ValueError(f"ShawPosition: values=True needs the softmax weights, method={method} has none; use method=None")
        weights = weigh(q, k, mask, bias)
        total = torch.zeros_like(asked, dtype=weights.dtype).scatter_add(-1, row, weights)  # weight of each offset
        out = einsum(weights.to(v.dtype), v, "... n m, ... m d -> ... n d")
        return out + einsum(total.to(v.dtype), self.values.to(v.dtype), "... h n r, h r d -> ... h n d")
