"""Random encoded graphs and small graph models for the tests."""

import torch

from zoo.models.graph import Graph
from zoo.rawgraph import data_type

Data = data_type()
SCHEMA = {"node_categories": (5, 6), "node_floats": 3, "edge_categories": (4,), "edge_floats": 2}
SETTINGS = {
    "walks": {},
    "virtual": {"virtual_node": True, "pool": "virtual"},
    "adjacency": {"bias": "adjacency", "local": "none"},
    "distance": {"bias": "distance", "pool": "sum"},
    "directed": {"directed": True},
    "edges": {"path": "edges"},
    "edges, virtual, directed": {"path": "edges", "virtual_node": True, "directed": True},
    "edges, distance": {"path": "edges", "bias": "distance"},
    "edges, distance, virtual": {"path": "edges", "bias": "distance", "virtual_node": True},
    "edges, adjacency": {"path": "edges", "bias": "adjacency", "directed": True},
}


def graph(n: int, edges: int, seed: int = 0, both: bool = True) -> Data:
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, max(n, 1), (2, edges), generator=generator)
    cat = torch.randint(0, 4, (edges, 1), generator=generator)
    floats = torch.randn(edges, 2, generator=generator)
    if both:
        index, cat, floats = torch.cat([index, index.flip(0)], 1), cat.repeat(2, 1), floats.repeat(2, 1)
    return Data(x_cat=torch.randint(0, 5, (n, 2), generator=generator), x_float=torch.randn(n, 3, generator=generator),
                edge_index=index, edge_cat=cat, edge_float=floats)


def union(graphs: list[Data]) -> Data:
    """All graphs as one with several components."""
    first, parts = 0, []
    for g in graphs:
        parts.append(g.edge_index + first)
        first += len(g.x_cat)
    cat = {name: torch.cat([g[name] for g in graphs]) for name in ("x_cat", "x_float", "edge_cat", "edge_float")}
    return Data(edge_index=torch.cat(parts, 1), **cat)


def build(**arguments) -> Graph:
    torch.manual_seed(0)
    return Graph(**{"num_classes": 2, "dim": 16, "depth": 2, "heads": 2, "pair_dim": 8, "walks": 5, **SCHEMA, **arguments}).eval()


GRAPHS = [graph(7, 6, 1), graph(1, 0, 2), graph(0, 0, 3), graph(12, 20, 4), graph(2, 0, 5), graph(2, 1, 6), graph(1, 2, 7)]
