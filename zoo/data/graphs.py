"""Open graphs: tables of SMILES, torch-geometric data sets, or one big graph; with targets, with labels, or as they are."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from pathlib import Path

import torch

from zoo.data.folders import split_name
from zoo.data.items import Items, natural
from zoo.data.networks import is_network, open_network
from zoo.data.tables import TABLES, Table, tables_in
from zoo.data.targets import target_rows
from zoo.errors import ZooError
from zoo.molecules import parse
from zoo.rawgraph import RawGraph, from_data
from zoo.schema import GraphPreprocess


@dataclass
class GraphItems:
    """Graphs as parallel lists, nothing encoded yet. sources: SMILES, torch_geometric Data or RawGraph.

    targets: one row of floats per graph, NaN = missing, columns called `names`; or labels that index classes; or neither.
    """

    keys: list[str]
    sources: list
    targets: list[list[float]] | None = None
    names: list[str] | None = None
    labels: list[int] | None = None
    classes: list[str] | None = None
    meta: list[dict] = field(default_factory=list)

    captions = tags = None  # what other kinds of items may have

    def __post_init__(self):
        self.meta = self.meta or [{} for _ in self.keys]
        for name in ("sources", "targets", "labels", "meta"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.keys):
                raise ZooError(f"items: {len(values)} {name} for {len(self.keys)} keys")

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, other: "GraphItems") -> "GraphItems":
        """These items, then the others, which have the same targets or classes."""
        if (self.names, self.classes) != (other.names, other.classes):
            raise ZooError(f"items: {self.names or self.classes} and {other.names or other.classes} do not go together")
        whole = {"names": self.names, "classes": self.classes}
        lists = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.name not in whole}
        return GraphItems(**whole, **{name: None if a is None else a + b for name, (a, b) in lists.items()})

    def subset(self, indices) -> "GraphItems":
        """The items at `indices`, in that order; names and classes are kept whole."""
        whole = ("names", "classes")
        lists = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in whole}
        cut = {name: values and [values[i] for i in indices] for name, values in lists.items()}
        return replace(self, **cut)

    def relabel(self, classes: list[str]) -> "GraphItems":
        """The same items, labels indexing `classes`, matched by name. Raises ZooError if the names differ."""
        matched = Items(self.keys, self.sources, self.labels, self.classes).relabel(classes)
        return replace(self, labels=matched.labels, classes=matched.classes)

    def fingerprint(self) -> str:
        """sha256 of all that is trained on: keys, graphs, targets, labels and their names, in order."""
        parts = [self.keys, list(map(_print, self.sources)), self.targets, self.names, self.labels, self.classes]
        return hashlib.sha256(repr(parts).encode(errors="surrogateescape")).hexdigest()

    def encode(self, preprocess: GraphPreprocess) -> list:
        """Encoded graphs with key and y: (targets,) float32, or an int64 class; one big graph keeps its y (n ...)."""
        graphs = [preprocess(source, key) for source, key in zip(self.sources, self.keys)]
        for i, graph in enumerate(graphs):
            graph.key = self.keys[i]
            if self.targets is not None:
                graph.y = torch.tensor(self.targets[i], dtype=torch.float32)
            elif self.labels is not None:
                graph.y = torch.tensor(self.labels[i])
        return graphs


def open_graphs(path, split: str | None = None, split_column: str = "split", smiles: str = "smiles",
                targets: Sequence[str] = ("y",), label: str | None = None) -> GraphItems:
    """Graphs from a table of SMILES (CSV, JSONL, Parquet; or a folder of them), a data set of Data, or one big graph.

    split: a value of `split_column`, or part of a file's name; None: all. targets: columns of numbers, an empty field is a
    missing value, () leaves the graphs without. label: a column of class names instead. One big graph, undirected and with
    classes (see zoo.data.networks for others), is one item that holds the splits of its nodes: split must be None.
    Raises ZooError that names the file and row; SMILES are parsed later, see `unreadable`.
    """
    if not isinstance(path, (str, Path)):
        return from_dataset(path)
    path, targets = Path(path).expanduser(), (targets,) if isinstance(targets, str) else tuple(targets)
    if is_network(path):
        if split is not None:
            raise ZooError(f"{path}: one big graph holds the splits of its nodes; split {split!r} is a mask of it, not a part")
        graph = open_network(path, label=label or "label")
        return GraphItems([graph.key], [graph], classes=graph.classes)
    tables = _tables(path, smiles, split_column, label)
    for table in tables:
        table.need(smiles)
    parts = [_of_table(table, smiles, targets, label) for table in tables]
    if label:
        classes = sorted({name for part in parts for name in part.classes}, key=natural)
        parts = [replace(part, classes=classes, labels=[classes.index(part.classes[i]) for i in part.labels]) for part in parts]
    rows = _chosen(path, tables, split and split_name(split), split_column)
    return reduce(add, (part.subset(places) for part, places in zip(parts, rows)))


def _of_table(table: Table, smiles: str, targets: tuple[str, ...], label: str | None) -> GraphItems:
    sources = [str(value or "") for value in table.column(smiles)]  # a missing SMILES is an empty one
    items = GraphItems(table.keys, sources, meta=table.plain_rows({smiles, *targets}))
    if label:
        names = table.labels(label)
        items.classes = list(dict.fromkeys(names))
        items.labels = [items.classes.index(name) for name in names]
    elif targets:
        items.targets, items.names = target_rows(table, targets), list(targets)
    return items


def from_dataset(graphs: Iterable, key: str = "graph") -> GraphItems:
    """A list of Data or a torch_geometric data set; keys graph:0, graph:1 ...

    As torch_geometric has it, y of shape () or (1,) holds one value per graph and (1, targets) several: integers become a
    label or, if several, multi-label targets; floats become targets. Any other y has one row per node and stays in the graph.
    """
    graphs = list(graphs)
    items = GraphItems([f"{key}:{i}" for i in range(len(graphs))], graphs)
    y = [getattr(graph, "y", None) for graph in graphs]
    if not y or any(v is None or v.ndim and len(v) != 1 or v.numel() != y[0].numel() for v in y):
        return items
    if y[0].numel() == 1 and not y[0].is_floating_point():
        items.labels = [int(v) for v in y]
        items.classes = [str(i) for i in range(max(items.labels) + 1)]
    else:
        items.targets = [[float(value) for value in v.flatten()] for v in y]
        items.names = [f"y{i}" for i in range(y[0].numel())]
    return items


def splits(path: str | Path, split_column: str = "split") -> list[str]:
    """The names of the splits of a table or a folder of tables; [] where there are none, and for one big graph."""
    path = Path(path).expanduser()
    if is_network(path):
        return []
    found = {s for table in _tables(path, split_column) for s in table.row_splits(split_column) if s}
    return sorted(found, key=lambda s: (s != "train", s == "test", natural(s)))


def unreadable(items: GraphItems) -> list[tuple[str, str]]:
    """(key, reason) of every SMILES that does not parse, and every Data whose parts do not fit."""
    found = []
    for key, source in zip(items.keys, items.sources):
        try:
            if source is None or isinstance(source, str):
                parse(source, key)
            elif not isinstance(source, RawGraph):
                from_data(source, key)
        except ZooError as error:
            found.append((key, str(error).removeprefix(f"{key}: ")))
    return found


def _print(source) -> str:
    if isinstance(source, str):
        return source
    return (source if isinstance(source, RawGraph) else from_data(source)).fingerprint()


def _tables(path: Path, *text_columns: str | None) -> list[Table]:
    if not path.exists():
        raise ZooError(f"{path}: no such file or folder")
    files = [path] if path.is_file() else tables_in(path)
    if not files or files[0].suffix.lower() not in TABLES:
        raise ZooError(f"{path}: expected a table ({', '.join(sorted(TABLES))}), a folder of them, a folder with nodes.csv "
                       "and edges.csv, or an .npz")
    return [Table(file, tuple(name for name in text_columns if name)) for file in files]


def _chosen(path: Path, tables: list[Table], split: str | None, split_column: str) -> list[list[int]]:
    """The rows of each table that are in the split."""
    if split is None:
        return [list(range(table.count)) for table in tables]
    splits = [table.row_splits(split_column) for table in tables]
    rows = [[i for i, s in enumerate(part) if s == split] for part in splits]
    if not any(rows):
        have = ", ".join(sorted({s for part in splits for s in part if s})) or f"no column {split_column!r}"
        raise ZooError(f"{path}: no split {split!r} (has: {have})")
    return rows
