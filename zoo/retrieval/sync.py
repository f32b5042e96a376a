"""One pass over pictures: embed what is new, store it, drop what is gone, name what is bad."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields

import numpy as np

from zoo import crew
from zoo.errors import ZooError
from zoo.retrieval.index import embedded
from zoo.retrieval.parts import FIRST, Part, base
from zoo.retrieval.rows import Entry, Reader, table

PIXELS = 48_000_000  # decoded at once: four photographs of 12 million pixels, or a batch of small pictures


@dataclass
class Report:
    """What a pass did. bad: (key, reason) of the pictures that are not in the index."""

    added: int = 0
    unchanged: int = 0
    removed: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    changed: int = 0

    def __add__(self, other: "Report") -> "Report":
        return Report(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class Sync:
    """One pass over the items. Decoding runs ahead in threads; embedding and writing in the caller's.

    Of several processes (zoo.crew) each embeds the pictures whose keys are its own and commits their rows itself, so that a
    finished batch is durable whoever dies; the first one alone takes rows away.
    """

    def __init__(self, index, parts: list[Part]):
        self.index, self.reader = index, Reader(parts, base(index.manifest["source"]), index.store)
        self.items, self.origins = self.reader.items, {part.origin for part in parts}
        self.mine = [i for i, key in enumerate(self.items.keys) if crew.mine(key)]
        self.report = Report()

    def embed(self, progress: Callable[[int, int], None], batch_size: int) -> Report:
        """Embed and store what is new among the pictures of this process; what it and all others did."""
        for done, group in self._groups(batch_size):
            self._store(group)
            progress(done, len(self.mine))
        self.report = sum(crew.everyone(self.report), Report())
        place = {key: i for i, key in enumerate(self.items.keys)}
        self.report.bad.sort(key=lambda pair: place.get(pair[0], len(place)))
        return self.report

    def finish(self, mirror: bool) -> Report:
        """Drop the rows of pictures that broke; mirror: and those of these sources whose picture is there no more."""
        bad = {key for key, _ in self.report.bad}  # a picture that broke since is no longer to be found
        good, looked_at = set(self.items.keys) - bad, set(self.items.keys)
        gone = [row["key"] for row in self.reader.rows
                if row["key"] not in good and (row["key"] in looked_at or mirror and self._mine(row))]
        self.report.removed = self.index.store.delete(gone)
        self.index.store.optimize()
        return self.report

    def _mine(self, row: dict) -> bool:
        return (row.get("origin") or FIRST) in self.origins

    def _groups(self, batch_size: int) -> Iterator[tuple[int, list[Entry]]]:
        group, pixels, done = [], 0, 0
        for done, entry in enumerate(self._entries(), 1):
            if entry is None:
                self.report.unchanged += 1
            else:
                group.append(entry)
                pixels += entry.picture.width * entry.picture.height if entry.picture is not None else 0
            if len(group) >= batch_size or pixels >= PIXELS or (entry is None and done % 1000 == 0):
                yield done, group
                group, pixels = [], 0
        yield done, group

    def _store(self, group: list[Entry]) -> None:
        """Embed what is decoded, commit every good row at once, count."""
        self._embed([entry for entry in group if entry.picture is not None])
        self.report.bad += [(entry.key, entry.reason) for entry in group if entry.reason is not None]
        good = [entry for entry in group if entry.reason is None]
        for entry in good:
            old = self.reader.known.get(entry.key)
            if old is None:
                self.report.added += 1
            elif old["sha256"] == entry.row["sha256"]:  # only touched, moved or described anew
                self.report.unchanged += 1
            else:
                self.report.changed += 1
        if good:
            self.index.store.append(table(good))

    def _embed(self, entries: list[Entry]) -> None:
        if not entries:
            return
        try:
            vectors = embedded(self.index.model, [entry.picture for entry in entries])
        except ZooError as error:
            if len(entries) > 1:  # one of them is to blame
                for entry in entries:
                    self._embed([entry])
                return
            entries[0].reason = str(error)
            return
        for entry, vector in zip(entries, vectors, strict=True):
            entry.picture, entry.vector = None, vector
            entry.reason = None if np.isfinite(vector).all() else "the model's vector is not finite"

    def _entries(self) -> Iterator[Entry | None]:
        """In the order of the items; None where nothing has changed."""
        workers = os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:  # Pillow decodes outside the interpreter lock
            queue = deque()
            for i in self.mine:
                queue.append(pool.submit(self.reader.entry, i))
                if len(queue) > 2 * workers:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
