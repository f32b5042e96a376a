"""The exact numpy store: one matrix product over vectors in memory.

On disk: immutable Parquet segments, and `segments.json`, which alone says which segments count and which of
their rows are dead. Replacing that one file is the commit, so a kill at any moment leaves the state before or
after a change, never between. What it does not list is left over from a kill: ignored, named, swept by the
next writer.
"""

import json
import threading
import warnings
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from zoo.errors import ZooError
from zoo.retrieval.files import WAIT, locked, make_folder, write_atomic
from zoo.retrieval.segments import Segment, View, open_segment, read, read_blob, read_blobs, top, write_segment
from zoo.retrieval.store import unique_keys
from zoo.retrieval.where import Filter

STATE = "segments.json"
FORMAT = 1
LARGE, MANY = 16384, 32  # rows of a segment that is merged no more; small segments that are merged at once


class NumpyStore:
    """Exact search by one matrix product, vectors in memory. Many readers, writers one after another.

    A store opened for reading sees what other processes commit at its next call.
    """

    def __init__(self, path: str | Path, dim: int):
        self.path, self.dim = Path(path), dim
        self._guard = threading.RLock()
        self._stamp, self._segments, self._torn, self._view, self._places = None, [], [], None, None
        self._refresh()

    @property
    def ignored(self) -> list[tuple[str, str]]:
        """Files in the folder whose rows do not count, with the reason."""
        with self._guard:
            self._refresh()
            return self._torn + [(name, f"not listed in {STATE}") for name in self._leftovers()]

    def append(self, rows: pa.Table) -> None:
        keys = unique_keys(rows, self.path)
        if not keys:
            return
        with self._writing():
            segment = write_segment(self.path, rows, self.dim)
            self._commit([*self._without(keys), segment])
            self._places.update((key, (segment.file, row)) for row, key in enumerate(keys))
            self._tidy(MANY)

    def delete(self, keys: Iterable[str]) -> int:
        with self._writing():
            keys = [key for key in dict.fromkeys(keys) if key in self._places]
            if keys:
                self._commit(self._without(keys))
                for key in keys:
                    del self._places[key]
                self._tidy(MANY)
            return len(keys)

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        view = self._now()
        if columns is None:
            return view.rows
        whole = view.with_vectors() if "vector" in columns else view.rows
        if "blob" in columns and len(whole):  # the one column that no view holds
            blobs = [read_blobs(self.path / s.file).take(pa.array(s.alive)) for s in view.segments]
            whole = whole.append_column("blob", pa.chunked_array(blobs))
        return whole.select([name for name in columns if name in whole.column_names])

    def get(self, key: str) -> dict | None:
        return self._now().get(key)

    def blob(self, key: str) -> bytes | None:
        with self._guard:
            self._refresh()
            file, row = self._index()[key]
            return read_blob(self.path / file, row)

    def search(self, vector: np.ndarray, k: int, where: Filter | None = None) -> list[tuple[float, dict]]:
        view = self._now()
        # BLAS sums the last rows in another order: without rounding, equal pictures would differ by one bit
        scores = np.round(view.vectors @ np.asarray(vector, np.float32).reshape(self.dim), 6)
        found = np.arange(len(scores))
        if where is not None and len(scores):
            found = np.flatnonzero(where.mask(view.column))
        best = found[top(scores[found], k)]
        rows = view.rows.take(pa.array(best, pa.int64())).to_pylist()
        return [(float(scores[i]), row) for i, row in zip(best, rows)]

    def optimize(self) -> None:
        with self._writing():
            if self._torn:
                self._commit(self._segments)
                self._sweep()
            self._tidy(2)

    def info(self) -> dict:
        return {"kind": "numpy", "search": "exact"}

    def __len__(self) -> int:
        with self._guard:
            self._refresh()
            return sum(len(s.vectors) - len(s.dead) for s in self._segments)

    def _now(self) -> View:
        with self._guard:
            self._refresh()
            if self._view is None:
                self._view = View(self._segments, self.dim)
            return self._view

    def _index(self) -> dict[str, tuple[str, int]]:
        if self._places is None:
            self._places = {}
            for s in self._segments:
                keys = s.table["key"].to_pylist()
                self._places.update((keys[row], (s.file, int(row))) for row in s.alive)
        return self._places

    @contextmanager
    def _writing(self):
        make_folder(self.path)
        with self._guard, locked(self.path / "lock", WAIT):
            self._refresh()
            self._sweep()
            self._index()
            yield

    def _without(self, keys: list[str]) -> list[Segment]:
        dead: dict[str, set[int]] = {}
        for key in keys:
            if key in self._places:
                file, row = self._places[key]
                dead.setdefault(file, set()).add(row)
        return [replace(s, dead=s.dead | dead[s.file]) if s.file in dead else s for s in self._segments]

    def _tidy(self, many: int) -> None:
        """Merge the small segments at the end once there are `many`; drop dead rows where they prevail."""
        tail = len(self._segments)
        while tail and len(self._segments[tail - 1].vectors) < LARGE:
            tail -= 1
        small = self._segments[tail:]
        groups = [[s] for s in self._segments[:tail]] + (
            [small] if len(small) >= many else [[s] for s in small]
        )
        if any(len(group) > 1 or group[0].wasteful for group in groups):
            kept = [g[0] if len(g) == 1 and not g[0].wasteful else self._rewrite(g) for g in groups]
            self._commit([s for s in kept if s is not None])
            self._places = None
            self._sweep()

    def _rewrite(self, group: list[Segment]) -> Segment | None:
        parts = [read(self.path / s.file).take(pa.array(s.alive)) for s in group if len(s.alive)]
        if not parts:
            return None
        return write_segment(self.path, pa.concat_tables(parts, promote_options="permissive"), self.dim)

    def _commit(self, segments: list[Segment]) -> None:
        listed = [{"file": s.file, "bytes": s.size, "dead": sorted(s.dead)} for s in segments]
        state = {"format": FORMAT, "dim": self.dim, "segments": listed}
        write_atomic(self.path / STATE, json.dumps(state).encode())
        self._segments, self._torn, self._view, self._stamp = segments, [], None, self._stat()

    def _stat(self) -> tuple | None:
        try:
            stat = (self.path / STATE).stat()
        except FileNotFoundError:
            return self._stamp  # nothing committed yet, or taken away: keep what is known
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _refresh(self) -> None:
        while (stamp := self._stat()) != self._stamp:
            segments, torn = self._load()
            if torn and self._stat() != stamp:
                continue  # a writer merged and swept the files while they were being read
            for name, reason in torn:
                warnings.warn(f"{self.path / name} is ignored: {reason}; build the index again", stacklevel=4)
            self._segments, self._torn, self._view, self._places, self._stamp = (
                segments,
                torn,
                None,
                None,
                stamp,
            )

    def _load(self) -> tuple[list[Segment], list[tuple[str, str]]]:
        known = {s.file: s for s in self._segments}
        segments, torn = [], []
        for entry in self._state():
            file, dead = entry["file"], frozenset(entry["dead"])
            try:
                old = known.get(file)
                new = replace(old, dead=dead) if old else open_segment(self.path / file, entry["bytes"], dead)
                segments.append(new)
            except (OSError, pa.ArrowException) as error:
                torn.append((file, str(error).splitlines()[0]))
        return segments, torn

    def _state(self) -> list[dict]:
        try:
            state = json.loads((self.path / STATE).read_bytes())
            version, dim, listed = state["format"], state["dim"], state["segments"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ZooError(f"{self.path / STATE}: damaged ({error}); build the index again") from error
        if version != FORMAT or dim != self.dim:
            raise ZooError(
                f"{self.path / STATE}: format {version} with {dim} numbers a vector; "
                f"needed: format {FORMAT} with {self.dim}"
            )
        return listed

    def _leftovers(self) -> list[str]:
        counted = {STATE, "lock", *(s.file for s in self._segments), *(name for name, _ in self._torn)}
        return sorted(p.name for p in self.path.glob("*") if p.name not in counted)

    def _sweep(self) -> None:
        """Under the lock nobody writes: unlisted segments and temporary files are what a kill left behind."""
        for name in self._leftovers():
            if name.endswith(".tmp") or name.startswith("segment-"):
                (self.path / name).unlink()
