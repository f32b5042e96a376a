"""Rows of an index as a Milvus collection holds them, and back.

An entity is the key, the vector, `added` (which orders equal scores and all rows), `row`: every other column as JSON,
each under its name and type; and for filters, in the dynamic field, the typed columns and the `names` it has.
"""

import base64
import json
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval.milvus_filter import INFINITE
from zoo.retrieval.store import HEAVY
from zoo.retrieval.typed import filter_columns, name_of

MOST = 65_535  # bytes of a text, and of the dynamic field
PIECE = 49_149  # bytes of a blob in one text, as base64
REQUEST = 16 * 2**20  # bytes sent at once; a server takes 64 MiB
TYPES = {
    "string": pa.string(), "binary": pa.binary(), "bool": pa.bool_(), "int32": pa.int32(), "int64": pa.int64(),
    "double": pa.float64(), "null": pa.null(), "strings": pa.list_(pa.string()),
}  # fmt: skip


def entities(rows: pa.Table, blobs: Sequence[tuple | None]) -> list[dict]:
    """blobs: of each row where its blob is kept, as `pieces` says it; or None."""
    kinds = {field.name: _kind(field) for field in rows.schema if field.name not in HEAVY}
    flat = {name: values.to_pylist() for name, values in filter_columns(rows).items()}
    vectors = np.asarray(rows["vector"].combine_chunks().flatten(), np.float32).reshape(len(rows), -1)
    light, now, found = rows.select(list(kinds)).to_pylist(), time.time_ns(), []
    for place, row in enumerate(light):
        held = {f"{name}:{kinds[name]}": _plain(value) for name, value in row.items()} | {"blob:": blobs[place]}
        seen = {name: _finite(values[place]) for name, values in flat.items() if values[place] is not None}
        names = sorted({name_of(name) for name in flat})
        text, dynamic = json.dumps(held, ensure_ascii=False), seen | {"names": names}
        for size in (len(text.encode()), len(json.dumps(dynamic, ensure_ascii=False).encode())):
            if size > MOST:
                raise ZooError(f"{row['key']}: its metadata are {size} bytes; Milvus keeps {MOST} of a row")
        found.append({"key": row["key"], "vector": vectors[place], "row": text, "added": now + place, **dynamic})
    return found


def table(found: list[dict], columns: Sequence[str] | None, dim: int) -> pa.Table:
    """The rows of entities, oldest first; columns as `Store.rows` takes them, but for blobs."""
    found = sorted(found, key=order)
    rows = [_named(entity) for entity in found]
    kinds: dict[str, str] = {}
    for row in rows:
        for name, (kind, _) in row.items():
            kinds[name] = kind if kinds.get(name, "null") == "null" else kinds[name]
    wanted = [name for name in kinds if name != "blob"] if columns is None else columns
    made = {}
    for name in wanted:
        if name == "vector":
            flat = np.asarray([entity["vector"] for entity in found], np.float32).ravel()
            made[name] = pa.FixedSizeListArray.from_arrays(pa.array(flat), dim)
        elif name in kinds:
            made[name] = pa.array([row.get(name, ("", None))[1] for row in rows], TYPES[kinds[name]])
    return pa.table(made)


def row_of(entity: dict) -> dict:
    """The light columns of one entity."""
    return {name: value for name, (_, value) in _named(entity).items()}


def blob_of(entity: dict) -> tuple[str, int] | None:
    """The name and the number of the pieces of its blob."""
    return json.loads(entity["row"])["blob:"]


def order(entity: dict) -> tuple:
    return entity["added"], entity["key"]


def pieces(name: str, blob: bytes) -> list[dict]:
    """Entities that hold a blob under `name`."""
    parts = [blob[start : start + PIECE] for start in range(0, len(blob), PIECE)]
    now = time.time_ns()
    return [{"key": piece_key(name, i), "vector": [1.0, 0.0], "data": base64.b64encode(part).decode(), "added": now}
            for i, part in enumerate(parts)]  # fmt: skip


def piece_key(name: str, number: int) -> str:
    return f"{name}:{number:06d}"


def joined(found: list[dict]) -> bytes:
    return b"".join(base64.b64decode(piece["data"]) for piece in sorted(found, key=lambda piece: piece["key"]))


def requests(found: list[dict]) -> Iterator[list[dict]]:
    """In parts of not much more than REQUEST bytes: mostly all at once."""
    part, size = [], 0
    for entity in found:
        mine = sum(4 * len(v) if not isinstance(v, (str, int, float)) else len(str(v)) for v in entity.values())
        if part and size + mine > REQUEST:
            yield part
            part, size = [], 0
        part.append(entity)
        size += mine
    if part:
        yield part


def _kind(field: pa.Field) -> str:
    for kind, wanted in TYPES.items():
        if field.type == wanted or kind == "strings" and pa.types.is_list(field.type):
            return kind
    raise ZooError(f"column {field.name!r}: Milvus rows keep no {field.type}; cast it to one of: {', '.join(TYPES)}")


def _plain(value):
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _finite(value):
    """Infinite numbers as `milvus_filter` looks for them."""
    if isinstance(value, float) and math.isinf(value):
        return INFINITE if value > 0 else f"-{INFINITE}"
    return value


def _named(entity: dict) -> dict[str, tuple[str, object]]:
    found = {}
    for label, value in json.loads(entity["row"]).items():
        name, _, kind = label.rpartition(":")
        if name != "blob":
            found[name] = kind, base64.b64decode(value) if kind == "binary" and value is not None else value
    return found
