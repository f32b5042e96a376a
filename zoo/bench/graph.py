"""`zoo bench graph`: the graph model against GPSConv on molecules, attention along edges against TransformerConv."""

from collections.abc import Iterator

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo import registry
from zoo.bench import Settings
from zoo.bench.baselines import stack
from zoo.bench.graph_layer import gps_row, graphormer_rows, missing
from zoo.bench.rounds import Case, Row
from zoo.core.pairs import Pairs, pair_attention
from zoo.errors import UsageError
from zoo.models.graph_batch import Collate
from zoo.models.graph_parts import Columns
from zoo.rawgraph import data_type

ATOMS, BONDS, WALKS = (28, 7, 6), (5, 3), 16  # categories of a molecule's columns; steps of the random walks
BATCH, QUICK_BATCH = 128, 8
NODES, QUICK_NODES, DEGREE, DIM, HEADS = (20_000, 100_000), (200, 400), 10, 64, 4


def rows(settings: Settings) -> Iterator[Row]:
    """Molecules (size: graphs of a batch): making the batch, inference, training step; one layer; then attention along edges
    (size: nodes).

    The two models differ, so their outputs are not compared; those of one layer and along edges are, on equal weights.
    """
    data_type()  # says how to install torch_geometric where it is missing
    yield from _molecules(settings)
    graphs = molecules(QUICK_BATCH if settings.quick else BATCH)
    yield gps_row(graphs)
    yield from graphormer_rows(graphs)
    for nodes in QUICK_NODES if settings.quick else NODES:
        yield from _along_edges(nodes)


def said(_results: list[dict], _settings: Settings) -> list[str]:
    """What could not be measured here."""
    return missing()


def _molecules(settings: Settings) -> Iterator[Row]:
    graphs = molecules(QUICK_BATCH if settings.quick else BATCH)
    ours, peer = _pair(settings.model or "graph_nano")
    name, theirs = _label(settings.model or "graph_nano", ours), _label("GPSConv stack", peer)
    batch, peer_batch = ours.collate(graphs), _peer_batch(graphs)
    made = Case(name, lambda: ours.collate(graphs).x_cat), Case(theirs, lambda: _peer_batch(graphs).x_cat)
    yield Row("molecules, making the batch", len(graphs), "graphs", made)
    runs = (ours.eval(), batch), (peer.eval(), peer_batch)
    cases = [Case(label, lambda m=m, b=b: m(b), compared=False) for label, (m, b) in zip((name, theirs), runs)]
    yield Row("molecules, inference", len(graphs), "graphs", tuple(cases))
    ours.train(), peer.train()
    cases = [Case(label, lambda m=m, b=b: _step(m, b), compared=False) for label, (m, b) in zip((name, theirs), runs)]
    yield Row("molecules, training step", len(graphs), "graphs", tuple(cases))


def molecules(count: int) -> list:
    """Encoded random graphs with the sizes of ZINC's molecules: trees of 9 to 38 nodes, 23 on average, with a few rings."""
    generator = torch.Generator().manual_seed(0)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    graphs = []
    for _ in range(count):
        n = int((torch.randn((), generator=generator) * 4.5 + 23).round().clamp(9, 38))
        node, rings = torch.arange(1, n), max(1, n // 10)
        near = node - 1 - torch.minimum(draw(3, n - 1), node - 1)
        one_way = torch.cat([torch.stack([node, near]), torch.stack([torch.arange(rings), n - 1 - torch.arange(rings)])], 1)
        edges = torch.cat([one_way, one_way.flip(0)], 1)
        bonds = torch.stack([draw(size, one_way.shape[1]) for size in BONDS], 1).repeat(2, 1)
        atoms = torch.stack([draw(size, n) for size in ATOMS], 1)
        graphs.append(data_type()(x_cat=atoms, x_float=torch.zeros(n, 0), edge_index=edges, edge_cat=bonds,
                                  edge_float=torch.zeros(len(bonds), 0), num_nodes=n))
    return graphs


def _peer_batch(graphs: list):
    """The disjoint union with each node's chances of return P^k_ii, which GPS computes beforehand too."""
    batch = stack(graphs)
    structures = [Collate(WALKS).structure(graph, "all") for graph in graphs]
    batch.returns = torch.cat([torch.from_numpy(part.walks[part.loops]) for part in structures])
    return batch


def _pair(name: str) -> tuple[nn.Module, nn.Module]:
    """Our model for the molecules' columns, and a GPSConv stack of its width, depth and heads."""
    if registry.find(name).modality != "graph":
        raise UsageError(f"bench graph: --model {name} is no graph model; one of: {', '.join(registry.names('graph*'))}")
    torch.manual_seed(0)
    ours = registry.build(name, node_categories=ATOMS, edge_categories=BONDS, walks=WALKS)
    return ours, GPS(ours.num_features, len(ours.blocks), ours.blocks[0].attn.heads)


def _label(name: str, model: nn.Module) -> str:
    return f"{name} ({sum(p.numel() for p in model.parameters()) / 1e6:.2f} M)"


class GPS(nn.Module):
    """`depth` GPSConv layers, GINE beside multi-head attention, mean pooling -> (graphs 1). Source: Rampášek et al. 2022."""

    def __init__(self, dim: int, depth: int, heads: int):
        super().__init__()
        from torch_geometric.nn import GINEConv, GPSConv, global_mean_pool

        self.nodes, self.edges = Columns(ATOMS, 0, dim), Columns(BONDS, 0, dim)
        self.returns = nn.Linear(WALKS, dim, bias=False)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            gine = GINEConv(nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)))
            self.layers.append(GPSConv(dim, gine, heads=heads, attn_type="multihead"))
        self.pool, self.head = global_mean_pool, nn.Linear(dim, 1)

    def forward(self, batch) -> Tensor:
        x = self.nodes(batch.x_cat, batch.x_float) + self.returns(batch.returns)
        edges = self.edges(batch.edge_cat, batch.edge_float)
        for layer in self.layers:
            x = layer(x, batch.edge_index, batch.batch, edge_attr=edges)
        return self.head(self.pool(x, batch.batch, size=batch.graphs))


@torch.enable_grad()
def _step(model: nn.Module, batch) -> Tensor:
    """Forward and backward; what the optimiser adds is the same for all."""
    model.zero_grad()
    out = model(batch).float()
    out.square().mean().backward()
    return out.detach()


def _along_edges(nodes: int) -> Iterator[Row]:
    """One layer of attention along about DEGREE random edges a node: inference, and a training step that gives gradients."""
    from torch_geometric.nn import TransformerConv

    torch.manual_seed(0)
    peer = TransformerConv(DIM, DIM // HEADS, heads=HEADS, root_weight=False).eval()
    place = torch.randint(nodes * nodes, (nodes * DEGREE,)).unique()  # sorted by query, then key
    query, key = place // nodes, place % nodes
    pairs, edges = Pairs(query, key, offsets=torch.searchsorted(query, torch.arange(nodes + 1))), torch.stack([key, query])
    x, bias = torch.randn(nodes, DIM), torch.zeros(len(query), HEADS)
    linear = nn.Linear(DIM, 3 * DIM)
    three = peer.lin_query, peer.lin_key, peer.lin_value
    linear.weight, linear.bias = (nn.Parameter(torch.cat([getattr(part, name) for part in three])) for name in ("weight", "bias"))

    def run() -> Tensor:
        qkv = rearrange(linear(x), "n (three h d) -> n three h d", three=3, h=HEADS)
        return rearrange(pair_attention(qkv, pairs, bias), "n h d -> n (h d)")

    @torch.enable_grad()
    def step(layers: tuple[nn.Linear, ...], forward) -> Tensor:
        for layer in layers:
            layer.zero_grad()
        forward().float().square().sum().backward()
        return torch.cat([layer.weight.grad for layer in layers])

    ways = {"zoo": ((linear,), run), "TransformerConv": (three, lambda: peer(x, edges))}
    yield Row("along edges, inference", nodes, "nodes", tuple(Case(name, forward) for name, (_, forward) in ways.items()))
    steps = [Case(name, lambda own=layers, f=forward: step(own, f)) for name, (layers, forward) in ways.items()]
    yield Row("along edges, training step", nodes, "nodes", tuple(steps))
