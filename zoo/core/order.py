"""Tokens kept in the order of their windows from block to block: a map cut once a stage, not cut and joined by every block.

The rows of a batch lie by class, item, window, token. A class is all windows with the same mask (inner, right, bottom, corner): a
contiguous piece that sees one (n n) mask: a mask for every window would cost what the fused kernel saves. A row moves only
where the next block's windows lie otherwise.

For windows on CPU without ragged edges: padding would be carried through the linear layers. A trace and a recorder take the
map (views are free for a compiler; recorded weights are numbered by window), and so does a GPU (more, smaller kernels).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from weakref import WeakKeyDictionary

import torch
from einops import rearrange
from torch import Tensor

from zoo.core.attention import attend
from zoo.core.bias import ClippedPosition, RelativePosition
from zoo.core.cache import cached
from zoo.core.patterns import Layout, Windows
from zoo.core.recorder import recorder

FEW = 2**18  # scores: up to here one call with a mask for every window is cheaper than one a class
MOST = 4  # orders whose terms are kept, a position
_terms = WeakKeyDictionary()  # position -> {order and precision: (its table, the terms made of it)}


@dataclass(frozen=True)
class Order:
    """The order of `items` maps cut by `layout`: rows (items * windows * tokens, c)."""

    layout: Layout
    items: int

    def look(self, look: Callable, qkv: Tensor, heads: int, position) -> Tensor:
        """`look(place, q, k, v, mask)` for each piece: qkv (rows, 3 h d) -> (rows, h d).

        `place` as of Position.look; what it gives is computed once for all pieces.
        """
        qkv = rearrange(qkv, "(w n) (three h d) -> three w h n d", three=3, n=self.tokens, h=heads)
        return rearrange(self._pieces(look, qkv, position), "w h n d -> (w n) (h d)")

    def _pieces(self, look: Callable, qkv: Tensor, position) -> Tensor:
        """qkv (three w h n d), w windows of all items -> (w h n d)."""
        sizes, masks = _pieces(self, qkv.shape[2])
        if type(position) in (RelativePosition, ClippedPosition) and not torch.is_grad_enabled():
            steps = [(lambda _, term=term: term, None) for term in self._terms(position, masks, qkv.dtype)]
        else:
            place = cache(self.layout.bias)
            steps = [(place, mask) for mask in masks]
        if len(steps) == 1:
            return look(steps[0][0], *qkv, steps[0][1])
        parts = zip(qkv.split(sizes, 1), steps)
        return torch.cat([look(place, *part, mask).transpose(1, 2) for part, (place, mask) in parts]).transpose(1, 2)

    def _terms(self, position: ClippedPosition, masks: list, dtype: torch.dtype) -> list[Tensor]:
        """Bias and mask of each piece in one tensor, kept for as long as the table has the same values."""
        kept, key = _terms.setdefault(position, {}), (self, dtype, position.table.dtype)
        if key not in kept or not torch.equal(kept[key][0], position.table):
            if len(kept) >= MOST:
                kept.clear()
            bias = self.layout.bias(position).to(dtype).unsqueeze(0)
            terms = [bias if mask is None else bias.masked_fill(~mask, float("-inf")) for mask in masks]
            kept[key] = position.table.clone(), terms
        return kept[key][1]

    @cached_property
    def tokens(self) -> int:
        """Of one window."""
        return prod(self.layout.size)

    @property
    def item(self) -> Tensor:
        """Which item each row belongs to."""
        return _places(self.layout, self.items) // prod(self.layout.axes)


def orders(attentions: Iterable, x: Tensor) -> list[Order] | None:
    """The order of each block's attention on the map x (b *axes c); None where one of them has to see the map."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or recorder() is not None or not x.numel():
        return None
    attentions = list(attentions)
    if any(type(attn.pattern) is not Windows or attn.method is not attend for attn in attentions):
        return None  # other methods may count what they see in one call
    return _orders(tuple(attn.pattern for attn in attentions), tuple(x.shape[1:-1]), x.shape[0])


@cached
def _orders(patterns: tuple[Windows, ...], axes: tuple[int, ...], items: int) -> list[Order] | None:
    layouts = [pattern.layout(axes) for pattern in patterns]
    return None if any(layout.ragged for layout in layouts) else [Order(layout, items) for layout in layouts]


def run(blocks: Iterable, ways: list[Order], x: Tensor) -> Tensor:
    """x (b *axes c) through `blocks`, each in its order of `ways` -> (b *axes c)."""
    shape, before = x.shape, None
    x = x.reshape(-1, x.shape[-1])
    for block, order in zip(blocks, ways):
        x = block(_move(x, before, order.layout, order.items), order=order)
        before = order.layout
    return _move(x, before, None, shape[0]).view(*shape[:-1], x.shape[-1])


def _move(x: Tensor, before: Layout | None, after: Layout | None, items: int) -> Tensor:
    """Rows from one order to another; None: that of the maps."""
    if before == after or (found := _rows(before, after, items)) is None:
        return x
    return _Permute.apply(x, *found)


class _Permute(torch.autograd.Function):
    """x[rows], a permutation: its gradient is gathered by `back`, where index_select would add row by row."""

    @staticmethod
    def forward(ctx, x: Tensor, rows: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(rows, back)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx, grad: Tensor):
        rows, back = ctx.saved_tensors
        return _Permute.apply(grad, back, rows), None, None


@cached
def _rows(before: Layout | None, after: Layout | None, items: int) -> tuple[Tensor, Tensor] | None:
    """Row of `before` for each row of `after`, and the way back; None where nothing moves."""
    old, new = (None if layout is None else _places(layout, items) for layout in (before, after))
    count = len(old if new is None else new)
    old, new = (torch.arange(count) if places is None else places for places in (old, new))
    rows, back = old.argsort()[new], new.argsort()[old]
    return None if torch.equal(rows, torch.arange(count)) else (rows.int(), back.int())


@cached
def _places(layout: Layout, items: int) -> Tensor:
    """Place of each row in the flattened maps (item token)."""
    tokens = prod(layout.axes)
    place = layout.cut(torch.arange(tokens).view(1, *layout.axes, 1))[0, ..., 0]  # windows n
    item = torch.arange(items).view(-1, 1, 1) * tokens
    return torch.cat([(item + place[windows]).flatten() for windows, _ in _classes(layout)])


@cached
def _pieces(order: Order, heads: int) -> tuple[list[int], list[Tensor | None]]:
    """Windows of all items, and their mask, of each piece: a class, or all of them where the scores are few."""
    classes = _classes(order.layout)
    sizes = [order.items * len(windows) for windows, _ in classes]
    if len(classes) == 1 or sum(sizes) * heads * order.tokens**2 > FEW:
        return sizes, [mask for _, mask in classes]
    everything = torch.ones(1, 1, order.tokens, order.tokens, dtype=torch.bool)
    masks = [(everything if mask is None else mask).expand(n, -1, -1, -1) for n, (_, mask) in zip(sizes, classes)]
    return [sum(sizes)], [torch.cat(masks)]


@cached
def _classes(layout: Layout) -> list[tuple[Tensor, Tensor | None]]:
    """(windows, their mask (1 1 n n) or None) of each class."""
    if not layout.rolled:
        return [(torch.arange(prod(layout.counts)), None)]
    masks, which = layout.mask(None, torch.device("cpu")).unique(dim=0, return_inverse=True)
    return [((which == i).nonzero().flatten(), None if mask.all() else mask.unsqueeze(0)) for i, mask in enumerate(masks)]
