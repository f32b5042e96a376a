"""From one item to one row: is it as it was, and if not, what does it hold."""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval.parts import Part, together
from zoo.retrieval.store import Store, matrix

# origin: which source of the index it is from (see `Part`). path: below the first source or absolute, in the
# file system's bytes; null for a picture out of a table (fetched
# there again) or out of memory (held: its encoded bytes are the blob). mtime in ns. meta: JSON
COLUMNS = {
    "key": pa.string(), "origin": pa.string(), "path": pa.binary(), "blob": pa.binary(), "size": pa.int64(), "mtime": pa.int64(),
    "sha256": pa.string(), "folder": pa.string(), "width": pa.int32(), "height": pa.int32(),
    "held": pa.bool_(), "captions": pa.list_(pa.string()), "meta": pa.string(),
}  # fmt: skip


@dataclass
class Entry:
    """One picture on its way into the index: decoded, or with the vector it already has."""

    key: str
    row: dict
    picture: object = None
    vector: np.ndarray | None = None
    reason: str | None = None  # why it cannot be indexed


class Reader:
    """Compares the pictures of `parts` with the rows that a store has. base: the folder that paths are written below."""

    def __init__(self, parts: list[Part], base: str | None, store: Store):
        self.items, self.base = together(parts), base
        self.origins = [part.origin for part in parts for _ in part.items.keys]
        self.held = [part.root is None for part in parts for _ in part.items.keys]
        self._store, self.dim = store, store.dim
        self.rows = store.rows().to_pylist()
        self.known = {row["key"]: row for row in self.rows}
        self.key_of = {row["sha256"]: row["key"] for row in self.rows}

    def entry(self, i: int) -> Entry | None:
        """The i-th item, read and decoded; None where its row would not change. Safe to call from threads."""
        key, source = self.items.keys[i], self.items.sources[i]
        old = self.known.get(key)
        row = self._described(i)
        try:
            if isinstance(source, Path):
                status = source.stat()
                if not stat.S_ISREG(status.st_mode):
                    return Entry(key, row, reason="not a regular file")
                row |= {"size": status.st_size, "mtime": status.st_mtime_ns}
                if _agree(old, row):
                    return None
                data = source.read_bytes()
            else:
                data = bytes(source)
                row |= {"size": len(data), "mtime": 0}
        except OSError as error:
            return Entry(key, row, reason=error.strerror or str(error))
        return self._content(key, row, data, old)

    def _described(self, i: int) -> dict:
        """The part of a row that needs no look at the file."""
        key, source, captions = self.items.keys[i], self.items.sources[i], self.items.captions
        path = None
        if isinstance(source, Path):
            below = self.base is not None and source.is_relative_to(self.base)
            path = os.fsencode(source.relative_to(self.base) if below else os.path.abspath(source))
        return {
            "key": key, "origin": self.origins[i], "path": path, "folder": key.rpartition("/")[0],
            "held": path is None and self.held[i],
            "captions": list(captions[i]) or None if captions else None,
            "meta": json.dumps(self.items.meta[i], ensure_ascii=False, default=str),
        }  # fmt: skip

    def _content(self, key: str, row: dict, data: bytes, old: dict | None) -> Entry | None:
        from zoo.preprocess import load_image

        row["sha256"] = hashlib.sha256(data).hexdigest()
        if _agree(old, row):
            return None
        row["blob"] = data if row["held"] else None
        twin = self.key_of.get(row["sha256"])
        if twin is not None:  # touched, renamed or described anew: the vector is known
            size = {name: self.known[twin][name] for name in ("width", "height")}
            return Entry(key, row | size, vector=self._vectors[twin])
        try:
            picture = load_image(data, key)
        except ZooError as error:
            return Entry(key, row, reason=str(error).removeprefix(f"{key}: "))
        return Entry(key, row | {"width": picture.width, "height": picture.height}, picture)


    @cached_property
    def _vectors(self) -> dict[str, np.ndarray]:
        found = self._store.rows(["key", "vector"])
        return dict(zip(found["key"].to_pylist(), matrix(found, self.dim)))


def _agree(old: dict | None, row: dict) -> bool:
    return old is not None and all(old.get(name) == value for name, value in row.items())


def table(entries: list[Entry]) -> pa.Table:
    """The rows of embedded entries, as a store takes them."""
    columns = {name: pa.array([entry.row[name] for entry in entries], kind) for name, kind in COLUMNS.items()}
    vectors = np.stack([entry.vector for entry in entries])
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    return pa.table(columns)
