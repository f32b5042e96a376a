"""Where an index keeps its rows: the small protocol that every store follows, and which one is opened."""

import re
import secrets
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Protocol

import numpy as np
import pyarrow as pa

from zoo.errors import UsageError, ZooError
from zoo.retrieval.where import Filter

HEAVY = ("vector", "blob")  # columns that come only where they are named
LARGE = 20_000  # rows from which on a nearest-neighbour index pays; exact search below
KINDS = ("numpy", "lance", "milvus")


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

    uri: a local folder; for "lance" also object storage such as s3://bucket/folder; for "milvus" the server and the
    collection, http://host:19530#name. Raises UsageError for another kind, ZooError where its package is missing.
    """
    if kind == "numpy":
        from zoo.retrieval.numpy_store import NumpyStore

        return NumpyStore(uri, dim)
    if kind == "lance":
        from zoo.retrieval.lance_store import LanceStore

        return LanceStore(uri, dim)
    if kind == "milvus":
        from zoo.retrieval.milvus_store import MilvusStore

        return MilvusStore(uri, dim)
    raise UsageError(f"store {kind!r}; there are: {', '.join(KINDS)}")


def chosen(kind: str, rows: int, remote: bool) -> str:
    """The kind for a new index of about `rows` rows, or a server's address: "auto" takes numpy for few on this machine.

    Without lancedb it takes numpy for many too: exact search is right at any size, only slower.
    """
    if "://" in kind:
        from zoo.retrieval.milvus_server import checked_address

        return checked_address(kind)
    if kind not in ("auto", "numpy", "lance"):
        raise UsageError(f"--store {kind}; allowed: auto, numpy, lance, and a Milvus server such as http://host:19530")
    if remote and kind == "numpy":
        raise UsageError("--store numpy keeps its rows in a local folder; on object storage: --store lance")
    if kind != "auto":
        return kind
    return "lance" if remote or rows >= LARGE and find_spec("lancedb") else "numpy"


def described(kind: str, name: str, folder: str) -> dict:
    """What a manifest says of a new store. kind: see `chosen`; name: of the index; folder: where rows on disk would lie.

    On a server they lie in a collection that is named after the index, and told from others of that name by a number.
    Raises ZooError where no server answers, before anything is written.
    """
    if "://" not in kind:
        return {"kind": kind, "folder": folder}
    readable = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:80]
    store = {"kind": "milvus", "server": kind, "folder": f"{readable or 'index'}_{secrets.token_hex(4)}"}
    store["folder"] = re.sub(r"^(?=\d)", "_", store["folder"])
    open_store("milvus", address(store, None), 0).info()
    return store


def kind_of(store: dict) -> str:
    """As `chosen` says it, of what `described` made."""
    return store.get("server", store["kind"])


def address(store: dict, place) -> str:
    """Where the rows lie of an index at `place`, as `open_store` takes it."""
    return f"{store['server']}#{store['folder']}" if "server" in store else place.inside(store["folder"])


def drop(store: dict) -> None:
    """Take away what a store keeps on a server."""
    open_store(store["kind"], address(store, None), 0).drop()


def matrix(rows: pa.Table, dim: int) -> np.ndarray:
    """The `vector` column as (rows, dim) float32."""
    column = rows["vector"].combine_chunks()
    return np.asarray(column.flatten(), np.float32).reshape(len(column), dim)


def unique_keys(rows: pa.Table, where, dim: int | None = None) -> list[str]:
    """The keys of new rows. ZooError, about the store at `where`, where one comes twice, or vectors are not of `dim` numbers."""
    keys = rows["key"].to_pylist()
    if len(set(keys)) != len(keys):
        raise ZooError(f"{where}: a key occurs twice among {len(keys)} new rows; keys must be unique")
    width = rows.schema.field("vector").type.list_size
    if dim is not None and width != dim:
        raise ZooError(f"vectors of {width} numbers do not fit a store of {dim}")
    return keys
