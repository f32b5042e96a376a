"""What surrounds attention: pre-norm block, merging of neighbouring tokens, masked pooling."""

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.core.attention import Attention, blank
from zoo.core.patterns import pad_to_multiple


class FeedForward(nn.Module):
    """fc2(gelu(fc1(x))): (... dim) -> (... dim)."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm transformer block: x = x + attn(norm1(x)); x = x + mlp(norm2(x)). Source: Xiong et al. 2020.

    x (b *axes dim); `mask` (b *axes) marks real tokens, padding may hold anything. `drop_path` skips a branch of an
    item at training.
    """

    def __init__(self, attn: Attention, dim: int, mlp_ratio: float = 4.0, drop_path: float = 0.0, eps: float = 1e-5):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps), attn
        self.norm2, self.mlp = nn.LayerNorm(dim, eps), FeedForward(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = blank(x, mask)  # also for the gradient of the norms: 0 * NaN is NaN
        x = x + self.drop_path(self.attn(self.norm1(x), mask=mask))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PostNormBlock(Block):
    """x = norm1(x + attn(x)); x = norm2(x + mlp(x)). Only for imported weights (BERT). Source: Devlin et al. 2019."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = blank(x, mask)
        x = self.norm1(x + self.drop_path(self.attn(x, mask=mask)))
        return self.norm2(x + self.drop_path(self.mlp(x)))


class CrossBlock(nn.Module):
    """Pre-norm cross-attention and feed-forward: x asks `context`.

    x (b n dim), context (b m context_dim), mask (b m) of the context -> (b n dim).
    """

    def __init__(self, dim: int, heads: int, context_dim: int, mlp_ratio: float = 4.0):
        super().__init__()
        self.norm1, self.norm_context = nn.LayerNorm(dim), nn.LayerNorm(context_dim)
        self.attn = Attention(dim, heads, context_dim=context_dim)
        self.norm2, self.mlp = nn.LayerNorm(dim), FeedForward(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), self.norm_context(blank(context, mask)), mask)
        return x + self.mlp(self.norm2(x))


class DropPath(nn.Module):
    """Stochastic depth: at training an item's branch is dropped with probability `rate`. Source: Huang et al. 2016."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0], *[1] * (x.ndim - 1), device=x.device) >= self.rate
        return x * keep.to(x.dtype) / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


class Merge(nn.Module):
    """Neighbouring tokens become one, 2 per axis: concatenated, normed, projected. Odd maps are padded with 0.

    (b h w dim) -> (b ceil(h/2) ceil(w/2) out), or with one axis (b t dim) -> (b ceil(t/2) out).
    The order inside a merged token is Swin's: column outside, row inside. Source: Liu et al. 2021, sec. 3.1.
    `mask` (b *axes) marks real tokens: the others count as 0. The mask of the merged tokens: merge_mask.
    """

    def __init__(self, dim: int, out: int, axes: int = 2):
        super().__init__()
        self.norm = nn.LayerNorm(2**axes * dim)
        self.reduction = nn.Linear(2**axes * dim, out, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = pad_to_multiple(blank(x, mask), (2,) * (x.ndim - 2))
        if x.ndim == 3:
            x = rearrange(x, "b (t p) c -> b t (p c)", p=2)
        else:
            x = rearrange(x, "b (h p) (w q) c -> b h w (q p c)", p=2, q=2)
        return self.reduction(self.norm(x))


def merge_mask(mask: Tensor | None) -> Tensor | None:
    """The mask that goes with Merge over one axis, (b t) -> (b ceil(t/2)): a merged token is real if any part is."""
    if mask is None:
        return None
    return rearrange(pad_to_multiple(mask.unsqueeze(-1), (2,)), "b (t p) 1 -> b t p", p=2).any(-1)


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the real tokens: x (b *axes c), mask (b *axes) -> (b c). Without a real token: 0."""
    axes = tuple(range(1, x.ndim - 1))
    if mask is None:
        return x.mean(axes)
    return blank(x, mask).sum(axes) / mask.sum(axes).clamp(min=1).unsqueeze(-1)
