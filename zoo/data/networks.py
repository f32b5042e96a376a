"""One big graph: nodes.csv and edges.csv in a folder, or the arrays of an .npz. No pickle is opened."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from zoo.data.arrays import read_arrays
from zoo.data.folders import split_name
from zoo.data.items import natural
from zoo.data.tables import TABLES, Table, is_text
from zoo.data.targets import target_rows
from zoo.errors import ZooError
from zoo.rawgraph import RawGraph, room

MOST_CLASSES = 10**6
_KINDS = {  # array -> (axes, kinds of numpy, in words)
    "x": ((1, 2), "fiub", "numbers"), "y": ((1, 2), "fiub", "numbers"), "split": ((1,), "US", "text"),
    "edge_attr": ((1, 2), "fiub", "numbers"), "feat_row": ((1,), "iu", "integers"), "feat_col": ((1,), "iu", "integers"),
    "feat_value": ((0, 1), "fiub", "numbers"), "num_features": ((0,), "iu", "an integer"),
}


def is_network(path: Path) -> bool:
    """An .npz, or a folder with a table called nodes."""
    return path.suffix.lower() == ".npz" or path.is_dir() and _table(path, "nodes") is not None


def open_network(path: str | Path, directed: bool = False, label: str = "label", targets: Sequence[str] = (),
                 categories: Sequence[str] = ()) -> RawGraph:
    """The graph at `path`, with y and the split of each node where they are given.

    folder  nodes.csv: id, features, `label` or `targets`, split; edges.csv: source, target, features. Text, bool and the columns
            named in `categories` are categories, all other numbers floats (an empty field is a missing value).
    .npz    edge_index (2, E), x (n, F) or feat_row, feat_col[, feat_value], num_features for sparse ones, y, split (n,).
    directed: False adds the reverse of every edge that has none.
    Raises ZooError naming the file, the row and the value.
    """
    path = Path(path).expanduser()
    graph = _from_arrays(path) if path.suffix.lower() == ".npz" else _from_tables(path, label, targets, categories)
    return graph if directed else graph.both_ways()


def _from_tables(folder: Path, label: str, targets: Sequence[str], categories: Sequence[str]) -> RawGraph:
    nodes, edges = (_table(folder, name) for name in ("nodes", "edges"))
    if nodes is None or edges is None:
        raise ZooError(f"{folder}: no {'edges' if nodes else 'nodes'}.csv; one big graph needs nodes.csv and edges.csv")
    nodes = Table(nodes, ("id", label))
    edges = Table(edges, ("source", "target"))
    position = _positions(nodes)
    ends = [_ends(edges, name, position) for name in ("source", "target")]
    y, classes = _answers(nodes, label, targets)
    split = None
    if "split" in nodes.columns:
        split = np.array([word or "" for word in nodes.row_splits()])
    return RawGraph(nodes.count, np.array(ends, np.int64).reshape(2, -1),
                    _features(nodes, {"id", label, "split", *targets}, categories),
                    _features(edges, {"source", "target"}, categories), y, split, classes, folder.name)


def _table(folder: Path, name: str) -> Path | None:
    return next((file for suffix in sorted(TABLES) if (file := folder / f"{name}{suffix}").is_file()), None)


def _positions(nodes: Table) -> dict[str, int]:
    position: dict[str, int] = {}
    for row, name in enumerate(map(str, nodes.column("id"))):
        if position.setdefault(name, row) != row:
            raise ZooError(f"{nodes.file.name}:{row}: node id {name!r} is already in row {position[name]}")
    return position


def _ends(edges: Table, column: str, position: dict[str, int]) -> list[int]:
    ends = [position.get(str(name), -1) for name in edges.column(column)]
    if -1 in ends:
        row = ends.index(-1)
        raise ZooError(f"{edges.file.name}:{row}: {column} is {str(edges.column(column)[row])!r}, no id in the node table")
    return ends


def _features(table: Table, without: set, categories: Sequence[str]) -> dict:
    """Lists of categories, arrays (rows, 1) of floats."""
    columns = {}
    for kind in table.schema:
        if kind.name in without:
            continue
        values = table.column(kind.name)
        if is_text(kind.type) or pa.types.is_boolean(kind.type) or kind.name in categories:
            columns[kind.name] = values
        elif pa.types.is_integer(kind.type) or pa.types.is_floating(kind.type):
            numbers = [np.nan if v is None else v for v in values]
            columns[kind.name] = np.array(numbers, np.float32).reshape(-1, 1)
        elif not pa.types.is_null(kind.type):
            raise ZooError(f"{table.file}: column {kind.name!r} holds {kind.type}; features are text, bools or numbers")
    return columns


def _answers(nodes: Table, label: str, targets: Sequence[str]) -> tuple[np.ndarray | None, list[str] | None]:
    if targets:
        return np.array(target_rows(nodes, targets), np.float32).reshape(-1, len(targets)), None
    if label not in nodes.columns:
        return None, None
    values = ["" if v is None else str(v) for v in nodes.column(label)]
    classes = sorted(set(values) - {""}, key=natural)
    position = {name: i for i, name in enumerate(classes)}
    return np.array([position.get(value, -1) for value in values], np.int64), classes


def _from_arrays(file: Path) -> RawGraph:
    arrays = read_arrays(file)
    if "edge_index" not in arrays:
        raise ZooError(f"{file}: no array edge_index (has: {', '.join(arrays)})")
    _check_kinds(file, arrays)
    n = _node_count(file, arrays)
    x = arrays["x"] if "x" in arrays else _scattered(file, arrays, n)
    y = arrays.get("y")
    classes = None
    if y is not None and np.issubdtype(y.dtype, np.integer):
        if (most := int(y.max(initial=-1))) >= MOST_CLASSES or y.ndim != 1:
            raise ZooError(f"{file}: y has shape {y.shape} and values up to {most}; classes are (n,), 0 to {MOST_CLASSES - 1}")
        y, classes = y.astype(np.int64), [str(i) for i in range(int(y.max(initial=-1)) + 1)]
    elif y is not None:
        y = y.astype(np.float32)
    split = arrays.get("split")
    if split is not None:
        split = np.array(["" if str(word) == "none" else split_name(str(word)) for word in split])
    nodes = {} if x is None else {"x": _two_axes(x)}
    edges = {"edge_attr": _two_axes(arrays["edge_attr"])} if "edge_attr" in arrays else {}
    return RawGraph(n, arrays["edge_index"], nodes, edges, y, split, classes, file.name)


def _check_kinds(file: Path, arrays: dict) -> None:
    """ZooError for an array of another type or number of axes than its name says."""
    for name, (axes, kinds, what) in _KINDS.items():
        array = arrays.get(name)
        if array is not None and (array.ndim not in axes or array.dtype.kind not in kinds):
            allowed = " or ".join(map(str, axes))
            raise ZooError(f"{file}: {name} has shape {array.shape} and type {array.dtype}; expected {what} with {allowed} axes")


def _two_axes(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


def _node_count(file: Path, arrays: dict) -> int:
    """Rows of x, y or split, which must agree; the edges are not asked."""
    counts = {name: len(arrays[name]) for name in ("x", "y", "split") if name in arrays}
    if len(set(counts.values())) != 1:
        raise ZooError(f"{file}: the number of nodes is not clear from x, y and split: {counts or 'none is there'}")
    return next(iter(counts.values()))


def _scattered(file: Path, arrays: dict, n: int) -> np.ndarray | None:
    """Dense (n, num_features) float32 from the places of the entries that are not 0."""
    if "feat_row" not in arrays:
        return None
    if missing := {"feat_col", "num_features"} - arrays.keys():
        raise ZooError(f"{file}: feat_row without {' and '.join(sorted(missing))}")
    wide = max(0, int(arrays["num_features"]))
    room(n, wide, str(file))
    rows, columns = arrays["feat_row"], arrays["feat_col"]
    if len(rows) != len(columns):
        raise ZooError(f"{file}: feat_row has {len(rows)} entries and feat_col {len(columns)}; there is one of each per entry")
    for name, values, size in (("feat_row", rows, n), ("feat_col", columns, wide)):
        if len(values) and not (0 <= values.min() and values.max() < size):
            raise ZooError(f"{file}: {name} runs from {values.min()} to {values.max()}; allowed: 0 to {size - 1}")
    x = np.zeros((n, wide), np.float32)
    values = arrays.get("feat_value", np.ones((), np.float32))
    if values.ndim and len(values) != len(rows):
        raise ZooError(f"{file}: feat_value has {len(values)} entries, feat_row {len(rows)}")
    x[rows, columns] = values
    return x
