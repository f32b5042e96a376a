"""What surrounds attention: pre-norm blocks, merging of neighbouring tokens, masked pooling."""

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.core.attention import Attention, blank
from zoo.core.fused import linear_add, linear_gelu
from zoo.core.patterns import pad_to_multiple


class FeedForward(nn.Module):
    """fc2(gelu(fc1(x))): (... dim) -> (... dim), added to `residual` (... dim) where there is one."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = linear_gelu(self.fc1, x)
        return self.fc2(x) if residual is None else linear_add(self.fc2, x, residual)


class Block(nn.Module):
    """Pre-norm transformer block: x = x + attn(norm1(x)); x = x + mlp(norm2(x)). Source: Xiong et al. 2020.

    x (b *axes dim); `mask` (b *axes) marks real tokens, padding may hold anything. `drop_path` skips a branch of an
    item at training. With an `order` (order.py, packed.py) x is its rows (rows dim).
    """

    def __init__(self, attn: Attention, dim: int, mlp_ratio: float = 4.0, drop_path: float = 0.0, eps: float = 1e-5):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps), attn
        self.norm2, self.mlp = nn.LayerNorm(dim, eps), FeedForward(dim, int(dim * mlp_ratio))
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor, mask: Tensor | None = None, order=None) -> Tensor:
        x = blank(x, mask)  # also for the gradient of the norms: 0 * NaN is NaN
        if not self.training:
            x = x + self.attn(self.norm1(x), mask=mask, order=order)
            return self.mlp(self.norm2(x), x)
        x = x + self.drop_path(self.attn(self.norm1(x), mask=mask, order=order), order)
        return x + self.drop_path(self.mlp(self.norm2(x)), order)


class PostNormBlock(Block):
    """x = norm1(x + attn(x)); x = norm2(x + mlp(x)). Only for imported weights (BERT). Source: Devlin et al. 2019."""

    def forward(self, x: Tensor, mask: Tensor | None = None, order=None) -> Tensor:
        x = blank(x, mask)
        x = self.norm1(x + self.drop_path(self.attn(x, mask=mask, order=order), order))
        if not self.training:
            return self.norm2(self.mlp(x, x))
        return self.norm2(x + self.drop_path(self.mlp(x), order))


class CrossBlock(nn.Module):
    """Pre-norm: self-attention where wanted, cross-attention to `context`, feed-forward.

    x (b n dim), context (b m context_dim), mask (b m) of the context, own_mask (b n) of x -> (b n dim). The three steps can be
    taken one by one, to keep what does not change: ask(look(x, own_mask), keys_values(context, mask), mask).
    x or context may be one (b = 1) for all of the other.
    """

    def __init__(self, dim: int, heads: int, context_dim: int, mlp_ratio: float = 4.0, self_attention: bool = False,
                 eps: float = 1e-5):
        super().__init__()
        self.self_attn = None
        if self_attention:  # as cross-attention of x to itself: then some rows of x can ask alone
            self.norm_self, self.self_attn = nn.LayerNorm(dim, eps), Attention(dim, heads, context_dim=dim)
        self.norm1, self.norm_context = nn.LayerNorm(dim, eps), nn.LayerNorm(context_dim, eps)
        self.attn = Attention(dim, heads, context_dim=context_dim)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps), FeedForward(dim, int(dim * mlp_ratio))

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None, own_mask: Tensor | None = None) -> Tensor:
        return self.ask(self.look(x, own_mask), self.context(context, mask), mask)

    def look(self, x: Tensor, mask: Tensor | None = None, rows: int | None = None) -> Tensor:
        """Self-attention, or x itself: (b n dim) -> the first `rows` (None: all) of (b n dim)."""
        if self.self_attn is None:
            return x[:, :rows]
        normed = self.norm_self(blank(x, mask))
        return x[:, :rows] + self.self_attn(normed[:, :rows], normed, mask)

    def context(self, context: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b m context_dim) as the cross-attention takes it."""
        return self.norm_context(blank(context, mask))

    def keys_values(self, context: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(b m context_dim) -> keys and values (b heads m d) of the cross-attention, to be kept: `ask` takes them too."""
        return self.attn.keys_values(self.context(context, mask), mask)

    def ask(self, x: Tensor, context: Tensor | tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """Cross-attention to what `context` or `keys_values` gave, and feed-forward."""
        x = x + self.attn(self.norm1(x), context, mask)
        return x + self.mlp(self.norm2(x))


class PostNormCrossBlock(CrossBlock):
    """The same with the norm after each step, and the context as it is. Only for imported weights (BLIP, Li et al. 2022)."""

    def __init__(self, dim: int, heads: int, context_dim: int, mlp_ratio: float = 4.0, self_attention: bool = False,
                 eps: float = 1e-12):
        super().__init__(dim, heads, context_dim, mlp_ratio, self_attention, eps)
        self.norm_context = nn.Identity()

    def look(self, x: Tensor, mask: Tensor | None = None, rows: int | None = None) -> Tensor:
        x = blank(x, mask)
        return x[:, :rows] if self.self_attn is None else self.norm_self(x[:, :rows] + self.self_attn(x[:, :rows], x, mask))

    def ask(self, x: Tensor, context: Tensor | tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attn(x, context, mask))
        return self.norm2(x + self.mlp(x))


class DropPath(nn.Module):
    """Stochastic depth: at training an item's branch is dropped with probability `rate`. Source: Huang et al. 2016."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor, order=None) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = torch.rand(x.shape[0] if order is None else order.items, *[1] * (x.ndim - 1), device=x.device) >= self.rate
        keep = keep if order is None else keep[order.item]
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
    pairs = rearrange(pad_to_multiple(mask.unsqueeze(-1).to(torch.uint8), (2,)), "b (t p) 1 -> b t p", p=2)
    return pairs.amax(-1) > 0  # padding of bools is what torch 2.14 cannot compile


def masked_mean(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over the real tokens: x (b *axes c), mask (b *axes) -> (b c). Without a real token: 0."""
    axes = tuple(range(1, x.ndim - 1))
    if mask is None:
        return x.mean(axes)
    return blank(x, mask).sum(axes) / mask.sum(axes).clamp(min=1).unsqueeze(-1)
