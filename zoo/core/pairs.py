"""Who sees whom among the nodes of graphs, and attention over those pairs: padded to squares, or along a list of edges.

Nodes of all graphs of a batch are packed one after another, so every projection is free of padding.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from zoo.core.attention import attend, weigh
from zoo.core.edges import edge_attention


@dataclass(frozen=True)
class Pairs:
    """P pairs of packed nodes: node query[p] sees node key[p].

    query, key (P,). Small graphs have a square of n nodes each: index (b n) packed node of a place of the square (padding: any
    node of the same graph), place (P,) of a pair in the flattened (b n n), None where pair p has place p, spot (nodes,) of a
    node in the flattened (b n), and mask, bool (b 1 1 n) or (b 1 n n), None where nothing is padded, with an open key in every
    row. Otherwise index is None, pairs are sorted by query, and the pairs of node i are the rows offsets[i] .. offsets[i + 1].
    """

    query: Tensor
    key: Tensor
    offsets: Tensor | None = None
    index: Tensor | None = None
    place: Tensor | None = None
    spot: Tensor | None = None
    mask: Tensor | None = None

    def to(self, device) -> "Pairs":
        return to_device(self, device)

    def spread(self, values: Tensor) -> Tensor:
        """Values of the pairs (P c) where attention wants them: squares (b n n c) with 0 in the padding, or as they are."""
        if self.index is None:
            return values
        b, n = self.index.shape
        if self.place is not None:
            values = values.new_zeros(b * n * n, values.shape[1]).index_copy(0, self.place, values)
        return rearrange(values, "(b i j) c -> b i j c", b=b, i=n, j=n)


def to_device(data, device):
    """A copy of a dataclass whose tensors (and parts with `to`) lie on `device`."""
    parts = {field.name: getattr(data, field.name) for field in fields(data)}
    return replace(data, **{name: part.to(device) for name, part in parts.items() if hasattr(part, "to")})


def layer_scores(states: Tensor, weights: list[Tensor], pairs: Pairs) -> tuple[Tensor, ...]:
    """The bias of every layer at once: states as of `Pairs.spread`, weights (h c) of each layer -> (b h n n) or (P h) each.

    One product for all layers is cheaper than one for the few heads of each. In squares the padding is -inf, once a batch.
    """
    weight = torch.cat(weights)
    if pairs.index is None:
        return rearrange(F.linear(states, weight), "p (layer h) -> layer p h", layer=len(weights)).unbind(0)
    n = states.shape[1]
    if torch.compiler.is_exporting():  # @ would ask whether a batch of any size is 1
        scores = rearrange(F.linear(states, weight), "b i j c -> b c (i j)")
    else:
        scores = weight @ rearrange(states, "b i j c -> b c (i j)")  # this order leaves each layer's squares in one piece
    scores = rearrange(scores, "b (layer h) (i j) -> b layer h i j", layer=len(weights), i=n, j=n)
    if pairs.mask is not None:
        scores = scores + torch.zeros_like(pairs.mask, dtype=scores.dtype).masked_fill_(~pairs.mask, float("-inf")).unsqueeze(1)
    return scores.unbind(1)


def pair_attention(qkv: Tensor, pairs: Pairs, bias: Tensor | None, states: Tensor | None = None, value: Tensor | None = None,
                   method: Callable = attend) -> Tensor:
    """out_i = sum_j a_ij (v_j + states_ij value), a_i = softmax over the pairs of i of (q_i k_j / sqrt(d) + bias_ij).

    qkv (nodes 3 h d); bias as `layer_scores` and states as `Pairs.spread` give them; value (h p d), None: without the second
    term. `method`: other weights than the softmax (Gated; LinearAttention, with bias None). Returns (nodes h d); a node that
    sees nobody gets 0. Source of the second term: Ma et al. 2023, GRIT, eq. 3.
    """
    if qkv.shape[0] == 0:
        return qkv[:, 2]
    if pairs.index is None:
        return edge_attention(qkv, pairs.query, pairs.key, pairs.offsets, bias, states, value, method)
    b, n = pairs.index.shape
    q, k, v = rearrange(qkv.index_select(0, pairs.index.flatten()), "(b n) three h d -> three b h n d", b=b, n=n)
    mask = None if method is attend else pairs.mask  # the bias has it too
    if value is None:
        out = method(q, k, v, mask, bias)
    else:
        weights = (weigh if method is attend else method.weigh)(q, k, mask, bias).to(v.dtype)
        seen = einsum(weights, states.to(v.dtype), "b h i j, b i j p -> b h i p")
        out = weights @ v + einsum(seen, value.to(v.dtype), "b h i p, h p d -> b h i d")
    return rearrange(out, "b h n d -> (b n) h d").index_select(0, pairs.spot)
