"""What graph models are measured against: GCN and GINE from torch-geometric, on the same encoded graphs and splits."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import ZooError
from zoo.rawgraph import data_type


def _geometric():
    data_type()  # imports torch_geometric without its warnings, or says how to install it
    import torch_geometric.nn as geometric

    return geometric


@cache
def _stacked() -> type:
    class Stacked(data_type()):
        """A Data of several graphs; its length is their number, as that of a GraphBatch."""

        def __len__(self) -> int:
            return self.graphs

    return Stacked


def stack(graphs: list):
    """Encoded graphs as one Data of disjoint parts: columns and y joined, `batch` (n) the graph of each node."""
    sizes = torch.tensor([graph.num_nodes for graph in graphs])
    before = sizes.cumsum(0) - sizes
    parts = {name: torch.cat([graph[name] for graph in graphs]) for name in ("x_cat", "x_float", "edge_cat", "edge_float")}
    parts["edge_index"] = torch.cat([graph.edge_index + start for graph, start in zip(graphs, before)], dim=1)
    parts["batch"] = torch.repeat_interleave(torch.arange(len(graphs)), sizes)
    if "y" in graphs[0]:
        parts["y"] = torch.stack([graph.y for graph in graphs])
    return _stacked()(**parts, num_nodes=int(sizes.sum()), graphs=len(graphs))


class Encoder(nn.Module):
    """(rows, C) categories and (rows, F) floats -> (rows, dim): an embedding of each category and a linear map, summed."""

    def __init__(self, sizes, floats: int, dim: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.floats = nn.Linear(floats, dim, bias=False) if floats else None
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, categories: Tensor, floats: Tensor) -> Tensor:
        x = self.bias.expand(len(categories), -1)
        if self.floats is not None:
            x = x + self.floats(floats)
        return x + sum(table(categories[:, i]) for i, table in enumerate(self.tables))


class GraphBaseline(nn.Module):
    """conv, batch norm, ReLU, dropout, residual, `layers` times; pooled; a two-layer head -> (graphs, outputs).

    schema: GraphPreprocess.arguments(). conv: "gine" (arXiv:1905.12265, with edge features) or "gcn" (arXiv:1609.02907,
    which knows no edge features). pool: "sum" or "mean". Takes what `stack` gives.
    """

    def __init__(self, schema: dict, outputs: int, conv: str = "gine", dim: int = 128, layers: int = 5,
                 pool: str = "mean", dropout: float = 0.0):
        super().__init__()
        kinds = {"gine": _gine, "gcn": lambda dim: _geometric().GCNConv(dim, dim)}
        pools = {"sum": _geometric().global_add_pool, "mean": _geometric().global_mean_pool}
        if conv not in kinds or pool not in pools:
            raise ZooError(f"baseline: conv {conv!r}, pool {pool!r}; allowed: {', '.join(kinds)} and {', '.join(pools)}")
        self.nodes = Encoder(schema["node_categories"], schema["node_floats"], dim)
        self.edges = Encoder(schema["edge_categories"], schema["edge_floats"], dim) if conv == "gine" else None
        self.convs = nn.ModuleList(kinds[conv](dim) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(layers))
        self.pool, self.dropout = pools[pool], dropout
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, outputs))

    def forward(self, batch) -> Tensor:
        x = self.nodes(batch.x_cat, batch.x_float)
        edges = () if self.edges is None else (self.edges(batch.edge_cat, batch.edge_float),)
        for conv, norm in zip(self.convs, self.norms):
            x = x + F.dropout(norm(conv(x, batch.edge_index, *edges)).relu(), self.dropout, self.training)
        return self.head(self.pool(x, batch.batch, size=batch.graphs))

    def no_weight_decay(self) -> set[str]:
        """Names of embedding tables, as of our graph model."""
        return {name for name, _ in self.named_parameters() if ".tables." in name}


class NodeGCN(nn.Module):
    """Two GCN layers with dropout before each, as in arXiv:1609.02907 section 5.2 -> (n, classes). Float features only.

    Its settings on Cora and CiteSeer: dim 16, dropout 0.5, Adam 0.01, weight decay 5e-4 on the first layer, rows normalised.
    """

    def __init__(self, floats: int, classes: int, dim: int = 16, dropout: float = 0.5):
        super().__init__()
        self.first, self.second = _geometric().GCNConv(floats, dim), _geometric().GCNConv(dim, classes)
        self.dropout = dropout

    def forward(self, graph) -> Tensor:
        x = F.dropout(graph.x_float, self.dropout, self.training)
        x = F.dropout(self.first(x, graph.edge_index).relu(), self.dropout, self.training)
        return self.second(x, graph.edge_index)


def _gine(dim: int) -> nn.Module:
    mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
    return _geometric().GINEConv(mlp, train_eps=True)
