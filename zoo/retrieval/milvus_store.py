"""The store on a Milvus server: a collection of its own for each index, searched exactly.

Each change is one request that the server takes as a whole or not at all, up to about 16 MiB; larger ones are several.
After it the time of the change is written on the collection: readers ask for the state of that time or later, so that
what was acknowledged is seen by everyone, and nobody waits for the server's tick of 0.2 s. Pictures out of memory lie
in pieces in a second collection, since a text of Milvus ends at 64 KiB.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval import milvus_rows as coded
from zoo.retrieval.columns import unknown_column
from zoo.retrieval.milvus_filter import as_expression, names_in, one_of, quoted
from zoo.retrieval.milvus_server import Server, as_of
from zoo.retrieval.store import unique_keys
from zoo.retrieval.where import Filter

MOST = 16_384  # results of one search that a server gives
PAGE = 2048  # entities read at once
TIES = 16  # more than asked, so that of equal scores the oldest are taken
KEPT = 600 * 10**9  # ns that the pieces of a blob stay without a row: it may be under way

ROWS = [("key", "VARCHAR", {"is_primary": True, "max_length": coded.MOST}), ("row", "VARCHAR", {"max_length": coded.MOST}),
        ("added", "INT64", {})]  # fmt: skip
PIECES = [("key", "VARCHAR", {"is_primary": True, "max_length": 128}), ("vector", "FLOAT_VECTOR", {"dim": 2}),
          ("data", "VARCHAR", {"max_length": coded.MOST}), ("added", "INT64", {})]  # fmt: skip


class MilvusStore:
    """See `Store`. uri: the server's address, "#", the collection: http://host:19530#photos_index_1f3a9c02."""

    def __init__(self, uri: str, dim: int):
        address, _, self.name = uri.rpartition("#")
        self.uri, self.dim, self.server = uri, dim, Server(address)
        self.blobs = f"{self.name}_blobs"
        self.ignored: list[tuple[str, str]] = []  # a server sweeps what a kill left behind by itself
        self._seen, self._names = False, set()

    def append(self, rows: pa.Table) -> None:
        keys = unique_keys(rows, self.uri, self.dim)
        if not keys:
            return
        blobs = rows["blob"].to_pylist() if "blob" in rows.column_names else [None] * len(keys)
        pieces = [[] if blob is None else coded.pieces(uuid.uuid4().hex, blob) for blob in blobs]
        held = [None if blob is None else [mine[0]["key"].partition(":")[0] if mine else "", len(mine)]
                for blob, mine in zip(blobs, pieces)]  # fmt: skip
        found = coded.entities(rows, held)
        if self._written() is None:
            self.server.made(self.name, [*ROWS, ("vector", "FLOAT_VECTOR", {"dim": self.dim})], dynamic=True)
        self._keep([piece for mine in pieces for piece in mine])
        for part in coded.requests(found):
            self.server.call("upsert", self.name, part)
        self.server.commit(self.name)

    def delete(self, keys: Iterable[str]) -> int:
        written = self._written()
        if written is None:
            return 0
        found = [entity["key"] for entity in self._of_keys(self.name, list(dict.fromkeys(keys)), ["key"], written)]
        for start in range(0, len(found), PAGE):
            self.server.call("delete", self.name, ids=found[start : start + PAGE])
        if found:
            self.server.commit(self.name)
        return len(found)

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        written = self._written()
        fields = ["row", "added", *(["vector"] if columns is not None and "vector" in columns else [])]
        found = [] if written is None else list(self._paged("", fields, written))
        if not found:
            return pa.table({"key": pa.array([], "string")})
        rows = coded.table(found, columns, self.dim)
        if columns is None or "blob" not in columns:
            return rows
        blobs = [self._blob(entity, written) for entity in sorted(found, key=coded.order)]
        return rows.append_column("blob", pa.array(blobs, pa.binary())).select([*rows.column_names, "blob"])

    def get(self, key: str) -> dict | None:
        found, _ = self._one(key)
        return None if found is None else coded.row_of(found)

    def blob(self, key: str) -> bytes | None:
        found, written = self._one(key)
        if found is None:
            raise KeyError(key)
        return self._blob(found, written)

    def search(self, vector: np.ndarray, k: int, where: Filter | None = None) -> list[tuple[float, dict]]:
        written = self._written()
        if written is None or not len(self):
            return []
        expression = "" if where is None else self._expression(where, written)
        if expression is None:
            return []
        query = np.asarray(vector, np.float32).reshape(self.dim)
        found = self._nearest(query, k, expression, written) if k + TIES <= MOST else self._all(query, expression, written)
        found.sort(key=lambda one: (-one[0], coded.order(one[1])))
        return [(score, coded.row_of(entity)) for score, entity in found[:k]]

    def optimize(self) -> None:
        """The server keeps house itself; here only pieces of blobs go that no row names any more."""
        written = self._written()
        if written is None or self.server.written(self.blobs) is None:
            return
        old, named = f"added < {time.time_ns() - KEPT}", set()
        there = [piece["key"] for piece in self.server.paged(self.blobs, old, [], written, PAGE)]
        for entity in self._paged("", ["row"], written):
            named.add((coded.blob_of(entity) or [""])[0])
        gone = [key for key in there if key.partition(":")[0] not in named]
        for start in range(0, len(gone), PAGE):
            self.server.call("delete", self.blobs, ids=gone[start : start + PAGE])

    def info(self) -> dict:
        version = self.server.call("get_server_version")
        return {"kind": "milvus", "uri": self.server.address, "collection": self.name, "server": version, "search": "exact"}

    def drop(self) -> None:
        """Take the collections away; what is not there is passed over."""
        for name in (self.name, self.blobs):
            self.server.call("drop_collection", name)

    def __len__(self) -> int:
        written = self._written()
        if written is None:
            return 0
        return self.server.call("query", self.name, filter="", output_fields=["count(*)"], **as_of(written))[0]["count(*)"]

    def _written(self) -> int | None:
        """The time of the last change; None while nothing was written. ZooError where the collection is another's."""
        found = self.server.written(self.name)
        if found is None and self._seen:
            raise ZooError(f"{self.uri}: the collection is gone; build the index again")
        if found is None or found[0] is None:
            return None
        self._seen = True
        width = next(int(field["params"]["dim"]) for field in found[1]["fields"] if field["name"] == "vector")
        if width != self.dim:
            raise ZooError(f"{self.uri}: {width} numbers a vector; needed: {self.dim}")
        return found[0]

    def _nearest(self, query: np.ndarray, k: int, expression: str, written: int) -> list[tuple[float, dict]]:
        """At least k, and all that are as good as the last of these."""
        limit = k + TIES
        while True:
            options = {"filter": expression, "output_fields": ["row", "added"], **as_of(written)}
            hits = self.server.call("search", self.name, [query.tolist()], limit=limit, **options)[0]
            found = [(round(hit["distance"], 6), {"key": hit["id"], **hit["entity"]}) for hit in hits]
            if len(found) < limit or found[-1][0] < found[k - 1][0] or limit == MOST:
                return found
            limit = min(4 * limit, MOST)

    def _all(self, query: np.ndarray, expression: str, written: int) -> list[tuple[float, dict]]:
        """More than a server gives at once: every match, multiplied here."""
        found = list(self._paged(expression, ["row", "added", "vector"], written))
        vectors = np.asarray([entity["vector"] for entity in found], np.float32).reshape(len(found), self.dim)
        return list(zip(np.round(vectors @ query, 6).tolist(), found))

    def _expression(self, where: Filter, written: int) -> str | None:
        """The filter as Milvus reads it, "" for all rows, None for none. UsageError for a name that no row has."""
        for name in names_in(where) - self._names:
            known = self._paged(f"json_contains(names, {quoted(name)})", [], written, 1)
            if next(known, None) is None:
                names = {one for entity in self._paged("", ["names"], written) for one in entity["names"]}
                raise unknown_column(name, names)
            self._names.add(name)
        found = as_expression(where, lambda column: self._texts(column, written))
        return {True: "", False: None}[found] if isinstance(found, bool) else found.text

    def _texts(self, column: str, written: int) -> set[str]:
        return {entity[column] for entity in self._paged(f"exists {column}", [column], written)}

    def _paged(self, expression: str, fields: list[str], written: int, page: int = PAGE) -> Iterator[dict]:
        return self.server.paged(self.name, expression, fields, written, page)

    def _of_keys(self, collection: str, keys: list[str], fields: list[str], written: int) -> Iterator[dict]:
        for start in range(0, len(keys), PAGE):
            expression = one_of("key", keys[start : start + PAGE]).text
            yield from self.server.call("query", collection, filter=expression, output_fields=fields, **as_of(written))

    def _one(self, key: str) -> tuple[dict | None, int]:
        written = self._written()
        found = [] if written is None else list(self._of_keys(self.name, [key], ["row"], written))
        return (found[0] if found else None), written

    def _keep(self, pieces: list[dict]) -> None:
        if pieces:
            self.server.made(self.blobs, PIECES, dynamic=False)
        for part in coded.requests(pieces):
            self.server.call("upsert", self.blobs, part)

    def _blob(self, entity: dict, written: int) -> bytes | None:
        held = coded.blob_of(entity)
        if held is None:
            return None
        name, count = held
        pieces = list(self._of_keys(self.blobs, [coded.piece_key(name, i) for i in range(count)], ["key", "data"], written))
        if len(pieces) != count:
            raise ZooError(f"{self.uri}: {count - len(pieces)} of {count} pieces of a picture are gone; build the index again")
        return coded.joined(pieces)
