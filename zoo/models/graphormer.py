"""Graphormer to the letter (Ying et al. 2021), as Hugging Face has it: the graph model with other parts, for imported weights.

What differs from `Graph(bias="distance")`: the first shortest path in place of the mean over all, every number of hops with a
term of its own, edges embedded as one number per head, LayerNorm behind the branches, a head that reads the virtual node.
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.core.adjacency import Distance, NodeAttention
from zoo.core.shortest import FAR, first_paths
from zoo.core.walks import HOPS, Structure
from zoo.models.graph import Graph
from zoo.models.graph_batch import Collate, GraphBatch
from zoo.models.graph_parts import Centrality, Columns, GraphBlock

NORMS = ("post", "pre")


class Graphormer(Graph):
    """forward(GraphBatch) -> logits, at the levels and for the schema of zoo.models.graph.Graph; undirected graphs only.

    Arguments: as of Graph; hidden (width of the feed-forward), norm ("post" | "pre": LayerNorm behind or before a branch),
    embed_norm (one more behind the embedding), degrees (neighbours that are told apart), far (hops that are told apart, 16 ..
    509), route (edges of a shortest path that count), sees (nodes farther apart do not see each other; None: all do). ValueError
    names a wrong one. All pairs of a graph are looked at, whatever its size.
    """

    def __init__(
        self,
        num_classes: int = 1,
        level: str = "graph",
        node_categories: tuple[int, ...] = (),
        node_floats: int = 0,
        edge_categories: tuple[int, ...] = (),
        edge_floats: int = 0,
        directed: bool = False,
        dim: int = 80,
        depth: int = 12,
        heads: int = 8,
        hidden: int = 80,
        dropout: float = 0.0,
        norm: str = "post",
        embed_norm: bool = False,
        degrees: int = 64,
        far: int = FAR,
        route: int = 5,
        sees: int | None = None,
    ):
        _check(directed, depth, hidden, norm, degrees, far, route, sees)
        schema = node_categories, node_floats, edge_categories, edge_floats
        super().__init__(num_classes, level, *schema, directed, dim, 1, heads, dropout=dropout, bias="distance", local="none",
                         virtual_node=True, pool="virtual", path="dense")
        self.far = far
        self.edge_embed = Columns(tuple(edge_categories), edge_floats, heads)
        self.node_embed_norm = nn.LayerNorm(dim) if embed_norm else nn.Identity()
        self.centrality = Centrality(dim, degrees)
        self.position = Distance(1, heads, heads, route, far, sees)
        block = {"post": PostNormGraphBlock, "pre": GraphBlock}[norm]
        ratio = (hidden + 0.5) / dim  # the block rounds down
        self.blocks = nn.ModuleList(block(NodeAttention(dim, heads, None), dim, ratio, None, dropout) for _ in range(depth))

    @property
    def collate(self) -> Collate:
        kept = 4 * (8 * self.pair_dim + 4 * self.blocks[0].attn.heads * len(self.blocks))
        return FirstPaths(0, False, True, True, "dense", self.level, kept, route=len(self.position.route), far=self.far)

    def _nodes(self, batch: GraphBatch) -> Tensor:
        return self.node_embed_norm(super()._nodes(batch))

    def _last(self, x: Tensor) -> Tensor:
        return x

    def _read(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(self.readout(x)))


class PostNormGraphBlock(GraphBlock):
    """x = norm1(x + attn(x)); x = norm2(x + mlp(x)). Only for imported weights."""

    def forward(self, x: Tensor, batch: GraphBatch, bias: Tensor, states: Tensor, edges: Tensor, log_degree: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attn(x, batch.pairs, bias, states, log_degree)))
        return self.norm2(x + self.dropout(self.mlp(x)))


@dataclass(frozen=True)
class FirstPaths(Collate):
    """As Collate, but hops up to `far` and the first `route` edges of the first shortest path: zoo.core.shortest."""

    route: int = 5
    far: int = FAR

    def _wanted(self, scope: str) -> tuple:
        return "first", self.route, self.far

    def _build(self, edges: np.ndarray, n: int, wanted: tuple) -> Structure:
        return first_paths(edges, n, *wanted[1:])


def _check(directed, depth, hidden, norm, degrees, far, route, sees) -> None:
    def refuse(name, value, allowed):
        raise ValueError(f"Graphormer: {name}={value!r}; allowed: {allowed}")

    if directed:
        refuse("directed", directed, "False (each edge listed both ways)")
    if norm not in NORMS:
        refuse("norm", norm, ", ".join(map(repr, NORMS)))
    if not isinstance(far, int) or not HOPS <= far <= FAR:
        refuse("far", far, f"{HOPS} .. {FAR}")
    if sees is not None and (not isinstance(sees, int) or sees < 1):
        refuse("sees", sees, "None, or an integer >= 1")
    for name, value in {"depth": depth, "hidden": hidden, "degrees": degrees, "route": route}.items():
        if not isinstance(value, int) or value < 1:
            refuse(name, value, "an integer >= 1")
