"""The store for large collections and for object storage: a LanceDB table, searched by an index of neighbours.

Each change is one commit of LanceDB: a new manifest in one rename (one PUT on object storage), so a kill leaves the
state before or after it. Writers on this machine take turns by a lock file; on object storage `Bucket.locked` lets one
of them write, and LanceDB refuses a commit that conflicts.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval import claim, lance_table
from zoo.retrieval.files import WAIT, locked, make_folder
from zoo.retrieval.lance_filter import as_sql, text_is_in
from zoo.retrieval.store import LARGE, unique_keys
from zoo.retrieval.typed import filter_columns
from zoo.retrieval.where import Filter

TABLE = "rows"
MANY = 64  # appended pieces that are merged at once: a search opens each of them
KEPT = timedelta(minutes=10)  # an old state stays readable so long, for those who read it


class LanceStore:
    """See `Store`. Exact among few rows, else by partitions of the vectors (IVF), of which the nearest are searched.

    Rows that no partition holds yet are searched too, and a filtered search that finds too few looks at all.
    """

    def __init__(self, uri: str | Path, dim: int):
        self.uri, self.dim, self.remote = str(uri), dim, "://" in str(uri)
        self.ignored: list[tuple[str, str]] = []  # LanceDB takes what a kill left behind away itself
        self._guard, self._handle, self._pieces = threading.RLock(), None, 0
        self._keys: tuple = (None, set())  # version, its keys
        self._light: tuple = (None, None)  # version, its rows
        lance_table.lancedb()  # says how to install it where it is missing

    def append(self, rows: pa.Table) -> None:
        keys = unique_keys(rows, self.uri, self.dim)
        if not keys:
            return
        for name, values in filter_columns(rows).items():
            rows = rows.append_column(name, values)
        with self._writing():
            table = self._ready(rows.schema)
            known, rows = self._known(), lance_table.fitted(rows, table.schema)
            if known.isdisjoint(keys):  # without a look at the rows that are there
                table.add(rows)
            else:
                table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)
            known.update(keys)
            self._keys, self._pieces = (table.version, known), self._pieces + 1
            if self._pieces % MANY == 0:
                table.optimize(cleanup_older_than=KEPT)

    def delete(self, keys: Iterable[str]) -> int:
        with self._writing():
            known = self._known()
            keys = [key for key in dict.fromkeys(keys) if key in known]
            if keys:
                self._table.delete(text_is_in("key", keys))
                self._keys = self._table.version, known.difference(keys)
            return len(keys)

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        with self._reading() as table:
            if table is None:
                return pa.table({"key": pa.array([], "string")})
            if columns is not None:
                return self._scan(table, [name for name in columns if name in table.schema.names])
            version = table.version
            if self._light[0] != version:
                self._light = version, self._scan(table, lance_table.light(table))
            return self._light[1]

    def get(self, key: str) -> dict | None:
        with self._reading() as table:
            return next(iter(self._rows_of(table, key, lance_table.light(table))), None) if table else None

    def blob(self, key: str) -> bytes | None:
        with self._reading() as table:
            wanted = [name for name in ("key", "blob") if table and name in table.schema.names]
            found = self._rows_of(table, key, wanted) if table else []
        if not found:
            raise KeyError(key)
        return found[0].get("blob")

    def search(self, vector: np.ndarray, k: int, where: Filter | None = None) -> list[tuple[float, dict]]:
        with self._reading() as table:
            matches = table.count_rows() if table else 0
            if not matches:
                return []
            sql = None if where is None else as_sql(where, table.schema.names)
            matches = matches if sql is None else table.count_rows(sql)
            if not matches:
                return []
            query = np.asarray(vector, np.float32).reshape(self.dim)
            found = self._nearest(table, query, k, sql, exact=False) if matches >= LARGE else []
            enough = found and len(found) >= min(k, matches)  # k is asked for: rows may have come since they were counted
            return found if enough else self._nearest(table, query, k, sql, exact=True)

    def optimize(self) -> None:
        with self._writing():
            if self._table is None:
                return
            self._table.optimize(cleanup_older_than=KEPT)
            if len(self) >= LARGE:
                lance_table.partition(self._table)

    def info(self) -> dict:
        with self._reading() as table:
            partitions = lance_table.partitions(table) if table else 0
            unindexed = table.index_stats(lance_table.index_name(partitions)).num_unindexed_rows if partitions else 0
        if not partitions:
            return {"kind": "lance", "uri": self.uri, "search": f"exact, below {LARGE} rows"}
        probed = f"{lance_table.probes(partitions)} of {partitions} partitions"
        search = f"{probed}; exact where a filter leaves fewer than {LARGE} rows"
        return {"kind": "lance", "uri": self.uri, "search": search, "rows outside the partitions": unindexed}

    def __len__(self) -> int:
        with self._reading() as table:
            return table.count_rows() if table else 0

    def _nearest(self, table, query: np.ndarray, k: int, sql: str | None, exact: bool) -> list[tuple[float, dict]]:
        search = table.search(query, vector_column_name="vector").distance_type("cosine").with_row_id(True).limit(k)
        search = search.select([*lance_table.light(table), "_distance"])
        search = search.bypass_vector_index() if exact else search.nprobes(lance_table.probes(lance_table.partitions(table)))
        if sql is not None:
            search = search.where(sql, prefilter=True)
        found = [(round(1 - row.pop("_distance"), 6), row.pop("_rowid"), row) for row in search.to_list()]
        return [(score, row) for score, _, row in sorted(found, key=lambda one: (-one[0], one[1]))]

    def _scan(self, table, columns: list[str]) -> pa.Table:
        return table.search().select(columns).limit(None).to_arrow() if columns else pa.table({})

    def _rows_of(self, table, key: str, columns: list[str]) -> list[dict]:
        return table.search().where(text_is_in("key", [key])).select(columns).limit(1).to_list()

    def _known(self) -> set[str]:
        """All keys; under the lock. Read again only after a change by someone else."""
        if self._table is None:
            return set()
        version = self._table.version
        if self._keys[0] != version:
            self._keys = version, set(self._scan(self._table, ["key"])["key"].to_pylist())
        return self._keys[1]

    def _ready(self, schema: pa.Schema):
        """The table, with every column of `schema`; made or widened where it is not."""
        if self._table is None:
            self._handle = self._database().create_table(TABLE, schema=schema, exist_ok=True)
        new = [field.with_nullable(True) for field in schema if field.name not in self._table.schema.names]
        if new:
            self._table.add_columns(new)
        return self._table

    @property
    def _table(self):
        """The table, or None while nothing was written."""
        if self._handle is None and (self.remote or (Path(self.uri) / f"{TABLE}.lance").is_dir()):
            try:
                self._handle = self._database().open_table(TABLE)
            except ValueError as error:
                if "not found" not in str(error):
                    raise
                return None
            width = self._handle.schema.field("vector").type.list_size
            if width != self.dim:
                raise ZooError(f"{self.uri}: {width} numbers a vector; needed: {self.dim}")
        return self._handle

    def _database(self):
        return lance_table.connect(self.uri)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if not self.remote:
            make_folder(Path(self.uri))
        claim.check(self.uri)
        lock = nullcontext() if self.remote else locked(Path(self.uri) / "lock", WAIT)
        with self._guard, lock, self._told("written"):
            yield

    @contextmanager
    def _reading(self) -> Iterator:
        with self._told("read"):
            yield self._table

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:  # what LanceDB raises for all that goes wrong
            if isinstance(error, ZooError):
                raise
            why = str(error).strip().splitlines()[0][:200]
            raise ZooError(f"{self.uri}: cannot be {doing} ({why}); see: zoo index verify") from error
