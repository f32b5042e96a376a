"""Parts of the graph model: columns -> vectors, the sum over real edges, the block, pooling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.core import Block
from zoo.core.adjacency import NodeAttention, weighed
from zoo.models.graph_batch import GraphBatch

DEGREES = 64  # this many neighbours or more share a row, unless a model has more rows


class Columns(nn.Module):
    """start + sum over categorical columns of table[column, value] + W floats: (n C) int64, (n F) float32 -> (n dim).

    `categories`: number of values of each column, 0 being "unknown"; a value outside of the range counts as unknown.
    """

    def __init__(self, categories: tuple[int, ...], floats: int, dim: int):
        super().__init__()
        sizes = torch.tensor(list(categories), dtype=torch.long)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("first", sizes.cumsum(0) - sizes, persistent=False)
        self.start = nn.Parameter(torch.randn(dim) * 0.2)
        self.table = nn.Parameter(torch.randn(sum(categories), dim) * 0.2) if categories else None
        self.floats = nn.Linear(floats, dim, bias=False) if floats else None

    def forward(self, cat: Tensor, floats: Tensor) -> Tensor:
        x = self.start.expand(cat.shape[0], -1)  # len would fix the size of an export
        if self.table is not None:
            known = torch.where((cat >= 0) & (cat < self.sizes), cat, 0)
            x = x + F.embedding(known + self.first, self.table).sum(1)
        return x if self.floats is None else x + self.floats(floats.to(x.dtype))


class Centrality(nn.Module):
    """table_in[neighbours in] + table_out[neighbours out]: (n 2) -> (n dim). Source: Ying et al. 2021, eq. 5."""

    def __init__(self, dim: int, degrees: int = DEGREES):
        super().__init__()
        self.tables = nn.Parameter(torch.randn(2, degrees + 1, dim) * 0.02)

    def forward(self, degree: Tensor) -> Tensor:
        degree = degree.clamp(max=self.tables.shape[1] - 1)
        return self.tables[0, degree[:, 0]] + self.tables[1, degree[:, 1]]


class EdgeSum(nn.Module):
    """W (x_i + sum over edges e from j to i of relu(x_j + e)): (nodes dim), edges (E dim) -> (nodes dim).

    Source: Hu et al. 2020, GINE; one map in place of two, as the block's feed-forward follows. An edge listed twice counts once.
    Virtual nodes have no edges.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, edges: Tensor, batch: GraphBatch) -> Tensor:
        source, target = batch.edge_index
        message = weighed(x.index_select(0, source).add_(edges).relu_(), batch.edge_weight)
        return self.proj(x.index_add(0, target, message.to(x.dtype)))


class GraphBlock(Block):
    """x = x + attn(y) + local(y), y = norm1(x); x = x + mlp(norm2(x)). Source: Rampášek et al. 2022, GPS, eq. 1.

    forward(x (nodes dim), batch, bias and states of the pairs, edges (E dim), log_degree (nodes 1)); `local` None: attention
    only. `dropout` on both branches.
    """

    def __init__(self, attn: NodeAttention, dim: int, mlp_ratio: float, local: EdgeSum | None, dropout: float):
        super().__init__(attn, dim, mlp_ratio)
        self.local, self.dropout = local, nn.Dropout(dropout)

    def forward(self, x: Tensor, batch: GraphBatch, bias: Tensor, states: Tensor, edges: Tensor, log_degree: Tensor) -> Tensor:
        y = self.norm1(x)
        branch = self.attn(y, batch.pairs, bias, states, log_degree)
        if self.local is not None:
            branch = branch + self.local(y, edges, batch)
        x = x + self.dropout(branch)
        return x + self.dropout(self.mlp(self.norm2(x))) if self.training else self.mlp(self.norm2(x), x)


def pool_sum(x: Tensor, batch: GraphBatch) -> Tensor:
    """Sum over the nodes of each graph: (N dim), perhaps followed by virtual nodes -> (b dim)."""
    return x.new_zeros(batch.sizes.shape[0], x.shape[1]).index_add(0, batch.graph, x[: batch.graph.shape[0]])


def pool_mean(x: Tensor, batch: GraphBatch) -> Tensor:
    """Mean over the nodes of each graph; 0 for a graph without nodes."""
    return pool_sum(x, batch) / batch.sizes.clamp(min=1).unsqueeze(1).to(x.dtype)


def pool_virtual(x: Tensor, batch: GraphBatch) -> Tensor:
    """The state of each graph's virtual node."""
    return x[len(batch.graph) :]


POOLS = {"mean": pool_mean, "sum": pool_sum, "virtual": pool_virtual}


def averaged(x: Tensor, edge_index: Tensor, steps: int) -> Tensor:
    """x (nodes c), `steps` times replaced by the mean over a node and the sources of its edges. Source: Wu et al. 2019, SGC."""
    if not steps or not x.shape[1]:
        return x
    nodes = torch.arange(len(x), device=x.device)
    places = torch.cat([edge_index.flip(0), torch.stack([nodes, nodes])], 1)  # row: who averages, column: over whom
    count = torch.bincount(places[0], minlength=len(x))
    share = torch.sparse_coo_tensor(places, 1 / count[places[0]].to(x.dtype), (len(x), len(x)), check_invariants=False)
    for _ in range(steps):
        x = torch.sparse.mm(share, x)
    return x
