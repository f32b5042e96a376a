"""Terms added to the score: relative position over N axes, or over one axis of any length."""

from math import prod

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.core.cache import cached


class Position(nn.Module):
    """What Attention asks of a position: forward(size) -> (heads n n), a term for all pairs of a window of `size` tokens.

    `look` does the rest with it: `method` (as attend) of q (... h n d) and k, v (... h m d), where `place` asks this module for
    the sizes that it needs and cuts out the n queries and m keys. ShawPosition looks in its own way.
    """

    def look(self, method, place, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return method(q, k, v, mask, place(self))


class RelativePosition(Position):
    """bias[head, i, j] = table[offset between i and j, head], one offset per axis, each in -(w-1) .. w-1.

    `window` tokens per axis at most. forward(size) -> (heads n n), n = prod(size), size <= window on each axis.
    The table has Swin's layout (prod(2w-1), heads), so its weights load as they are. Source: Liu et al. 2021, eq. 4.
    """

    def __init__(self, window: tuple[int, ...], heads: int):
        super().__init__()
        self.window = tuple(window)
        self.table = nn.Parameter(torch.empty(prod(2 * w - 1 for w in window), heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        if len(size) != len(self.window) or any(n > w for n, w in zip(size, self.window)):
            raise ValueError(f"RelativePosition: size {tuple(size)} does not fit into the window {self.window}")
        index = offsets(self.window, tuple(size), self.table.device)
        n = prod(size)
        return rearrange(self.table.index_select(0, index), "(n m) h -> h n m", n=n)


class ClippedPosition(Position):
    """bias[head, i, j] = table[clip(i - j, -limit, limit) + limit, head] over one axis of any length.

    forward((n,)) -> (heads n n). Raises ValueError where limit < 0. Source: Shaw et al. 2018, eq. 4 (a scalar per head here).
    """

    def __init__(self, limit: int, heads: int):
        super().__init__()
        if limit < 0:
            raise ValueError(f"ClippedPosition: limit={limit}; allowed: >= 0")
        self.limit = limit
        self.table = nn.Parameter(torch.empty(2 * limit + 1, heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        return self.reversed(*size).flip(-1)

    def reversed(self, n: int) -> Tensor:
        """The same for keys in reverse order, a view of 2n - 1 numbers a head: bias[i, n-1-j] = line[i - j + n-1]."""
        offset = torch.arange(2 * n - 1, device=self.table.device) - (n - 1)
        line = self.table.T.index_select(1, offset.clamp(-self.limit, self.limit) + self.limit)
        return line.as_strided((line.shape[0], n, n), (2 * n - 1, 1, 1))


@cached
def offsets(window: tuple[int, ...], size: tuple[int, ...], device: torch.device) -> Tensor:
    """Rows of the table, flattened (n n), for tokens of a window of `size` in row-major order."""
    grid = torch.stack(torch.meshgrid(*[torch.arange(n) for n in size], indexing="ij"), -1).flatten(0, -2)
    index = torch.zeros(len(grid), len(grid), dtype=torch.long)
    for axis, w in enumerate(window):
        index = index * (2 * w - 1) + grid[:, None, axis] - grid[None, :, axis] + w - 1
    return index.flatten().to(device)
