"""Immutable Parquet segments of rows with vectors, and the joined view of the live rows among them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zoo.errors import ZooError
from zoo.retrieval.columns import HIDDEN, filterable, metadata, unknown_column
from zoo.retrieval.files import write_atomic
from zoo.retrieval.store import HEAVY

GROUP = 256  # rows read together when one blob is wanted


@dataclass(frozen=True)
class Segment:
    """One immutable Parquet file, and which of its rows are dead."""

    file: str
    size: int  # bytes; fewer on disk: torn
    table: pa.Table = field(repr=False, compare=False)
    vectors: np.ndarray = field(repr=False, compare=False)
    dead: frozenset[int] = frozenset()

    @property
    def alive(self) -> np.ndarray:
        return np.setdiff1d(np.arange(len(self.vectors)), list(self.dead))

    @property
    def wasteful(self) -> bool:
        return 2 * len(self.dead) > len(self.vectors)


class View:
    """All live rows at one moment, joined; never changes."""

    def __init__(self, segments: Sequence[Segment], dim: int):
        self.segments, self.dim = tuple(segments), dim
        self._columns: dict[str, list] = {}

    @cached_property
    def rows(self) -> pa.Table:
        parts = [s.table.take(pa.array(s.alive)) if s.dead else s.table for s in self.segments]
        empty = pa.table({"key": pa.array([], "string")})
        return pa.concat_tables(parts, promote_options="permissive") if parts else empty

    @cached_property
    def vectors(self) -> np.ndarray:
        parts = [s.vectors[s.alive] if s.dead else s.vectors for s in self.segments]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), np.float32)

    def with_vectors(self) -> pa.Table:
        values = pa.array(self.vectors.ravel())
        return self.rows.append_column("vector", pa.FixedSizeListArray.from_arrays(values, self.dim))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {key: place for place, key in enumerate(self.rows["key"].to_pylist())}

    def get(self, key: str) -> dict | None:
        place = self._places.get(key)
        return None if place is None else self.rows.slice(place, 1).to_pylist()[0]

    @cached_property
    def _meta(self) -> list[dict]:
        return metadata(self.rows)

    def column(self, name: str) -> list:
        """What a filter sees of a column; see `filterable`. UsageError for one that no row has."""
        if name not in self._columns:
            known = set(self.rows.column_names).difference(HIDDEN).union(*self._meta)
            if name not in known:
                raise unknown_column(name, known)
            self._columns[name] = filterable(self.rows, self._meta, name)
        return self._columns[name]


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the min(k, n) largest of `scores` (n,), best first, equal ones in order of position."""
    k = min(k, len(scores))
    if k <= 0:
        return np.zeros(0, np.int64)
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    chosen = np.concatenate([above, equal[: k - len(above)]])
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def write_segment(folder: Path, rows: pa.Table, dim: int) -> Segment:
    """Write `rows` to a new file, durable on return; nothing counts it yet."""
    rows = rows.set_column(rows.column_names.index("vector"), "vector", _packed(rows["vector"], dim))
    sink = io.BytesIO()
    # compression and dictionaries cost time and save nothing on vectors and encoded pictures
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(rows, sink, row_group_size=GROUP, write_page_checksum=True, **plain)
    file = f"segment-{uuid4().hex}.parquet"
    write_atomic(folder / file, sink.getbuffer())
    return _segment(file, sink.getbuffer().nbytes, rows, frozenset())


def open_segment(path: Path, size: int, dead: frozenset[int]) -> Segment:
    """Raises OSError or pyarrow's errors where the file is gone, shorter than `size` or damaged."""
    found = path.stat().st_size
    if found != size:
        raise OSError(f"{found} of {size} bytes")
    return _segment(path.name, size, read(path, leave=("blob",)), dead)


def read(path: Path, leave: Sequence[str] = ()) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        return parquet.read(columns=[name for name in parquet.schema_arrow.names if name not in leave])


def read_blobs(path: Path) -> pa.Array:
    """The `blob` of every row, the dead ones' too."""
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        if "blob" not in parquet.schema_arrow.names:
            return pa.nulls(parquet.metadata.num_rows, pa.binary())
        return parquet.read(columns=["blob"])["blob"].combine_chunks()


def read_blob(path: Path, row: int) -> bytes | None:
    """One row's `blob`, reading only the row group that holds it."""
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        if "blob" not in parquet.schema_arrow.names:
            return None
        return parquet.read_row_group(row // GROUP, columns=["blob"])["blob"][row % GROUP].as_py()


def _segment(file: str, size: int, rows: pa.Table, dead: frozenset[int]) -> Segment:
    packed = rows["vector"].combine_chunks()
    dim = packed.type.byte_width // 4
    vectors = np.frombuffer(packed.buffers()[1], "<f4", len(packed) * dim, packed.offset * dim * 4)
    table = rows.drop_columns([name for name in HEAVY if name in rows.column_names])
    return Segment(file, size, table, vectors.reshape(-1, dim), dead)


def _packed(vectors: pa.ChunkedArray, dim: int) -> pa.Array:
    """As plain bytes a segment opens ten times faster than as Parquet's lists of numbers."""
    vectors = vectors.combine_chunks()
    if pa.types.is_fixed_size_binary(vectors.type):
        return vectors
    if vectors.type.list_size != dim:
        raise ZooError(f"vectors of {vectors.type.list_size} numbers do not fit a store of {dim}")
    data = np.ascontiguousarray(vectors.flatten().to_numpy(), "<f4")
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4 * dim), len(vectors), [None, pa.py_buffer(data)])
