"""A plain vision transformer (Dosovitskiy et al. 2021): patches and a leading token, all see all."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.core import Attention, Block
from zoo.core.patterns import pad_to_multiple


class ViT(nn.Module):
    """x (b in_chans height width), any height and width >= 1 -> tokens (b 1 + rows * cols dim), normed; the first leads.

    Arguments: size (pixels per side that the positions were learnt for; others are resized, bicubic), patch, dim, depth, heads,
    hidden (width of the feed-forward), in_chans, eps (of every LayerNorm). ValueError names a wrong one.
    """

    def __init__(self, size: int = 224, patch: int = 16, dim: int = 192, depth: int = 12, heads: int = 3, hidden: int = 768,
                 in_chans: int = 3, eps: float = 1e-5):
        super().__init__()
        _check(heads, eps, size=size, patch=patch, dim=dim, depth=depth, hidden=hidden, in_chans=in_chans)
        self.num_features, self.patch, self.side = dim, patch, size // patch
        self.grad_checkpointing = False
        self.proj = nn.Conv2d(in_chans, dim, patch, patch)
        self.first = nn.Parameter(0.02 * torch.randn(dim))
        self.position = nn.Parameter(0.02 * torch.randn(1 + self.side**2, dim))
        ratio = (hidden + 0.5) / dim  # the block rounds down
        self.blocks = nn.ModuleList(Block(Attention(dim, heads), dim, ratio, eps=eps) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)

    def forward_features(self, x: Tensor) -> Tensor:
        x = pad_to_multiple(rearrange(x, "b c h w -> b h w c"), (self.patch, self.patch))
        x = rearrange(self.proj(rearrange(x, "b h w c -> b c h w")), "b c row col -> b row col c")
        positions = self.positions(*x.shape[1:3])
        x = torch.cat([self.first.expand(len(x), 1, -1), x.flatten(1, 2)], 1) + positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.grad_checkpointing and self.training else block(x)
        return self.norm(x)

    def grid(self, x: Tensor) -> tuple[int, int]:
        """Rows and columns of patches of a picture."""
        return tuple((n + self.patch - 1) // self.patch for n in x.shape[-2:])

    def positions(self, rows: int, cols: int) -> Tensor:
        """(1 + rows * cols dim): as learnt, or the grid resized."""
        if rows == cols == self.side:
            return self.position
        grid = rearrange(self.position[1:], "(row col) c -> 1 c row col", row=self.side)
        grid = F.interpolate(grid, (rows, cols), mode="bicubic", align_corners=False)
        return torch.cat([self.position[:1], rearrange(grid, "1 c row col -> (row col) c")])

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Names of what is added to the tokens."""
        return {"first", "position"}


def _check(heads: int, eps: float, **at_least_one: int) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"ViT: {name}={value!r}; allowed: {allowed}")

    for name, value in {**at_least_one, "heads": heads}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
    if at_least_one["dim"] % heads:
        refuse("heads", heads, f"a divisor of dim={at_least_one['dim']}")
    if at_least_one["size"] < at_least_one["patch"]:
        refuse("size", at_least_one["size"], f">= patch={at_least_one['patch']}")
    if not 0 < eps < 1:
        refuse("eps", eps, "0 < eps < 1")
