"""Who sees whom among the nodes of graphs, and attention over those pairs: padded to squares, or along a list of edges.

Nodes of all graphs of a batch are packed one after another, so every projection is free of padding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from zoo.core.attention import attend, weigh
from zoo.core.edges import edge_attention
from zoo.core.packed import Packed, Square
from zoo.core.recorder import recorder


@dataclass(frozen=True)
class Pairs(Packed):
    """P pairs of packed nodes: node query[p] sees node key[p].

    query, key (P,). Small graphs lie in squares (see Packed), place (P,) of a pair in their cells (sum of b n n), None where
    pair p has place p. Otherwise squares is (), pairs are sorted by query, and the pairs of node i are the rows offsets[i] ..
    offsets[i + 1].
    """

    query: Tensor
    key: Tensor
    offsets: Tensor | None = None
    place: Tensor | None = None

    def spread(self, values: Tensor) -> "Spread":
        """Values of the pairs (P c) as attention takes them: (b n n c) of each square with 0 in the padding, or as they are."""
        if not self.squares:
            return values
        if self.place is not None:
            cells = sum(square.items * square.tokens**2 for square in self.squares)
            values = values.new_zeros(cells, values.shape[1]).index_copy(0, self.place, values)
        parts = values.split([square.items * square.tokens**2 for square in self.squares])
        return tuple(rearrange(part, "(b i j) c -> b i j c", b=square.items, i=square.tokens, j=square.tokens)
                     for part, square in zip(parts, self.squares))


Spread = Tensor | tuple[Tensor, ...]  # of all pairs, or of the pairs of each square


def layer_scores(states: Spread, weights: list[Tensor], pairs: Pairs) -> tuple[Spread, ...]:
    """The bias of every layer at once: states as of `Pairs.spread`, weights (h c) of each layer -> for each layer (b h n n) of
    each square, or (P h).

    One product for all layers is cheaper than one for the few heads of each. In squares the padding is -inf, once a batch.
    """
    weight = torch.cat(weights)
    if not pairs.squares:
        return rearrange(F.linear(states, weight), "p (layer h) -> layer p h", layer=len(weights)).unbind(0)
    return tuple(zip(*(_square_scores(own, weight, len(weights), square) for own, square in zip(states, pairs.squares))))


def _square_scores(states: Tensor, weight: Tensor, layers: int, square: Square) -> tuple[Tensor, ...]:
    """States (b i j c), weight (layer h, c) -> (b h i j) of each layer, which lies in one piece of (h b i j)."""
    states = rearrange(states, "b i j c -> c (b i j)")
    if square.mask is None:
        scores = weight @ states
    else:
        closed = torch.zeros_like(square.mask, dtype=states.dtype).masked_fill_(~square.mask, float("-inf"))
        scores = torch.addmm(closed.expand(-1, -1, square.tokens, -1).reshape(1, -1), weight, states)
    return rearrange(scores, "(layer h) (b i j) -> layer b h i j", layer=layers, i=square.tokens, j=square.tokens).unbind(0)


def pair_attention(qkv: Tensor, pairs: Pairs, bias: Spread | None, states: Spread | None = None, value: Tensor | None = None,
                   method: Callable = attend) -> Tensor:
    """out_i = sum_j a_ij (v_j + states_ij value), a_i = softmax over the pairs of i of (q_i k_j / sqrt(d) + bias_ij).

    qkv (nodes 3 h d); bias as `layer_scores` and states as `Pairs.spread` give them; value (h p d), None: without the second
    term. `method`: other weights than the softmax (Gated; LinearAttention, with bias None). Returns (nodes h d); a node that
    sees nobody gets 0. Source of the second term: Ma et al. 2023, GRIT, eq. 3.
    """
    if qkv.shape[0] == 0:
        return qkv[:, 2]
    if not pairs.squares:
        return edge_attention(qkv, pairs.query, pairs.key, pairs.offsets, bias, states, value, method)
    none = (None,) * len(pairs.squares)
    rows = zip(pairs.rows(qkv), pairs.squares, none if bias is None else bias, none if value is None else states)
    out = pairs.join([_in_square(*row, method) for row in rows])
    if value is None:
        return out
    own, seen = out.tensor_split([qkv.shape[-1]], -1)
    return own + einsum(seen, value.to(seen.dtype), "n h p, h p d -> n h d")


def _in_square(qkv: Tensor, square: Square, bias: Tensor | None, states: Tensor | None, method: Callable) -> Tensor:
    """qkv (b n 3 h d) -> sum of a_ij v_j, and with states (b n n p) beside it that of a_ij states_ij: (b n h d + p)."""
    if states is None:
        q, k, v = rearrange(qkv, "b n three h d -> three b h n d")
        return rearrange(method(q, k, v, None if method is attend else square.mask, bias), "b h n d -> b n h d")
    q, k, v = rearrange(qkv, "b n three h d -> three h b n d")
    weights = _weights(q, k, square, bias, method).to(v.dtype)
    own = rearrange(torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)), "(h b) n d -> b n h d", h=q.shape[0])
    seen = rearrange(weights, "h b i j -> (b i) h j") @ rearrange(states.to(v.dtype), "b i j p -> (b i) j p")
    return torch.cat([own, seen.view(*own.shape[:3], -1)], -1)


def _weights(q: Tensor, k: Tensor, square: Square, bias: Tensor, method: Callable) -> Tensor:
    """q, k (h b n d), bias (b h n n), which holds the mask -> (h b n n). Scores and bias in one pass where nobody records."""
    h = q.shape[0]
    if method is attend and recorder() is None and q.dtype == bias.dtype and q.dtype in (torch.float32, torch.float64):
        q, k, bias = q.flatten(0, 1), k.flatten(0, 1), rearrange(bias, "b h i j -> (h b) i j")
        return rearrange(torch.baddbmm(bias, q, k.mT, alpha=q.shape[-1] ** -0.5).softmax(-1), "(h b) i j -> h b i j", h=h)
    ask, mask = (weigh, None) if method is attend else (method.weigh, square.mask)
    return ask(q.transpose(0, 1), k.transpose(0, 1), mask, bias).transpose(0, 1)
