"""A graph as it comes: named columns of nodes and edges, whatever it comes from, not yet numbers for a model."""

import hashlib
import warnings
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from zoo.errors import ZooError

GIB = 2**30
ROOM = 8 * GIB  # of dense float32 node features


@cache
def data_type():
    """The class torch_geometric.data.Data. ZooError with the pip command where the package is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its own use of torch.jit
            from torch_geometric.data import Data
    except ImportError as error:
        raise ZooError("graphs need torch-geometric: pip install 'zoo-attention[graph]'") from error
    return Data


@dataclass
class RawGraph:
    """n nodes and E edges with raw columns.

    edge_index (2, E) int64, source and target; an undirected graph holds both directions of each edge.
    nodes, edges: name -> list (n) of any plain values, or array (n, width). Of one big graph also: y, (n,) int64 classes
    (-1: missing) or (n, targets) float32 (NaN: missing); split, (n,) words, "" in none.
    Raises ZooError naming `key` where an edge points at no node, or a column is not one row per node or edge.
    """

    n: int
    edge_index: np.ndarray
    nodes: dict = field(default_factory=dict)
    edges: dict = field(default_factory=dict)
    y: np.ndarray | None = None
    split: np.ndarray | None = None
    classes: list[str] | None = None
    key: str = "graph"

    def __post_init__(self):
        self.edge_index = _checked_edges(self.edge_index, self.n, self.key)
        count = self.edge_index.shape[1]
        for columns, rows, what in ((self.nodes, self.n, "nodes"), (self.edges, count, "edges")):
            for name, values in columns.items():
                if len(values) != rows:
                    raise ZooError(f"{self.key}: {name} has {len(values)} rows for {rows} {what}")

    def fingerprint(self) -> str:
        """sha256 of edges, columns, y and split."""
        found = hashlib.sha256()
        for part in (self.edge_index, *self.nodes.items(), *self.edges.items(), self.y, self.split):
            name, values = part if isinstance(part, tuple) else ("", part)
            content = np.ascontiguousarray(values).tobytes() if isinstance(values, np.ndarray) else repr(values).encode()
            found.update(name.encode() + content)
        return found.hexdigest()

    def training_nodes(self) -> np.ndarray | slice:
        """Rows of the nodes that statistics may be fitted on: those of the split `train`, or all where there are no splits."""
        return slice(None) if self.split is None else np.flatnonzero(self.split == "train")

    def training_edges(self) -> np.ndarray | slice:
        """Rows of the edges that end in a training node."""
        return slice(None) if self.split is None else np.flatnonzero(self.split[self.edge_index[1]] == "train")

    def one_way(self) -> tuple[int, int] | None:
        """The first edge (source, target) without its reverse; None where all edges go both ways."""
        there, back = _numbers(self.edge_index, self.n)
        missing = np.flatnonzero(~np.isin(back, there))
        return tuple(self.edge_index[:, missing[0]].tolist()) if len(missing) else None

    def both_ways(self) -> "RawGraph":
        """The same graph with the reverse, of equal columns, of every edge that has none."""
        there, back = _numbers(self.edge_index, self.n)
        missing = np.flatnonzero(~np.isin(back, there))
        _, first = np.unique(back[missing], return_index=True)  # the same one-way edge given twice stays one reverse
        rows = np.concatenate([np.arange(len(there)), missing[np.sort(first)]])
        edge_index = np.concatenate([self.edge_index, self.edge_index[::-1, rows[len(there):]]], axis=1)
        edges = {name: _take(values, rows) for name, values in self.edges.items()}
        return RawGraph(self.n, edge_index, self.nodes, edges, self.y, self.split, self.classes, self.key)


def from_data(data, key: str = "graph") -> RawGraph:
    """A torch_geometric Data as RawGraph: x, edge_attr, edge_weight as columns of these names; y; masks as split.

    The number of nodes is that of x, or the num_nodes that was set; it is never guessed from the edges.
    edge_attr (E,) is taken as (E, 1).
    """
    given = {name: _array(data, name, key) for name in ("x", "edge_attr", "edge_weight")}
    given = {name: values for name, values in given.items() if values is not None}
    n = _node_count(data, given.get("x"), key)
    edge_index = data.edge_index
    edges = np.zeros((2, 0), np.int64) if edge_index is None else edge_index.detach().cpu().numpy()
    nodes = {"x": given.pop("x")} if "x" in given else {}
    graph = RawGraph(n, edges, nodes, given, key=key)
    if getattr(data, "y", None) is not None:
        y = data.y.detach().cpu().numpy()
        graph.y = y.astype(np.float32 if np.issubdtype(y.dtype, np.floating) else np.int64)
    graph.split = _masks(data, n, key)
    return graph


def room(n: int, width: int, key: str) -> None:
    """ZooError where dense float32 features (n, width) take more than 8 GiB."""
    if 4 * n * width > ROOM:
        raise ZooError(f"{key}: {n} nodes x {width} features take {4 * n * width / GIB:.1f} GiB as float32, more than "
                       f"{ROOM // GIB} GiB; use fewer features, e.g. a random or SVD projection to 256")


def _node_count(data, x: np.ndarray | None, key: str) -> int:
    if x is not None:
        return len(x)
    if "num_nodes" not in data:
        raise ZooError(f"{key}: neither x nor num_nodes is set; edges do not tell how many nodes there are: set data.num_nodes")
    return int(data.num_nodes)


def _array(data, name: str, key: str) -> np.ndarray | None:
    """(rows, width), from a vector too."""
    values = getattr(data, name, None)
    if values is None:
        return None
    values = values.detach().cpu()
    if str(values.layout) != "torch.strided":  # sparse features
        room(*values.shape, key)
        values = values.to_dense()
    if values.ndim not in (1, 2):
        raise ZooError(f"{key}: {name} has shape {tuple(values.shape)}; expected one row per node or edge: (rows, columns)")
    return (values[:, None] if values.ndim == 1 else values).numpy()


def _masks(data, n: int, key: str) -> np.ndarray | None:
    split = None
    for name in ("train", "val", "test"):
        mask = getattr(data, f"{name}_mask", None)
        if mask is None:
            continue
        if tuple(mask.shape) != (n,):
            raise ZooError(f"{key}: {name}_mask has shape {tuple(mask.shape)} for {n} nodes; "
                           f"of several splits choose one: data.{name}_mask[:, 0]")
        split = np.full(n, "", dtype="<U5") if split is None else split
        split[mask.cpu().numpy()] = name
    return split


def _checked_edges(edge_index, n: int, key: str) -> np.ndarray:
    edges = np.asarray(edge_index)
    if edges.ndim != 2 or len(edges) != 2:
        raise ZooError(f"{key}: edge_index has shape {edges.shape}; expected (2, edges)")
    if edges.size and not np.issubdtype(edges.dtype, np.integer):
        raise ZooError(f"{key}: edge_index holds {edges.dtype}; expected integers")
    outside = edges[(edges < 0) | (edges >= n)]
    if len(outside):
        raise ZooError(f"{key}: edge_index points at node {outside[0]}, but there are {n} nodes (0 to {n - 1})")
    return edges.astype(np.int64, copy=False)


def _numbers(edges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """One number an edge, and the one its reverse would have."""
    return edges[0] * n + edges[1], edges[1] * n + edges[0]


def _take(values, rows: np.ndarray):
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]
