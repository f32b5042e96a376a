"""Terms added to the score: relative position over N axes."""

from math import prod

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.core.cache import cached


class RelativePosition(nn.Module):
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


@cached
def offsets(window: tuple[int, ...], size: tuple[int, ...], device: torch.device) -> Tensor:
    """Rows of the table, flattened (n n), for tokens of a window of `size` in row-major order."""
    grid = torch.stack(torch.meshgrid(*[torch.arange(n) for n in size], indexing="ij"), -1).flatten(0, -2)
    index = torch.zeros(len(grid), len(grid), dtype=torch.long)
    for axis, w in enumerate(window):
        index = index * (2 * w - 1) + grid[:, None, axis] - grid[None, :, axis] + w - 1
    return index.flatten().to(device)
