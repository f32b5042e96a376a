"""Where an index keeps its rows: the small protocol that every store follows, and which one is opened."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import pyarrow as pa

from zoo.errors import UsageError
from zoo.retrieval.where import Filter

HEAVY = ("vector", "blob")  # columns that come only where they are named
LARGE = 20_000  # rows from which on a nearest-neighbour index pays; exact search below
KINDS = ("numpy", "lance")


class Store(Protocol):
    """Rows with a unique string `key`, a unit `vector` (fixed_size_list of float32) and any other columns.

    Many readers, writers one after another, in any number of processes. A reader sees what others commit at
    its next call, and each call sees one state. A kill leaves the state before or after a change.
    """

    ignored: list[tuple[str, str]]  # files that hold no counted rows: (name, reason)

    def append(self, rows: pa.Table) -> None:
        """Add rows; one whose key exists replaces the old one. Durable and visible as a whole on return."""

    def delete(self, keys: Iterable[str]) -> int:
        """Remove the rows of `keys`; unknown keys are passed over. Returns how many went."""

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, with these columns of theirs; by default all but the HEAVY ones."""

    def get(self, key: str) -> dict | None:
        """One row without its HEAVY columns, or None where there is none."""

    def blob(self, key: str) -> bytes | None:
        """The `blob` column of one row. KeyError where there is no such row."""

    def search(self, vector: np.ndarray, k: int, where: Filter | None = None) -> list[tuple[float, dict]]:
        """(score, row) of min(k, matches) rows of large product with `vector` (dim,), best first.

        Exact among fewer than LARGE rows and under a filter that leaves fewer. The order of equal scores is fixed.
        """

    def optimize(self) -> None:
        """Housekeeping after many changes; alters no exact answer."""

    def info(self) -> dict:
        """Plain values: kind, and what its search does."""

    def __len__(self) -> int: ...


def open_store(kind: str, uri: str, dim: int) -> Store:
    """The store of that kind (KINDS) at `uri`, for vectors of `dim` numbers; nothing is written yet.

    uri: a local folder; for "lance" also object storage such as s3://bucket/folder. Raises UsageError for another
    kind, ZooError where its package is missing.
    """
    if kind == "numpy":
        from zoo.retrieval.numpy_store import NumpyStore

        return NumpyStore(uri, dim)
    if kind == "lance":
        from zoo.retrieval.lance_store import LanceStore

        return LanceStore(uri, dim)
    raise UsageError(f"store {kind!r}; there are: {', '.join(KINDS)}")


def chosen(kind: str, rows: int, remote: bool) -> str:
    """The kind for a new index of about `rows` rows: "auto" takes numpy for few of them on this machine.

    Without lancedb it takes numpy for many too: exact search is right at any size, only slower.
    """
    if kind not in ("auto", *KINDS):
        raise UsageError(f"--store {kind}; allowed: auto, {', '.join(KINDS)}")
    if remote and kind == "numpy":
        raise UsageError("--store numpy keeps its rows in a local folder; on object storage: --store lance")
    if kind != "auto":
        return kind
    return "lance" if remote or rows >= LARGE and find_spec("lancedb") else "numpy"


def matrix(rows: pa.Table, dim: int) -> np.ndarray:
    """The `vector` column as (rows, dim) float32."""
    column = rows["vector"].combine_chunks()
    return np.asarray(column.flatten(), np.float32).reshape(len(column), dim)
