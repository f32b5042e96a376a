"""Sequences (or graphs) of a batch packed one after another: linear layers compute no padding, attention hardly any.

For attention those of similar size lie side by side, padded to the largest of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

GROUPS = 4  # at most, of similar size
GROUP_PAIRS = 4096  # what one more group costs, in padded pairs (measured: 3 to 6 groups of 128 molecules are equally fast)


@dataclass(frozen=True)
class Square:
    """`items` of up to `tokens` tokens each, which see each other; mask: bool (b 1 1 n) or (b 1 n n), None where nothing is
    padded, with an open key in every row."""

    items: int
    tokens: int
    mask: Tensor | None = None

    def to(self, device) -> "Square":
        return to_device(self, device)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Packed tokens, and the squares they lie in for attention, one square after another.

    index (sum of b n): packed token of a row (padding: any token of the same item); spot (tokens,): row of a packed token.
    """

    squares: tuple[Square, ...] = ()
    index: Tensor | None = None
    spot: Tensor | None = None

    def to(self, device):
        return to_device(self, device)

    def rows(self, values: Tensor) -> tuple[Tensor, ...]:
        """Values of the tokens (tokens ...) in the rows (b n ...) of each square."""
        parts = values.index_select(0, self.index).split([square.items * square.tokens for square in self.squares])
        return tuple(part.unflatten(0, (square.items, square.tokens)) for part, square in zip(parts, self.squares))

    def join(self, rows: list[Tensor]) -> Tensor:
        """Back from the rows (b n ...) of each square to the packed tokens."""
        rows = [part.flatten(0, 1) for part in rows]
        return (torch.cat(rows) if len(rows) > 1 else rows[0]).index_select(0, self.spot)

    def look(self, look: Callable, qkv: Tensor, heads: int, _position: None) -> Tensor:
        """`look(place, q, k, v, mask)` for each square: qkv (tokens, 3 h d) -> (tokens, h d)."""
        rows = self.rows(rearrange(qkv, "t (three h d) -> t three h d", three=3, h=heads))
        found = [look(None, *rearrange(part, "b n three h d -> three b h n d"), square.mask)
                 for part, square in zip(rows, self.squares)]
        return rearrange(self.join([rearrange(part, "b h n d -> b n h d") for part in found]), "t h d -> t (h d)")


class Plan(NamedTuple):
    """packed; and for each item its first cell (of n n) among those of all squares, and the n of its square."""

    packed: Packed
    cell: np.ndarray
    width: np.ndarray


def pack(sizes: np.ndarray, ids: np.ndarray) -> Plan:
    """Items of `sizes` tokens, whose packed tokens are `ids` (sum of sizes,), item after item. An item without tokens has one
    open place, so that nothing is NaN."""
    squares, index, spot = [], [], np.empty(len(ids), np.int64)
    first, cell, width, rows, cells = sizes.cumsum() - sizes, np.zeros_like(sizes), np.zeros_like(sizes), 0, 0
    for group in similar(sizes):
        b, n = len(group), int(sizes[group].max(initial=1))
        cell[group], width[group] = cells + n * n * np.arange(b), n
        full, column = np.maximum(sizes[group], 1)[:, None], np.arange(n)
        place = first[group, None] + np.minimum(column, full - 1)  # padding repeats the last one
        index.append(ids[np.minimum(place, max(len(ids) - 1, 0))].ravel() if len(ids) else np.zeros(b * n, np.int64))
        real = column < full
        filled = column < sizes[group, None]
        spot[ids[place[filled]]] = (rows + np.arange(b * n).reshape(b, n))[filled]
        squares.append(Square(b, n, None if real.all() else torch.from_numpy(real[:, None, None])))
        rows, cells = rows + b * n, cells + b * n * n
    packed = Packed(squares=tuple(squares), index=torch.from_numpy(np.concatenate(index)), spot=torch.from_numpy(spot))
    return Plan(packed, cell, width)


def pack_mask(mask: Tensor) -> Packed:
    """The real tokens of a padded batch, mask (b n) bool, row after row."""
    sizes = mask.sum(1).cpu().numpy()
    return pack(sizes[sizes > 0], np.arange(sizes.sum())).packed.to(mask.device)


def padded(sizes: np.ndarray) -> int:
    """Pairs of a square of items."""
    return len(sizes) * int(sizes.max(initial=1)) ** 2


def similar(sizes: np.ndarray) -> list[np.ndarray]:
    """Items in groups of similar size, to be padded each to its own largest: as many as save more than they cost."""
    order = np.argsort(sizes, kind="stable")
    ways = [np.array_split(order, groups) for groups in range(1, max(1, min(GROUPS, len(sizes))) + 1)]
    return min(ways, key=lambda groups: sum(padded(sizes[group]) + GROUP_PAIRS for group in groups))


def to_device(data, device):
    """A copy of a dataclass whose tensors (and parts with `to`, alone or in a tuple) lie on `device`."""
    parts = {field.name: getattr(data, field.name) for field in fields(data)}
    moved = {name: part.to(device) for name, part in parts.items() if hasattr(part, "to")}
    moved |= {name: tuple(item.to(device) for item in part) for name, part in parts.items() if isinstance(part, tuple)}
    return replace(data, **moved)
