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


class ClippedPosition(Position):
    """bias[head, i, j] = table[clip(i - j, -limit, limit) by axis, head] on a map of any size.

    `limit`: an integer (one axis) or one an axis; farther offsets share a row of the table (prod(2 limit + 1), heads).
    forward(size) -> (heads n n), n = prod(size). Raises ValueError where a limit is < 0 or the map has another number of axes.
    Source: Shaw et al. 2018, eq. 4 (a scalar per head here).
    """

    def __init__(self, limit: int | tuple[int, ...], heads: int):
        super().__init__()
        self.limit = each_limit("ClippedPosition", limit)
        self.table = nn.Parameter(torch.empty(prod(2 * n + 1 for n in self.limit), heads))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        if len(size) == 1 == len(self.limit):
            return self.reversed(*size).flip(-1)
        index = offsets(self.limit, tuple(size), self.table.device)
        return rearrange(self.table.index_select(0, index), "(n m) h -> h n m", n=prod(size))

    def reversed(self, n: int) -> Tensor:
        """Of one axis, for keys in reverse order, a view of 2n - 1 numbers a head: bias[i, n-1-j] = line[i - j + n-1]."""
        offset = torch.arange(2 * n - 1, device=self.table.device) - (n - 1)
        limit, = self.limit
        line = self.table.T.index_select(1, offset.clamp(-limit, limit) + limit)
        return line.as_strided((line.shape[0], n, n), (2 * n - 1, 1, 1))


class RelativePosition(ClippedPosition):
    """bias[head, i, j] = table[offset between i and j, head], one offset per axis, each in -(w-1) .. w-1.

    `window` tokens per axis at most. forward(size) -> (heads n n), n = prod(size), size <= window on each axis, else ValueError.
    The table has Swin's layout (prod(2w-1), heads), so its weights load as they are. Source: Liu et al. 2021, eq. 4.
    """

    def __init__(self, window: tuple[int, ...], heads: int):
        super().__init__(tuple(w - 1 for w in window), heads)
        self.window = tuple(window)

    def forward(self, size: tuple[int, ...]) -> Tensor:
        if len(size) != len(self.window) or any(n > w for n, w in zip(size, self.window)):
            raise ValueError(f"RelativePosition: size {tuple(size)} does not fit into the window {self.window}")
        index = offsets(self.limit, tuple(size), self.table.device)
        return rearrange(self.table.index_select(0, index), "(n m) h -> h n m", n=prod(size))


def each_limit(name: str, limit: int | tuple[int, ...]) -> tuple[int, ...]:
    """One limit an axis. ValueError, with the position's name, where one is < 0."""
    limits = limit if isinstance(limit, tuple) else (limit,)
    if any(n < 0 for n in limits):
        raise ValueError(f"{name}: limit={limit}; allowed: >= 0")
    return limits


@cached
def offsets(limit: tuple[int, ...], size: tuple[int, ...], device: torch.device) -> Tensor:
    """Rows of the table, flattened (n n), for tokens of a map of `size` in row-major order, offsets clipped by axis."""
    if len(size) != len(limit):
        raise ValueError(f"position of {len(limit)} axes on a map of shape {tuple(size)}")
    grid = torch.stack(torch.meshgrid(*[torch.arange(n) for n in size], indexing="ij"), -1).flatten(0, -2)
    index = torch.zeros(grid.shape[0], grid.shape[0], dtype=torch.long)  # len() would fix a length that export does not know
    for axis, most in enumerate(limit):
        gap = (grid[:, None, axis] - grid[None, :, axis]).clamp(-most, most)
        index = index * (2 * most + 1) + gap + most
    return index.flatten().to(device)
