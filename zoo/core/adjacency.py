"""The term added to the score between nodes of a graph: a function of the adjacency. Three forms of one thing, and none.

Each form turns what is known about a pair (zoo.core.walks) into pair states (P c) once a batch; each layer's `score` maps the
states to its heads: score_ij = q_i k_j / sqrt(d) + score(states_ij).

    Walks      random-walk powers, hops and edge features -> small MLP (Ma et al. 2023, GRIT), also a term of the values
    Plain      A_ij itself, times a weight per head that starts at 1
    Distance   table[hops] + mean over the edges of the shortest path (Ying et al. 2021, Graphormer, eq. 6 and 7), all layers
"""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from zoo.core.attention import Attention
from zoo.core.linear import LinearAttention
from zoo.core.pairs import Pairs, Spread, layer_scores, pair_attention
from zoo.core.walks import BUCKETS, HOPS, ROUTE, UNKNOWN, UNREACHABLE

FAR_AWAY = 2**30  # hops between nodes without a path


class Walks(nn.Module):
    """states_ij = norm(s + W gelu(s)), s = V [P^0 .. P^(K-1)]_ij + table[hops_ij] + E edge_ij.

    `walks` K powers, `ways` 1 or 2 (directed: walks, hops and edges both ways), `dim` of the states, `edge_dim` of embedded
    edges. forward(batch, edges (E edge_dim)) -> (P dim).
    """

    value = True

    def __init__(self, walks: int, ways: int, dim: int, edge_dim: int):
        super().__init__()
        self.steps = nn.Linear(ways * walks, dim, bias=False)
        self.table = nn.Parameter(torch.empty(ways * BUCKETS, dim))
        self.edges = nn.ModuleList(nn.Linear(edge_dim, dim, bias=False) for _ in range(ways))
        self.mix, self.norm = nn.Linear(dim, dim), nn.LayerNorm(dim)
        nn.init.normal_(self.table, std=0.2)

    def forward(self, batch, edges: Tensor) -> Tensor:
        states = torch.addmm(_look_up(self.table, batch.hops), batch.walks.to(self.table.dtype), self.steps.weight.mT)
        edges = weighed(edges, batch.edge_weight)
        for way, project in enumerate(self.edges):
            states = states.index_add(0, batch.edge_pair[:, way], project(edges).to(states.dtype))
        return self.norm(self.mix(F.gelu(states)).add_(states))

    def score(self, heads: int) -> Tensor:
        """First weights (heads c) of a layer's map of the states to its heads; no bias: a constant cancels in the softmax."""
        return nn.Linear(self.steps.out_features, heads).weight.detach()


class Plain(nn.Module):
    """states_ij = A_ij, and A_ji when directed (`ways` 2). forward(batch, edges) -> (P ways); `edges` are not looked at."""

    value = False

    def __init__(self, ways: int):
        super().__init__()
        self.ways = ways

    def forward(self, batch, edges: Tensor | None) -> Tensor:
        one = weighed(batch.walks.new_ones(batch.edge_pair.shape[0], 1), batch.edge_weight)
        states = [one.new_zeros(batch.hops.shape[0], 1).index_add(0, pair, one) for pair in batch.edge_pair.unbind(1)]
        return torch.cat(states, 1)

    def score(self, heads: int) -> Tensor:
        return torch.eye(1, self.ways).repeat(heads, 1)


class Distance(nn.Module):
    """states_ij = table[hops_ij] + mean over the edges e_1, e_2 .. of the shortest path of e_n . w_n, one number per head.

    Where several paths are shortest it is the mean over all of them: the original takes the first one found, which depends on
    the order of the nodes. The first `route` edges count; hops up to `far` have a row of the table each (zoo.core.shortest
    tells more than 16 apart); nodes more than `sees` hops apart, None: no nodes, do not see each other.
    forward(batch, edges (E edge_dim)) -> (P heads).
    """

    value = False

    def __init__(self, ways: int, heads: int, edge_dim: int, route: int = ROUTE, far: int = HOPS, sees: int | None = None):
        super().__init__()
        self.table = nn.Parameter(torch.empty(ways * (BUCKETS + far - HOPS), heads))
        self.route = nn.Parameter(torch.empty(route, edge_dim, heads))
        for parameter in (self.table, self.route):
            nn.init.normal_(parameter, std=0.02)
        self.register_buffer("closed", None if sees is None else _closed(far, sees).repeat(ways, 1), persistent=False)

    def forward(self, batch, edges: Tensor) -> Tensor:
        pair, edge, position = batch.routes.unbind(1)
        along = einsum(edges, self.route, "e c, n c h -> e n h")[edge, position]
        states = _look_up(self.table if self.closed is None else self.table + self.closed, batch.hops)
        return states.index_add(0, pair, (along * batch.route_weight.unsqueeze(1)).to(states.dtype))

    def score(self, heads: int) -> None:
        """The states are the scores of every layer."""


class Nothing(nn.Module):
    """No term: who sees whom is all that a layer knows of the adjacency. forward(batch, edges) -> zeros (P heads)."""

    value = False

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def forward(self, batch, edges: Tensor | None) -> Tensor:
        return batch.walks.new_zeros(len(batch.hops), self.heads)

    def score(self, heads: int) -> None:
        """The states are the scores of every layer."""


def weighed(edges: Tensor, weight: Tensor | None) -> Tensor:
    """edges (E c) times weight (E,), where None is 1: no edge is listed twice."""
    return edges if weight is None else edges * weight.unsqueeze(1)


def _look_up(table: Tensor, hops: Tensor) -> Tensor:
    """Sum over ways of the rows of `table` (ways * buckets c) for hops (P ways)."""
    states = F.embedding(hops[:, 0], table)
    return states if hops.shape[1] == 1 else states + F.embedding(hops[:, 1] + len(table) // 2, table)


def _closed(far: int, sees: int) -> Tensor:
    """(rows 1): 0, and where nodes are too far apart a number after which the softmax is 0, yet a product with 0 is no NaN."""
    row = torch.arange(BUCKETS + far - HOPS)
    hops = torch.where(row < BUCKETS, row, row - (BUCKETS - HOPS - 1))
    hops[UNREACHABLE], hops[UNKNOWN:BUCKETS] = FAR_AWAY, 0
    return torch.where(hops > sees, -1e4, 0.0).unsqueeze(1)


def biases(states: Spread, layers: list["NodeAttention"], pairs: Pairs) -> tuple[Spread, ...]:
    """What each layer adds to its scores, from the spread states of the pairs; one for all layers that have no map."""
    if layers[0].score is not None:
        return layer_scores(states, [layer.score for layer in layers], pairs)
    like = states[0] if pairs.squares else states
    same = torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return layer_scores(states, [same], pairs) * len(layers)


class NodeAttention(Attention):
    """Attention among packed nodes: x (nodes dim) -> (nodes dim); pairs, bias and states say who sees whom and why.

    `score` (heads c): first weights of the map of the pair states to the bias, applied by `biases`. `value_dim`: width of the
    states in the values (0: not there). The result is scaled by (a + b log_degree) per channel, log_degree (nodes 1) = log(1 +
    neighbours), so that the number of neighbours is not averaged away (Ma et al. 2023, eq. 5). `settings`: method, temperature,
    gain of Attention; LinearAttention does not look at the bias.
    """

    def __init__(self, dim: int, heads: int, score: Tensor | None, value_dim: int = 0, **settings):
        super().__init__(dim, heads, **settings)
        self.score = None if score is None else nn.Parameter(score)
        self.value = nn.Parameter(torch.randn(heads, value_dim, dim // heads) * value_dim**-0.5) if value_dim else None
        self.scale = nn.Parameter(torch.stack([torch.ones(dim), torch.zeros(dim)]))

    def forward(self, x: Tensor, pairs: Pairs, bias: Spread, states: Spread, log_degree: Tensor) -> Tensor:
        qkv = rearrange(self.qkv(x), "n (three h d) -> n three h d", three=3, h=self.heads)
        if self.temperature is not None:
            qkv = torch.cat([self.temperature(qkv[:, :1].transpose(1, 2)).transpose(1, 2), qkv[:, 1:]], 1)
        bias = None if isinstance(self.method, LinearAttention) else bias
        out = rearrange(pair_attention(qkv, pairs, bias, states, self.value, self.method), "n h d -> n (h d)")
        return self.proj(out * torch.addcmul(self.scale[0], log_degree, self.scale[1]).to(out.dtype))
