"""Bring an index up to date with its source: embed what is new, drop what is gone, name what is bad."""

import os
import shutil
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from zoo.errors import UsageError, ZooError
from zoo.retrieval.files import locked, make_folder
from zoo.retrieval.index import Index, embedded, loaded
from zoo.retrieval.manifest import MANIFEST, create_manifest, identity, read_manifest, reference, refuse_other, write_manifest
from zoo.retrieval.rows import Entry, Reader, table
from zoo.retrieval.sources import open_source

PIXELS = 48_000_000  # decoded at once: four photographs of 12 million pixels, or a batch of small pictures


@dataclass
class Report:
    """What a build did. bad: (key, reason) of the pictures that are not in the index."""

    added: int = 0
    unchanged: int = 0
    removed: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)
    changed: int = 0


def build(
    path,
    source,
    model=None,
    progress: Callable[[int, int], None] | None = None,
    batch_size: int = 64,
    rebuild: bool = False,
) -> Report:
    """Make the index at `path` mirror `source`: a folder, a table, or `Items`.

    Pictures whose size and time, or else content, are as before are not embedded again; vanished ones are
    removed; bad ones are reported. Finished batches are durable: after a kill the next build goes on there.

    model: loaded, or its name or file; an index that exists knows its own. progress: called with (pictures
    done, pictures in all). rebuild: start afresh, as another model requires. Raises ZooError where `path` is
    something else or in use, the source has no pictures, or another model made the index.
    """
    path = Path(path)
    exists = _is_index(path)
    if model is None and not exists:
        raise UsageError(f"{path}: a new index needs a model")
    items, root = open_source(source)
    if len(set(items.keys)) != len(items):
        twice = Counter(items.keys).most_common(1)[0][0]
        raise ZooError(f"{path}: the key {twice!r} occurs twice in the source; keys must be unique")
    model = read_manifest(path)["load"] if model is None else model
    load, model = reference(model), loaded(model)
    make_folder(path)
    with locked(path / "lock"):
        index = _prepared(path, model, load, root, rebuild)
        report = _Sync(index, items, root).run(progress or (lambda done, total: None), batch_size)
        index.manifest["unreadable"] = [list(pair) for pair in report.bad]
        write_manifest(path, index.manifest)
    return report


def _is_index(path: Path) -> bool:
    """False for a place where one can be made. Raises ZooError for anything else, a folder of photos say."""
    if (path / MANIFEST).is_file():
        return True
    begun = path.is_dir() and all(name == "lock" or name.startswith(MANIFEST) for name in os.listdir(path))
    if path.exists() and not begun:
        raise ZooError(f"{path}: exists and is no index; give the path of an index, or of a new folder")
    return False


def _prepared(path: Path, model, load: str, root: Path | None, rebuild: bool) -> Index:
    """The index opened or created, its source up to date, with this model."""
    who, source = identity(model), str(root) if root is not None else None
    old = read_manifest(path) if (path / MANIFEST).exists() else None
    if old is None or rebuild:
        number = 1 + max((int(rows.name[5:]) for rows in path.glob("rows-*")), default=0)
        dim = embedded(model, [_blank()]).shape[1]
        # a new folder for the rows: readers keep what they have loaded
        create_manifest(path, who, load, dim, source, f"rows-{number}")
    else:
        refuse_other(path, old, who, load)
        if old["source"] != source:
            write_manifest(path, old | {"source": source})
    index = Index(path)
    index.use(model)
    for rows in path.glob("rows-*"):
        if rows.name != index.manifest["store"]["folder"]:
            shutil.rmtree(rows)
    return index


def _blank():
    from PIL import Image

    return Image.new("RGB", (32, 32))


class _Sync:
    """One pass over the items. Decoding runs ahead in threads; embedding and writing in the caller's."""

    def __init__(self, index: Index, items, root: Path | None):
        self.index, self.items, self.reader = index, items, Reader(items, root, index.store)
        self.report = Report()

    def run(self, progress: Callable[[int, int], None], batch_size: int) -> Report:
        total = len(self.items)
        for done, group in self._groups(batch_size):
            self._store(group)
            progress(done, total)
        bad = {key for key, _ in self.report.bad}  # a picture that broke since is no longer to be found
        good = set(self.items.keys) - bad
        self.report.removed = self.index.store.delete(key for key in self.reader.known if key not in good)
        self.index.store.optimize()
        return self.report

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
            for i in range(len(self.items)):
                queue.append(pool.submit(self.reader.entry, i))
                if len(queue) > 2 * workers:
                    yield queue.popleft().result()
            while queue:
                yield queue.popleft().result()
