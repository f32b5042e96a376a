"""Swin v2's two changes of the score (Liu et al. 2022): a cosine in place of the product, and a position of any window.

    score_ij = cos(q_i, k_j) / tau_h + 16 sigmoid(mlp(log-spaced offset between i and j))_h
"""

from math import log, prod

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core.attention import attend
from zoo.core.bias import Position, offsets
from zoo.core.cache import cached

HIDDEN = 512  # of the small network
SPAN = 8.0  # an offset of the whole window before its logarithm is taken: eq. 4 in the authors' code
LARGEST = log(100)  # of the logarithm of 1 / tau


class ContinuousPosition(Position):
    """bias[head, i, j] = 16 sigmoid(mlp(c))_head, c = sign(o) log2(1 + |o|) / 3, o = 8 offset / (trained - 1) on each axis.

    `trained`: tokens per axis of the window that the network has seen; forward(size) -> (heads n n) takes any size, n =
    prod(size). Raises ValueError where a side is < 1 or the map has another number of axes. Source: Liu et al. 2022, eq. 3, 4.
    """

    def __init__(self, trained: tuple[int, ...], heads: int):
        super().__init__()
        if any(side < 1 for side in trained):
            raise ValueError(f"ContinuousPosition: trained={trained}; allowed: >= 1 on each axis")
        self.trained = tuple(trained)
        self.mlp = nn.Sequential(nn.Linear(len(trained), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, heads, bias=False))

    def forward(self, size: tuple[int, ...]) -> Tensor:
        size, device = tuple(size), self.mlp[0].weight.device
        rows = offsets(tuple(n - 1 for n in size), size, device)
        if len(size) != len(self.trained):
            raise ValueError(f"position of {len(self.trained)} axes on a map of shape {size}")
        table = 16 * self.mlp(_coordinates(size, self.trained, device).to(self.mlp[0].weight.dtype)).sigmoid()
        return rearrange(table.index_select(0, rows), "(n m) h -> h n m", n=prod(size))


@cached
def _coordinates(size: tuple[int, ...], trained: tuple[int, ...], device: torch.device) -> Tensor:
    """c (rows axes) of every offset between tokens of a map of `size`, in the order of `offsets`."""
    axes = [SPAN * torch.arange(1 - n, n) / max(t - 1, 1) for n, t in zip(size, trained)]
    scaled = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)
    return (scaled.sign() * scaled.abs().add(1).log2() / log(SPAN, 2)).to(device)


class Cosine(nn.Module):
    """A method of Attention: softmax(cos(q_i, k_j) / tau_h + bias_ij), 1 / tau at most 100, a number a head, 10 at the start.

    Source: Liu et al. 2022, eq. 2.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((heads,), log(10.0)))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        scale = rearrange(self.log_scale.clamp(max=LARGEST).exp(), "h -> h 1 1") * q.shape[-1] ** 0.5  # `attend` divides by it
        return attend(F.normalize(q, dim=-1) * scale.to(q.dtype), F.normalize(k, dim=-1), v, mask, bias)


class KeylessBias(nn.Linear):
    """Queries, keys and values of one vector, where keys have no bias: that part of it is never read."""

    def __init__(self, dim: int):
        super().__init__(dim, 3 * dim)
        kept = torch.ones(3, dim)
        kept[1] = 0
        self.register_buffer("kept", kept.flatten(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias * self.kept)
