"""Encoded graphs -> one batch: packed nodes, edges and pairs, with who sees whom.

An encoded graph is a torch_geometric Data (any object with these attributes will do) with x_cat (n C) int64, x_float (n F)
float32, edge_index (2 E) int64 (row 0 source, row 1 target; an undirected graph lists both directions), edge_cat (E Ce) int64,
edge_float (E Fe) float32; widths may be 0. Optional: y, and edge_label_index (2 m), node pairs to score at level "edge".
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.core.packed import pack, padded, similar, to_device
from zoo.core.pairs import Pairs
from zoo.core.walks import DENSE_NODES, FROM_VIRTUAL, IN_VIRTUAL, TO_VIRTUAL, Structure, structure
from zoo.errors import ZooError

PATHS = ("auto", "dense", "edges")


@dataclass(frozen=True)
class GraphBatch:
    """b graphs, N nodes one graph after another, E edges, P pairs; W walk powers, C, F, Ce, Fe columns.

    sizes (b,); graph (N,), sorted; x_cat (N C), x_float (N F); edge_index (2 E), edge_cat (E Ce), edge_float (E Fe); degree (N
    2) in, out; loops (N,): row of the pair (i, i). walks (P W), hops (P ways), edge_pair (E ways), routes (T 3), route_weight
    (T,) and edge_weight (E,), None where no edge is listed twice: see zoo.core.walks.Structure. pairs: who sees whom, over N
    nodes, then `virtual` (0 or b) virtual nodes. links (2 m): node pairs to score. y: targets, graph-level (b ...), else
    concatenated.
    """

    sizes: Tensor
    graph: Tensor
    x_cat: Tensor
    x_float: Tensor
    edge_index: Tensor
    edge_cat: Tensor
    edge_float: Tensor
    edge_pair: Tensor
    degree: Tensor
    loops: Tensor
    walks: Tensor
    hops: Tensor
    routes: Tensor
    route_weight: Tensor
    pairs: Pairs
    edge_weight: Tensor | None = None
    virtual: int = 0
    links: Tensor | None = None
    y: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def to(self, device) -> "GraphBatch":
        return to_device(self, device)


@dataclass(frozen=True)
class Collate:
    """list of encoded graphs -> GraphBatch. What a model needs is `model.collate`.

    walks: powers K; directed; virtual: one more node per graph that sees and is seen by all; routes: also edges along shortest
    paths. path: who sees whom. "dense": all nodes of a graph; "edges": along edges, and itself; "auto": edges for graphs of
    more than 512 nodes. A graph is never dropped. ZooError where all pairs would need more than limit_bytes at pair_bytes each;
    it names the way out.
    """

    walks: int = 16
    directed: bool = False
    virtual: bool = False
    routes: bool = False
    path: str = "auto"
    level: str = "graph"
    pair_bytes: int = 4096
    limit_bytes: int = 8 * 2**30

    def __call__(self, graphs: list) -> GraphBatch:
        sizes = np.array([_nodes(graph, at) for at, graph in enumerate(graphs)], np.int64)
        scopes = [self._scope(n) for n in sizes]
        whole = all(scope == "all" for scope in scopes)
        self._estimate(sizes, scopes, whole)
        parts = [self.structure(graph, scope) for graph, scope in zip(graphs, scopes)]
        first = np.concatenate([[0], sizes.cumsum()])
        query, key, hops, walks = self._pairs(parts, sizes, first)
        shift = np.concatenate([[0], np.cumsum([len(part.query) for part in parts])]).astype(np.int64)
        rows = np.arange(len(query))
        nodes = int(first[-1]) + self.virtual * len(graphs)
        if whole:
            plan = _squares(sizes, first, query, key, self.virtual)
        else:
            order = np.argsort(query, kind="stable")
            rows[order] = np.arange(len(order))  # where a pair went
            query, key, hops, walks = query[order], key[order], hops[order], walks[order]
            plan = {"offsets": _tensor(np.searchsorted(query, np.arange(nodes + 1)))}
        pairs = Pairs(_tensor(query), _tensor(key), **plan)
        edges = np.concatenate([[0], np.cumsum([len(part.edge_weight) for part in parts])]).astype(np.int64)
        weight = _join([part.edge_weight for part in parts], (0,), np.float32)
        routes = _join([part.routes + [a, e, 0] for part, a, e in zip(parts, shift, edges)], (0, 3), np.int64)
        routes[:, 0] = rows[routes[:, 0]]
        ways = 2 if self.directed else 1
        return GraphBatch(
            **_columns(graphs, first),
            sizes=torch.from_numpy(sizes),
            graph=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
            edge_pair=_tensor(rows[_join([part.edge_pair + a for part, a in zip(parts, shift)], (0, ways), np.int64)]),
            edge_weight=None if (weight == 1).all() else _tensor(weight),
            degree=_tensor(_join([part.degree for part in parts], (0, 2), np.int64)),
            loops=_tensor(rows[_join([part.loops + a for part, a in zip(parts, shift)], (0,), np.int64)]),
            walks=_tensor(walks), hops=_tensor(hops), routes=_tensor(routes),
            route_weight=_tensor(_join([part.route_weight for part in parts], (0,), np.float32)),
            pairs=pairs, virtual=len(graphs) if self.virtual else 0, y=_targets(graphs, self.level),
        )

    def structure(self, graph, scope: str) -> Structure:
        """Pair features of one graph, computed once and kept on it for as long as its edges stay the same."""
        wanted = self._wanted(scope)
        edges, kept = graph.edge_index, getattr(graph, "_structure", None)
        version = 0 if edges.is_inference() else edges._version  # tensors made in inference mode count no changes
        if kept is None or kept[:2] != (wanted, version) or kept[2] is not edges:
            kept = wanted, version, edges, self._build(edges.numpy(), len(graph.x_cat), wanted)
            graph._structure = kept  # private: torch_geometric does not batch it
        return kept[3]

    def _build(self, edges: np.ndarray, n: int, wanted: tuple) -> Structure:
        return structure(edges, n, *wanted)

    def _wanted(self, scope: str) -> tuple:
        return self.walks, self.directed, scope, self.routes

    def _scope(self, n: int) -> str:
        if self.path == "auto":
            return "all" if n <= DENSE_NODES else "edges"
        return "all" if self.path == "dense" else "edges"

    def _estimate(self, sizes: np.ndarray, scopes: list[str], whole: bool) -> None:
        full = np.array([n + self.virtual for n, scope in zip(sizes, scopes) if scope == "all"], np.int64)
        if not len(full):
            return
        need = self.pair_bytes * float(sum(padded(full[group]) for group in similar(full)) if whole else (full**2).sum())
        if need > self.limit_bytes:
            raise ZooError(
                f"{len(full)} graphs of up to {full.max()} nodes: all pairs need about {need / 2**30:.1f} GiB, "
                f"allowed are {self.limit_bytes / 2**30:.1f} GiB;\nuse smaller batches (zoo.data.buckets.PairBudget), or "
                "path='edges' for attention along edges only")

    def _pairs(self, parts: list[Structure], sizes: np.ndarray, first: np.ndarray):
        """query, key, hops, walks of all pairs: those of the graphs in order, then those with virtual nodes."""
        ways = 2 if self.directed else 1
        query = [part.query + a for part, a in zip(parts, first)]
        key = [part.key + a for part, a in zip(parts, first)]
        hops = [part.hops for part in parts]
        walks = [part.walks for part in parts]
        if self.virtual:
            nodes, graphs = np.arange(first[-1]), first[-1] + np.arange(len(sizes))
            theirs = np.repeat(graphs, sizes)
            query += [nodes, theirs, graphs]
            key += [theirs, nodes, graphs]
            codes = np.repeat([TO_VIRTUAL, FROM_VIRTUAL, IN_VIRTUAL], [len(nodes), len(nodes), len(graphs)])
            hops.append(np.repeat(codes[:, None], ways, 1))
            walks.append(np.zeros((len(codes), ways * self.walks), np.float32))
        width = ways * self.walks
        return (_join(query, (0,), np.int64), _join(key, (0,), np.int64), _join(hops, (0, ways), np.int64),
                _join(walks, (0, width), np.float32))


def _squares(sizes: np.ndarray, first: np.ndarray, query: np.ndarray, key: np.ndarray, virtual: bool) -> dict:
    """The plan of `Pairs` for graphs whose nodes all see each other; a virtual node is the last of its graph."""
    nodes, graphs = np.arange(first[-1]), np.arange(len(sizes))
    graph, local = np.repeat(graphs, sizes), nodes - np.repeat(first[:-1], sizes)
    ids = nodes
    if virtual:
        ids = np.insert(nodes, first[1:], first[-1] + graphs)
        graph, local = np.concatenate([graph, graphs]), np.concatenate([local, sizes])
    packed, cell, width = pack(sizes + virtual, ids)
    place = cell[graph][query] + local[query] * width[graph][query] + local[key]
    cells = sum(square.items * square.tokens**2 for square in packed.squares)
    in_order = len(place) == cells and (place == np.arange(cells)).all()
    return vars(packed) | {"place": None if in_order else _tensor(place)}


def _columns(graphs: list, first: np.ndarray) -> dict[str, Tensor]:
    def cat(name: str) -> Tensor:
        try:
            return torch.cat([getattr(graph, name) for graph in graphs])
        except RuntimeError as error:
            widths = sorted({getattr(graph, name).shape[1] for graph in graphs})
            raise ZooError(f"graphs of one batch have {name} of widths {widths}; encode them with one schema") from error

    columns = {name: cat(name) for name in ("x_cat", "x_float", "edge_cat", "edge_float")} if graphs else {}
    if not graphs:
        raise ZooError("a batch needs at least one graph")
    links = [getattr(graph, "edge_label_index", None) for graph in graphs]
    some = [link + int(a) for link, a in zip(links, first) if link is not None]
    columns["edge_index"] = torch.cat([graph.edge_index + int(a) for graph, a in zip(graphs, first)], 1)
    columns["links"] = torch.cat(some, 1) if some else None
    return columns


def _targets(graphs: list, level: str) -> Tensor | None:
    """y of all graphs: stacked (b ...) at level "graph" (a 0-d or (1,) y gives (b,)), else concatenated."""
    targets = [getattr(graph, "y", None) for graph in graphs]
    if any(y is None for y in targets):
        return None
    if level != "graph":
        return torch.cat(targets)
    targets = torch.stack([torch.as_tensor(y).reshape(-1) for y in targets])
    return targets.squeeze(1) if targets.shape[1] == 1 else targets


def _nodes(graph, at: int) -> int:
    """Nodes of a graph. ZooError where its parts do not fit together."""
    n, index, batch = len(graph.x_cat), graph.edge_index, getattr(graph, "batch", None)
    if batch is not None and len(batch) and bool((batch != batch[0]).any()):
        raise ZooError(f"item {at} of the batch holds several graphs ({int(batch.max()) + 1}); take Batch.to_data_list")
    if len(graph.x_float) != n:
        raise ZooError(f"graph {at}: x_cat has {n} nodes, x_float {len(graph.x_float)}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < n:
        bad = int(index.max()) if int(index.max()) >= n else int(index.min())
        raise ZooError(f"graph {at}: edge_index holds {bad}, but there are {n} nodes (0 .. {n - 1})")
    for name in ("edge_cat", "edge_float"):
        if len(getattr(graph, name)) != index.shape[1]:
            raise ZooError(f"graph {at}: {name} has {len(getattr(graph, name))} rows for {index.shape[1]} edges")
    return n


def _join(parts: list[np.ndarray], empty: tuple[int, ...], dtype) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(empty, dtype)


def _tensor(value) -> Tensor | None:
    return None if value is None else torch.from_numpy(np.ascontiguousarray(value))
