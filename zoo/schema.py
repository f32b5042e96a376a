"""The declared columns of a graph model's data: raw graph -> encoded graph. Stored in the Card: inference does the same."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
import torch

from zoo.columns import Category, Number, fitted, width
from zoo.errors import ZooError
from zoo.molecules import ATOMS, BONDS, is_molecule, molecule
from zoo.rawgraph import RawGraph, data_type, from_data, room

SOURCES = ("smiles", "data")
_COLUMNS = {"node_categories": Category, "node_floats": Number, "edge_categories": Category, "edge_floats": Number}


@dataclass(frozen=True)
class GraphPreprocess:
    """SMILES, RDKit Mol, torch_geometric Data or RawGraph -> encoded graph. Without arguments: molecules, fixed vocabulary.

    An encoded graph is a Data with x_cat (n, C) int64, 0 = unknown; x_float (n, F) float32; edge_index (2, E) int64;
    edge_cat (E, Ce) int64; edge_float (E, Fe) float32; key; of one big graph also y and train_mask, val_mask, test_mask (n,).
    source: "smiles" (strings are SMILES) or "data". directed: False promises that every edge has its reverse.
    Raises ZooError that names the graph, the column and both widths where a graph does not fit.
    """

    source: str = "smiles"
    node_categories: tuple[Category, ...] = tuple(Category(name, values) for name, values in ATOMS.items())
    node_floats: tuple[Number, ...] = ()
    edge_categories: tuple[Category, ...] = tuple(Category(name, values) for name, values in BONDS.items())
    edge_floats: tuple[Number, ...] = ()
    directed: bool = False

    def __post_init__(self):
        if self.source not in SOURCES:
            raise ZooError(f"preprocess: source is {self.source!r}; allowed: {', '.join(SOURCES)}")
        for key, kind in _COLUMNS.items():  # dicts come from JSON
            columns = tuple(c if isinstance(c, kind) else kind(**c) for c in getattr(self, key))
            object.__setattr__(self, key, columns)

    @classmethod
    def fit(cls, items: Iterable, scaling: str = "standard", directed: bool | None = None) -> "GraphPreprocess":
        """The schema of the training items: values that occur, means and deviations of the float columns.

        Give the training part only. Of one big graph that names its splits, only nodes of `train`, and edges that end in
        one, count. Text, integer and bool columns are categories, float columns numbers. directed None: as the graphs are.
        """
        source, graphs = None, []
        for i, item in enumerate(items):
            source = source or ("smiles" if is_molecule(item) else "data")
            graphs.append(raw_graph(item, source, f"item {i}"))
        if not graphs:
            raise ZooError("preprocess: no graphs to fit on")
        if directed is None:
            directed = any(graph.one_way() for graph in graphs)
        nodes = fitted([(graph.nodes, graph.training_nodes()) for graph in graphs], scaling)
        edges = fitted([(graph.edges, graph.training_edges()) for graph in graphs], scaling)
        return cls(source, *nodes, *edges, directed)

    def __call__(self, item, name: str | None = None):
        """The encoded graph; errors name `name`."""
        graph = raw_graph(item, self.source, name)
        self._check(graph)
        edges = graph.edge_index.shape[1]
        encoded = {"x_cat": _categories(self.node_categories, graph.nodes, graph.n),
                   "x_float": _floats(self.node_floats, graph.nodes, graph.n, graph.key),
                   "edge_index": torch.from_numpy(np.ascontiguousarray(graph.edge_index)),
                   "edge_cat": _categories(self.edge_categories, graph.edges, edges),
                   "edge_float": _floats(self.edge_floats, graph.edges, edges, graph.key)}
        if graph.y is not None:
            encoded["y"] = torch.from_numpy(np.ascontiguousarray(graph.y))
        if graph.split is not None:
            encoded |= {f"{part}_mask": torch.from_numpy(graph.split == part) for part in ("train", "val", "test")}
        return data_type()(**encoded, num_nodes=graph.n, key=graph.key)

    def arguments(self) -> dict:
        """What a graph model is built with: category sizes (unknown bucket included), numbers of floats, directed."""
        return {"node_categories": tuple(c.size for c in self.node_categories),
                "node_floats": sum(c.width for c in self.node_floats),
                "edge_categories": tuple(c.size for c in self.edge_categories),
                "edge_floats": sum(c.width for c in self.edge_floats),
                "directed": self.directed}

    def to_dict(self) -> dict:
        """Plain values for the Card."""
        columns = {key: [_plain(column) for column in getattr(self, key)] for key in _COLUMNS}
        return {"source": self.source, **columns, "directed": self.directed}

    @classmethod
    def from_dict(cls, values: dict) -> "GraphPreprocess":
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ZooError(f"preprocess: unknown key {unknown[0]!r}; allowed: {', '.join(cls.__dataclass_fields__)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ZooError(f"preprocess: {str(error).split('__init__() ')[-1]}; see zoo.columns") from error

    def _check(self, graph: RawGraph) -> None:
        """Every declared column is there, as wide as declared; of data that is not molecules, nothing else is."""
        sides = (("node", self.node_categories, self.node_floats, graph.nodes),
                 ("edge", self.edge_categories, self.edge_floats, graph.edges))
        for side, categories, floats, raw in sides:
            wanted = {number.name: number.width for number in floats}
            for category in categories:
                wanted[category.name] = wanted.get(category.name, 0) + 1
            extra = () if self.source == "smiles" else raw
            for name in dict.fromkeys((*wanted, *extra)):
                have, want = width(raw.get(name)), wanted.get(name, 0)
                if have != want:
                    raise ZooError(f"{graph.key}: {side} column {name!r} is {have} wide, but {want} in the model's schema")
        if self.source == "data" and not self.directed and (edge := graph.one_way()):
            raise ZooError(f"{graph.key}: edge {edge[0]} -> {edge[1]} has no reverse, but the schema says undirected; add it "
                           "(torch_geometric.utils.to_undirected) or fit the schema with directed=True")


def raw_graph(item, source: str, name: str | None = None) -> RawGraph:
    """An item of this source as RawGraph. ZooError names the type of an item of another kind."""
    if source == "smiles":
        if is_molecule(item):
            return molecule(item, name or "")
        raise ZooError(f"{name or 'item'}: expected SMILES or an RDKit Mol, got {type(item).__name__}")
    if isinstance(item, RawGraph):
        return item
    if isinstance(item, data_type()):
        return from_data(item, name or "graph")
    raise ZooError(f"{name or 'item'}: expected torch_geometric Data, got {type(item).__name__}")


def _categories(columns: tuple[Category, ...], raw: dict, rows: int) -> torch.Tensor:
    codes = np.zeros((rows, len(columns)), np.int64)
    for i, column in enumerate(columns):
        codes[:, i] = column.codes(raw)
    return torch.from_numpy(codes)


def _floats(columns: tuple[Number, ...], raw: dict, rows: int, key: str) -> torch.Tensor:
    room(rows, sum(column.width for column in columns), key)
    parts = [column.scaled(raw, key) for column in columns]
    joined = np.zeros((rows, 0), np.float32) if not parts else parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    return torch.from_numpy(joined)


def _plain(column: Category | Number) -> dict:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(column).items()}
