"""The one scaled dot-product attention: a function, a module, and the recorder that reads its weights.

    out = softmax(q k^T / sqrt(d) + bias, over the keys the mask allows) v

Source: Vaswani et al. 2017, eq. 1. `mask` is bool and True means "may attend"; `bias` is finite and added to the score.
"""

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core.scale import xavier_

_recorder: ContextVar["Recorder | None"] = ContextVar("zoo_recorder", default=None)


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
    scores = einsum(q * q.shape[-1] ** -0.5, k, "... n d, ... m d -> ... n m")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    if (open_recorder := recorder()) is not None:
        open_recorder.add(weights)
    return weights


def recorder() -> "Recorder | None":
    """The recorder that is open in this thread; None inside a trace."""
    return None if torch.compiler.is_compiling() else _recorder.get()


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """SDPA takes one tensor for mask and bias, and 4 axes: leading axes are folded into the batch."""
    term = mask
    if bias is not None:
        term = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    lead = q.shape[:-3]
    if term is not None:
        term = term[(None,) * (q.ndim - term.ndim)]
        whole = any(isinstance(size, torch.SymInt) or size != 1 for size in term.shape[:-3])
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
    that scales q (scale.py); `gain` that of the Xavier start of q and k (None: torch's own start of a linear layer).
    `mask` marks real tokens: (b *axes) for self-attention, (b m) of the context for cross-attention.
    Raises ValueError when dim is not divisible by heads, or the pattern has limits for another number of heads.
    """

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
        self.method, self.temperature = attend if method is None else method, temperature
        if context_dim is None:
            self.qkv = nn.Linear(dim, 3 * dim)
        else:
            self.q, self.kv = nn.Linear(dim, dim), nn.Linear(context_dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        if gain is not None:
            for linear, rows in self._query_and_key(dim):
                xavier_(linear, rows, gain)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if context is not None:
            return self.proj(self._merge(self._cross(x, context, mask)))
        x = blank(x, mask)
        if self.pattern is None:
            q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
            look = partial(self._look, lambda position: position(x.shape[1:-1]))
            return self.proj(self._merge(attention(q, k, v, _keys(mask), None, look)))
        layout = self.pattern.layout(x.shape[1:-1])
        q, k, v = rearrange(self.qkv(layout.cut(x)), "b w n (three h d) -> three b w n h d", three=3, h=self.heads)
        out = self._look(layout.bias, q.transpose(2, 3), layout.keys(k), layout.keys(v), layout.mask(mask, x.device))
        return self.proj(layout.join(self._merge(out)))

    def _cross(self, x: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        q = rearrange(self.q(x), "b n (h d) -> b h n d", h=self.heads)
        k, v = rearrange(self.kv(blank(context, mask)), "b m (two h d) -> two b h m d", two=2, h=self.heads)
        return attention(self._scaled(q), k, v, _keys(mask), None, self.method)

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


class Recorder:
    """Keeps the attention weights of every Attention of `model` while the `with` block runs.

        with Recorder(model) as record:
            logits = model(x)
        record.maps["stages.0.blocks.0.attn"]   # (b h n m), or (b w h n n) for windows

    Only the thread that opened it is recorded. The written-out path runs, so the logits are the same to rounding.
    `closed` holds, by the same names, the share of pairs that a Gated method closed.
    """

    def __init__(self, model: nn.Module):
        self.names = {id(module): name for name, module in model.named_modules() if isinstance(module, Attention)}
        self.model, self.maps, self.closed, self._hooks, self._current = model, {}, {}, [], None

    def __enter__(self) -> "Recorder":
        self._token = _recorder.set(self)
        for module in self.model.modules():
            if isinstance(module, Attention):
                self._hooks.append(module.register_forward_pre_hook(self._enter_module))
                self._hooks.append(module.register_forward_hook(self._leave_module, always_call=True))
        return self

    def __exit__(self, *_) -> None:
        _recorder.reset(self._token)
        for hook in self._hooks:
            hook.remove()

    def _enter_module(self, module: nn.Module, _args) -> None:
        if _recorder.get() is self:
            self._current = self.names[id(module)]

    def _leave_module(self, _module: nn.Module, _args, _output) -> None:
        if _recorder.get() is self:
            self._current = None

    def add(self, weights: Tensor, closed: float | None = None) -> None:
        """Called by `attend`; attention outside of `model` is not kept."""
        if self._current is not None:
            self.maps[self._current] = weights.detach()
            if closed is not None:
                self.closed[self._current] = closed
