"""The one scaled dot-product attention: a function and a module. Its weights are read by recorder.py.

    out = softmax(q k^T / sqrt(d) + bias, over the keys the mask allows) v

Source: Vaswani et al. 2017, eq. 1. `mask` is bool and True means "may attend"; `bias` is finite and added to the score.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core.recorder import recorder
from zoo.core.scale import xavier_


def kernel(q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None) -> str:
    """Which implementation runs: "fused" (torch's SDPA, scores never stored) or "plain" (scores written out).

    Measured on CPU: the fused backward loses to plain products up to 128 keys in fp32 and about 2,000 in bf16. A mask
    that differs between windows would have to be copied for every item of the batch before SDPA takes it.
    """
    keys, needs_grad = k.shape[-2], torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    if torch.compiler.is_compiling():
        return "plain" if isinstance(keys, int) and keys <= 128 else "fused"  # no branch on an unknown length
    if mask is not None and mask.ndim >= 4 and mask.shape[-4] > 1 and q.ndim > 4 and keys <= 256:
        return "plain"
    if bias is not None and bias.requires_grad and torch.is_grad_enabled() and keys <= 2048:
        return "plain"  # SDPA would fall back to its own slower written-out path without a word
    if needs_grad and q.device.type == "cpu":
        half = q.dtype != torch.float32 or torch.is_autocast_enabled("cpu")
        return "plain" if keys <= (2048 if half else 128) else "fused"
    return "fused"


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Attention where every query has at least one allowed key and padding is finite (the caller's promise).

    q (... h n d), k and v (... h m d), mask and bias broadcastable to (... h n m). Returns (... h n d).
    """
    if recorder() is None and kernel(q, k, mask, bias) == "fused":
        return _fused(q, k, v, mask, bias)
    weights = weigh(q, k, mask, bias)
    return einsum(weights.to(v.dtype), v, "... n m, ... m d -> ... n d")


def weigh(q: Tensor, k: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """The attention weights (... h n m), at least float32, written out and recorded. Arguments and promise as of `attend`."""
    weights = scores(q, k, mask, bias).softmax(-1)
    if (open_recorder := recorder()) is not None:
        open_recorder.add(weights)
    return weights


def scores(q: Tensor, k: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """What the softmax is taken of (... h n m), at least float32: -inf where the mask closes. Arguments as of `attend`."""
    score = einsum(q * q.shape[-1] ** -0.5, k, "... n d, ... m d -> ... n m")
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    if bias is not None:
        score = score + bias
    return score if mask is None else score.masked_fill(~mask, float("-inf"))


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """SDPA takes one tensor for mask and bias, and 4 axes: leading axes are folded into the batch."""
    term = mask
    if bias is not None:
        term = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    lead = q.shape[:-3]
    if term is not None:
        term = term[(None,) * (q.ndim - term.ndim)]
    if q.ndim == 4 and not torch.compiler.is_compiling():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=term)
    if term is not None:
        whole = any(isinstance(size, torch.SymInt) or size != 1 for size in term.shape[:-3])
        whole = whole or torch.compiler.is_compiling()  # else a trace would tell a batch of 1 apart
        term = term.expand(*lead, *term.shape[-3:]).flatten(0, -4) if whole else term.reshape(1, *term.shape[-3:])
    q, k, v = (t.reshape(-1, *t.shape[-3:]) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=term).unflatten(0, lead)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None,
              method: Callable = attend) -> Tensor:
    """Multi-head scaled dot-product attention, or another `method` of the same arguments as `attend`.

    q (b h n d), k and v (b h m d); `mask` bool and `bias` float, both broadcastable to (b h n m). Returns (b h n d).
    A query without any allowed key gives 0. Keys that no query may see may hold anything, NaN included.
    Raises ValueError when the shapes do not fit. Source: Vaswani et al. 2017.
    """
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or q.shape[-3] != k.shape[-3]:
        raise ValueError(f"attention: q (b h n d), k, v (b h m d) do not fit: {[*q.shape]}, {[*k.shape]}, {[*v.shape]}")
    if mask is None:
        return method(q, k, v, None, bias)
    if mask.dtype != torch.bool:
        raise ValueError(f"attention: mask must be bool (True = may attend), got {mask.dtype}")
    mask = mask[(None,) * (q.ndim - mask.ndim)]
    full = (*torch.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
    if len(mask.shape) != len(full) or any(m not in (n, 1) for m, n in zip(mask.shape, full)):
        raise ValueError(f"attention: mask {[*mask.shape]} does not broadcast to (b h n m) = {[*full]}")
    used, open_row = mask.any(-2).unsqueeze(-1), mask.any(-1, keepdim=True)
    k, v = k.masked_fill(~used, 0), v.masked_fill(~used, 0)
    q = q.masked_fill(~open_row, 0)
    return method(q, k, v, mask | ~open_row, bias).masked_fill(~open_row, 0)


class Attention(nn.Module):
    """Multi-head attention with projections: self (`context` None) or cross.

    x (b *axes dim), context (b m context_dim) -> (b *axes dim). `pattern` says who sees whom among the tokens of x
    (None: everybody; else see patterns.py); `position` is a module that gives the term added to the score (bias.py, shaw.py).
    `method` is what is done with q, k, v, mask and bias (None: `attend`; Chunked, LinearAttention, Gated); `temperature` a module
    that scales q (scale.py); `gain` that of the Xavier start of q and k (None: torch's own start of a linear layer). In words
    that a recipe can hold: forms.py.
    `mask` marks real tokens: (b *axes) for self-attention, (b m) of the context for cross-attention; `keys_values` of a context
    may take its place. With an `order` (order.py, packed.py) x is its rows (rows dim), and so is the output.
    Raises ValueError when dim is not divisible by heads, or the pattern has limits for another number of heads.
    """

    recorded = True

    def __init__(
        self,
        dim: int,
        heads: int,
        context_dim: int | None = None,
        pattern=None,
        position: nn.Module | None = None,
        method: Callable | None = None,
        temperature: nn.Module | None = None,
        gain: float | None = None,
    ):
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"Attention: dim must be a multiple of heads, got dim={dim}, heads={heads}")
        if getattr(pattern, "heads", 1) not in (1, heads):
            raise ValueError(f"Attention: heads={heads}, but {pattern} has limits for {pattern.heads} heads")
        self.heads, self.pattern, self.position = heads, pattern, position
        self.method, self.temperature, self.gain = attend if method is None else method, temperature, gain
        if context_dim is None:
            self.qkv = nn.Linear(dim, 3 * dim)
        else:
            self.q, self.kv = nn.Linear(dim, dim), nn.Linear(context_dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.start()

    def start(self) -> None:
        """The Xavier start of q and k, where there is a `gain`. A model that starts all linear layers its way calls it again."""
        if self.gain is not None:
            for linear, rows in self._query_and_key(self.proj.in_features):
                xavier_(linear, rows, self.gain)

    def forward(self, x: Tensor, context: Tensor | tuple | None = None, mask: Tensor | None = None, order=None) -> Tensor:
        if order is not None:
            return self.proj(order.look(self._look, self.qkv(x), self.heads, self.position))
        if context is not None:
            return self.proj(self._merge(self._cross(x, context, mask)))
        x = blank(x, mask)
        if self.pattern is None:
            q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
            look = partial(self._look, lambda position: position(x.shape[1:-1]))
            return self.proj(self._merge(attention(q, k, v, _keys(mask), None, look)))
        layout = self.pattern.layout(x.shape[1:-1])
        q, k, v = rearrange(self.qkv(layout.cut(x)), "b w n (three h d) -> three b w n h d", three=3, h=self.heads)
        q, k, v = q.transpose(2, 3), layout.keys(k), layout.keys(v)
        if hasattr(self.method, "within") and self.position is None:  # it wants the rule rather than its mask
            out = self.method.within(layout, self._scaled(q), k, v, mask)
        else:
            out = self._look(layout.bias, q, k, v, layout.mask(mask, x.device))
        return self.proj(layout.join(self._merge(out)))

    def keys_values(self, context: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values (b h m d) of a context: `forward` takes them in its place, where several ask the same one."""
        k, v = rearrange(self.kv(blank(context, mask)), "b m (two h d) -> two b h m d", two=2, h=self.heads)
        return k, v

    def _cross(self, x: Tensor, context: Tensor | tuple, mask: Tensor | None) -> Tensor:
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=self.heads)
        if not isinstance(context, tuple) and self._few(x, context):
            return self._unprojected(q, context, mask)
        k, v = context if isinstance(context, tuple) else self.keys_values(context, mask)
        if q.shape[0] != k.shape[0]:  # one for all
            q, k, v = (t.expand(max(q.shape[0], k.shape[0]), *t.shape[1:]) for t in (q, k, v))
        return attention(self._scaled(q), k, v, _keys(mask), None, self.method)

    def _few(self, x: Tensor, context: Tensor) -> bool:
        """Whether so few queries ask that projecting the whole context for them costs more than `_unprojected`."""
        plain = self.method is attend and self.temperature is None and type(self.kv) is nn.Linear  # no adapter in its place
        if not plain or torch.compiler.is_compiling() or recorder() is not None:
            return False
        return x.shape[1] < context.shape[1] and 4 * self.heads * x.shape[1] <= self.proj.in_features

    def _unprojected(self, q: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        """q (W_k c + b_k) = (q W_k) c + the same for every key; mean(W_v c + b_v) = W_v mean(c) + b_v: the heads ask the context
        itself, all in one product. q (b h n d), context (b m c) -> (b h n d)."""
        b, h = max(q.shape[0], context.shape[0]), self.heads
        keys, values = rearrange(self.kv.weight, "(two h d) c -> two h d c", two=2, h=h)
        shift = rearrange(self.kv.bias.chunk(2)[1], "(h d) -> h 1 d", h=h)
        wider = (context.shape[-1] / q.shape[-1]) ** 0.5  # `attend` scales by the width that it sees
        q = rearrange(einsum(q, keys, "b h n d, h d c -> b h n c") * wider, "b h n c -> b 1 (h n) c").expand(b, -1, -1, -1)
        c = blank(context, mask).unsqueeze(1).to(q.dtype).expand(b, -1, -1, -1)
        found = rearrange(attention(q, c, c, _keys(mask)), "b 1 (h n) c -> b h n c", h=h)
        out = einsum(found, values, "b h n c, h d c -> b h n d") + shift
        return out if mask is None else out.masked_fill(~rearrange(mask.any(-1), "b -> b 1 1 1"), 0)

    def _look(self, place: Callable, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, _bias: None = None) -> Tensor:
        """`place` asks a position for the sizes, and cuts out the queries and keys, that are those of q and k (Layout.bias)."""
        q = self._scaled(q)
        if self.position is None:
            return self.method(q, k, v, mask, None)
        return self.position.look(self.method, place, q, k, v, mask)

    def _scaled(self, q: Tensor) -> Tensor:
        return q if self.temperature is None else self.temperature(q)

    def _query_and_key(self, dim: int) -> list[tuple[nn.Linear, slice]]:
        """Where the two projections lie: rows of a linear layer."""
        if hasattr(self, "qkv"):
            return [(self.qkv, slice(dim)), (self.qkv, slice(dim, 2 * dim))]
        return [(self.q, slice(dim)), (self.kv, slice(dim))]

    def _merge(self, out: Tensor) -> Tensor:
        return rearrange(out, "... h n d -> ... n (h d)")


def blank(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (b *axes c) with 0 where `mask` (b *axes) marks no real token, so that no value in padding can travel.

    Raises ValueError where the mask is not bool or does not have the shape of the tokens.
    """
    if mask is None:
        return x
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be bool (True = real token), got {mask.dtype}")
    if mask.shape != x.shape[:-1]:
        raise ValueError(f"mask {[*mask.shape]} must have the shape of the tokens it marks, {[*x.shape[:-1]]}")
    return x.masked_fill(~mask.unsqueeze(-1), 0)


def _keys(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else rearrange(mask, "b m -> b 1 1 m")
