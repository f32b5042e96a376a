"""Graphs: one token per node (+ a virtual node), all nodes of a graph or only along edges, f(adjacency) added to the score.

score_ij = q_i k_j / sqrt(d) + b_ij, b a function of random walks, hops and edge features between i and j. After GRIT (Ma et al.
2023) and GPS (Rampášek et al. 2022); Graphormer's bias (Ying et al. 2021) and the plain adjacency are other settings of b.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.core import Forms, Place
from zoo.core.adjacency import Distance, NodeAttention, Nothing, Plain, Walks, biases
from zoo.models.graph_batch import PATHS, Collate, GraphBatch
from zoo.models.graph_parts import POOLS, Centrality, Columns, EdgeSum, GraphBlock, averaged
from zoo.models.heads import layers

CHOICES = {
    "level": ("graph", "node", "edge"),
    "bias": ("walks", "adjacency", "distance", "none"),
    "local": ("gine", "none"),
    "pool": tuple(POOLS),
    "path": PATHS,
}
OWN = {"method": "softmax", "temperature": "fixed"}
REFUSED = {
    "pattern": {"": "nothing: nodes have no order; who sees whom is the graph's: path, and bias"},
    "position": {"": "nothing: nodes have no order; a node's place is told by bias: " + ", ".join(CHOICES["bias"])},
    "method": {"chunked": "the term of all pairs is as large as their weights; path='edges' saves memory"},
}


class Graph(nn.Module):
    """forward(GraphBatch) -> logits: (b classes) at level "graph", (nodes classes) at "node", (links classes) at "edge".

    Arguments: num_classes (0: no classifier), level; the schema of the data: node_categories and edge_categories (values per
    categorical column, 0 being "unknown"), node_floats and edge_floats (columns), directed; dim, depth, heads, pair_dim (width
    of the pair states), mlp_ratio, dropout; bias ("walks" | "adjacency" | "distance" | "none"), walks (powers K), local ("gine":
    also a sum over real edges | "none"), virtual_node, pool ("mean" | "sum" | "virtual"), path ("auto" | "dense" | "edges": who
    sees whom), smooth (steps of averaging the float columns over neighbours, before anything else), attention (method,
    temperature and gain, see zoo.core.forms). ValueError names a wrong one.
    The levels share all weights but those of the classifier. `collate` makes the batches.
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
        dim: int = 64,
        depth: int = 10,
        heads: int = 4,
        pair_dim: int = 16,
        mlp_ratio: float = 2.0,
        dropout: float = 0.0,
        bias: str = "walks",
        walks: int = 16,
        local: str = "gine",
        virtual_node: bool = False,
        pool: str = "mean",
        path: str = "auto",
        smooth: int = 0,
        attention: dict | None = None,
    ):
        super().__init__()
        _check({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        self.level, self.path, self.pool, self.num_features, self.pair_dim = level, path, pool, dim, pair_dim
        self.smooth = smooth
        self.schema = {"x_cat": len(node_categories), "x_float": node_floats,
                       "edge_cat": len(edge_categories), "edge_float": edge_floats}
        self.walks, self.directed = walks if bias == "walks" else 0, directed
        self.grad_checkpointing = False
        self.node_embed = Columns(tuple(node_categories), node_floats, dim)
        looks = bias in ("walks", "distance") or local == "gine"  # else nothing looks at the edges' columns
        self.edge_embed = Columns(tuple(edge_categories), edge_floats, dim) if looks else None
        ways = 2 if directed else 1
        self.node_walks = nn.Linear(ways * walks, dim, bias=False) if bias == "walks" else None
        self.centrality = Centrality(dim) if bias == "distance" else None
        self.virtual = nn.Parameter(torch.randn(dim) * 0.2) if virtual_node else None
        self.position = {
            "walks": lambda: Walks(walks, ways, pair_dim, dim),
            "adjacency": lambda: Plain(ways),
            "distance": lambda: Distance(ways, heads, dim),
            "none": lambda: Nothing(heads),
        }[bias]()
        forms = Forms("Graph", attention, OWN, REFUSED)
        if forms.chosen["method"][0] == "linear" and bias != "none":
            raise ValueError(f"Graph: bias={bias!r}; allowed: 'none' with method 'linear', which has no score to add a term to")
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            attn = NodeAttention(dim, heads, self.position.score(heads), pair_dim if self.position.value else 0,
                                 **forms.settings(Place(dim, heads)))
            self.blocks.append(GraphBlock(attn, dim, mlp_ratio, EdgeSum(dim) if local == "gine" else None, dropout))
        self.norm = nn.LayerNorm(dim)
        self.readout = nn.Linear(dim, dim)
        self.reset_classifier(num_classes)

    @property
    def collate(self) -> Collate:
        """list of encoded graphs -> GraphBatch for this model."""
        kept = self.walks + 8 * self.pair_dim + 4 * self.blocks[0].attn.heads * len(self.blocks)  # numbers per pair, at training
        return Collate(self.walks, self.directed, self.virtual is not None, isinstance(self.position, Distance), self.path,
                       self.level, 4 * kept)

    def forward(self, batch: GraphBatch) -> Tensor:
        return self.forward_head(self.forward_features(batch), batch)

    def forward_features(self, batch: GraphBatch) -> Tensor:
        """Normed states (nodes dim) of the packed nodes, followed by those of the virtual nodes (b dim) if there are any."""
        return self.forward_intermediates(batch, [])[0]

    def forward_intermediates(self, batch: GraphBatch, indices: list[int] | None = None) -> tuple[Tensor, list[Tensor]]:
        """The last, normed states and those after each block in `indices` (default all), each as of forward_features."""
        wanted, kept = layers("Graph", indices, len(self.blocks)), []
        self._fits(batch)
        edges = None if self.edge_embed is None else self.edge_embed(batch.edge_cat, batch.edge_float)
        states = batch.pairs.spread(self.position(batch, edges))
        x = self.dropout(self._nodes(batch))
        log_degree = F.pad(batch.degree[:, :1].to(x.dtype).log1p(), (0, 0, 0, batch.virtual))
        for i, (block, bias) in enumerate(zip(self.blocks, biases(states, [block.attn for block in self.blocks], batch.pairs))):
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, batch, bias, states, edges, log_degree, use_reentrant=False)
            else:
                x = block(x, batch, bias, states, edges, log_degree)
            if i in wanted:
                kept.append(x)
        return self._last(x), kept

    def forward_head(self, x: Tensor, batch: GraphBatch, pre_logits: bool = False) -> Tensor:
        """States -> logits, or with `pre_logits` what the classifier sees: one vector per graph, node or link."""
        if self.level == "graph":
            x = POOLS[self.pool](x, batch)
        x = x[: batch.graph.shape[0]] if self.level != "graph" else x
        x = self._read(x)
        if self.level == "edge":
            x = self._links(x, batch)
        return x if pre_logits else self.classifier(x)

    def forward_embed(self, batch: GraphBatch) -> Tensor:
        """Unit vectors: one per graph (b dim) at level "graph", node (nodes dim) at "node", link (links 2 dim) at "edge"."""
        return F.normalize(self.forward_head(self.forward_features(batch), batch, pre_logits=True), dim=-1)

    def reset_classifier(self, num_classes: int) -> None:
        """A new, untrained classifier for `num_classes` (0: none)."""
        self.num_classes = num_classes
        width = self.num_features * (2 if self.level == "edge" else 1)
        self.classifier = nn.Linear(width, num_classes) if num_classes else nn.Identity()
        self.classifier.to(self.norm.weight)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def group_matcher(self, coarse: bool = False) -> dict:
        """timm's description of the depth of every parameter, for layer-wise learning rates."""
        blocks = r"^blocks\.(\d+)" if coarse else [(r"^blocks\.(\d+)", None), (r"^(?:norm|readout)", (99999,))]
        return {"stem": r"^(?:node_embed|edge_embed|node_walks|centrality|virtual|position)", "blocks": blocks}

    def no_weight_decay(self) -> set[str]:
        """Names of embedding tables and of what starts a state."""
        ends = ("table", "tables", "start", "virtual", "position.route", "method.map")
        return {name for name, _ in self.named_parameters() if name.endswith(ends)}

    def _nodes(self, batch: GraphBatch) -> Tensor:
        """First states: columns, chances of return P^k_ii or degrees, then the virtual nodes."""
        x = self.node_embed(batch.x_cat, averaged(self.dropout(batch.x_float), batch.edge_index, self.smooth))
        if self.node_walks is not None:
            x = x + self.node_walks(batch.walks.index_select(0, batch.loops).to(x.dtype))
        if self.centrality is not None:
            x = x + self.centrality(batch.degree)
        return x if self.virtual is None else torch.cat([x, self.virtual.expand(len(batch), -1)])

    def _last(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def _read(self, x: Tensor) -> Tensor:
        """What the classifier sees of pooled vectors, nodes, or ends of links."""
        return x + F.gelu(self.readout(x))

    def _links(self, x: Tensor, batch: GraphBatch) -> Tensor:
        """[x_u x_v, x_u - x_v], in an undirected graph [x_u x_v, |x_u - x_v|], which does not change when u and v are swapped."""
        if batch.links is None:
            raise ValueError("Graph: level='edge' scores node pairs; give the graphs edge_label_index (2 m)")
        u, v = x[batch.links[0]], x[batch.links[1]]
        return torch.cat([u * v, u - v if self.directed else (u - v).abs()], -1)

    def _fits(self, batch: GraphBatch) -> None:
        found = {name: getattr(batch, name).shape[1] for name in self.schema}
        wrong = [f"{name} has {found[name]} columns, expected {n}" for name, n in self.schema.items() if found[name] != n]
        if wrong:
            raise ValueError(f"Graph: {'; '.join(wrong)}: the data's schema is not the model's")
        ways = 2 if self.directed else 1
        found = batch.walks.shape[1], batch.hops.shape[1], batch.virtual
        if found != (ways * self.walks, ways, 0 if self.virtual is None else len(batch)):
            raise ValueError("Graph: the batch is for another model (walks, directed or virtual_node differ): use model.collate")


def _check(arguments: dict) -> None:
    def refuse(name, allowed):
        raise ValueError(f"Graph: {name}={arguments[name]!r}; allowed: {allowed}")

    for name, allowed in CHOICES.items():
        if arguments[name] not in allowed:
            refuse(name, ", ".join(map(repr, allowed)))
    for name in ("num_classes", "node_floats", "edge_floats", "smooth"):
        if not isinstance(arguments[name], int) or arguments[name] < 0:
            refuse(name, "an integer >= 0")
    for name in ("dim", "depth", "heads", "pair_dim", "walks"):
        if not isinstance(arguments[name], int) or arguments[name] < 1:
            refuse(name, "an integer >= 1")
    for name in ("node_categories", "edge_categories"):
        if any(not isinstance(size, int) or size < 1 for size in arguments[name]):
            refuse(name, "the number of values of each column, >= 1")
    if arguments["dim"] % arguments["heads"]:
        refuse("heads", f"a divisor of dim={arguments['dim']}")
    if not 0 <= arguments["dropout"] < 1:
        refuse("dropout", "0 <= dropout < 1")
    if arguments["mlp_ratio"] <= 0:
        refuse("mlp_ratio", "> 0")
    if arguments["pool"] == "virtual" and not arguments["virtual_node"]:
        refuse("pool", "'mean', 'sum' without virtual_node")
