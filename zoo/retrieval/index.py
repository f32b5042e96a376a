"""An index on disk: which model made it, where its pictures lie, and the store of their vectors."""

import hashlib
import os
import shlex
import unicodedata
from collections.abc import Callable
from numbers import Integral

import numpy as np

from zoo.errors import UsageError, ZooError
from zoo.retrieval.manifest import MANIFEST, NEXT, identity, made_by, read_manifest, reference, refuse_other
from zoo.retrieval.parts import base, parts
from zoo.retrieval.place import place
from zoo.retrieval.search import Hit, ranked, reranked
from zoo.retrieval.store import Store, address, open_store
from zoo.retrieval.where import parse


def open_index(path, model=None) -> "Index":
    """The index at `path`. model: loaded, or its name or file; by default the manifest's, at first need.

    Raises ZooError where there is no index, and where another model made it, with the command that rebuilds.
    """
    index = Index(path)
    if model is not None:
        index.use(model)
    return index


class Index:
    """Pictures to be searched by text or picture. Threads may share it, also while another process writes."""

    def __init__(self, path, name: str = MANIFEST):
        self.place, self._name = place(path), name
        self.path = self.place.path
        self._model = None
        self._read()

    def _read(self) -> None:
        self._stamp = self.place.stamp(self._name) if self.place.has(self._name) else None
        manifest, kept = read_manifest(self.place, self._name), getattr(self, "manifest", {}).get("store")
        if manifest["store"] != kept:
            self.store: Store = open_store(manifest["store"]["kind"], address(manifest["store"], self.place), manifest["dim"])
        self.manifest, self._table = manifest, None

    def renew(self) -> None:
        """See what another process did to the index as a whole, such as building it anew.

        Each call of `search`, `info` and `source` does this by itself. Raises ZooError where the model is another now.
        """
        if self.place.has(self._name) and self.place.stamp(self._name) == self._stamp:
            return
        before = made_by(self.manifest)
        self._read()
        if made_by(self.manifest) != before:
            self._stamp = None  # and say so again
            raise ZooError(f"{self.path}: built anew with {self.manifest['model']} since it was opened; open it again")

    def _ask(self, question: Callable):
        """What `question` says of the store; of the new one where another process has just replaced it."""
        while True:
            store, answer, failed = self.store, None, None
            try:
                answer = question(store)
            except ZooError as error:
                failed = error
            self.renew()  # rows that are being swept look like old ones, or like none
            if self.store is store and failed:
                raise failed
            if self.store is store:
                return answer

    @property
    def model(self):
        """The model that made the vectors, loaded at first need."""
        if self._model is None:
            self.use(self.manifest["load"])
        return self._model

    def use(self, model) -> None:
        """Work with this model: loaded, or its name or file. Raises ZooError unless it is the index's own."""
        usable = loaded(model)
        refuse_other(self.path, self.manifest, identity(usable), reference(model))
        self._model = usable

    def __len__(self) -> int:
        return len(self.store)

    def keys(self) -> list[str]:
        return self.store.rows()["key"].to_pylist()

    def file(self, row: dict) -> str | None:
        """The absolute picture file of a row; None where the picture lies in a table or in the index."""
        if row["path"] is None:
            return None
        return os.path.join(base(self.manifest["source"]) or "/", os.fsdecode(row["path"]))

    def image(self, key: str):
        """The picture of `key`: PIL, RGB, full size. Raises ZooError for an unknown key or a lost picture."""
        from zoo.preprocess import load_image

        return load_image(self.source(key), key)

    def source(self, key: str) -> str | bytes:
        """Where the picture of `key` is read from: its absolute file, or its encoded bytes."""
        row = self.store.get(key)
        if row is None:
            raise ZooError(f"{self.path}: no picture {key!r} in this index")
        if row["path"] is not None:
            return self._unmoved(row)
        return self.store.blob(key) if row["held"] else self._from_table(row)

    def _unmoved(self, row: dict) -> str:
        """The file of a row. ZooError for a link that leads out of the pictures, to another file than was indexed."""
        file, folder = self.file(row), os.path.realpath(base(self.manifest["source"]) or "/")
        if os.path.commonpath([real := os.path.realpath(file), folder]) != folder and os.path.exists(real):
            status = os.stat(real)
            if (status.st_size, status.st_mtime_ns) != (row["size"], row["mtime"]):
                raise ZooError(f"{row['key']}: a link to another file than was indexed; zoo index update {self._quoted}")
        return file

    def _from_table(self, row: dict) -> bytes:
        if self._table is None:
            items = [part.items for part in parts(self.manifest)]
            self._table = {key: s for own in items for key, s in zip(own.keys, own.sources) if isinstance(s, bytes)}
        data = self._table.get(row["key"])
        if data is None or hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise ZooError(f"{row['key']}: its table has changed since it was indexed; zoo index update {self._quoted}")
        return data

    def note(self) -> str | None:
        """What a searcher should know: the index is being written, or a write was cut short."""
        doing, writer = self.manifest["doing"], self.place.writer()
        if writer is not None:
            return f"{self.path}: {writer} is writing; what is not in yet is not found"
        if doing is not None:
            go_on = f"go on with: zoo index update {self._quoted}"
            return f"{self.path}: its {doing} was interrupted, pictures may be missing; {go_on}"
        if self.place.has(NEXT):
            return f"{self.path}: building it anew was interrupted, this is the old one; give that command again"
        return None

    def info(self) -> dict:
        """What the index is: plain values, for people and for JSON."""
        self.renew()
        counted = {"path": str(self.path), "rows": len(self), "bytes": self.place.bytes(), "state": self.note() or "complete"}
        hidden = ("store", "doing", "excluded", "added", "left")
        known = {key: value for key, value in self.manifest.items() if key not in hidden}
        more = {"added": [entry["path"] for entry in self.manifest["added"]], "excluded": len(self.manifest["excluded"])}
        return counted | known | more | {"store": self.store.info(), "ignored": [list(pair) for pair in self.store.ignored]}

    def add(self, source, progress=None):
        """See `zoo.retrieval.add`."""
        from zoo.retrieval import ingest

        return self._changed(ingest.add(self.path, source, self.model, progress))

    def update(self, progress=None):
        """See `zoo.retrieval.update`."""
        from zoo.retrieval import ingest

        return self._changed(ingest.update(self.path, self.model, progress))

    def remove(self, keys=(), where=None) -> list[str]:
        """See `zoo.retrieval.remove`."""
        from zoo.retrieval import ingest

        return self._changed(ingest.remove(self.path, keys, where))

    def verify(self, contents: bool = False) -> list[dict]:
        """See `zoo.retrieval.verify`."""
        from zoo.retrieval.check import verify

        return verify(self.path, contents)

    def _changed(self, result):
        self.renew()
        return result

    @property
    def _quoted(self) -> str:
        return shlex.quote(str(self.path))

    def search(self, query: str | None = None, image=None, k: int = 10, rerank: int = 0, where=None) -> list[Hit]:
        """The min(k, matches) best pictures for a text or a picture (as `load_image` takes it), best first.

        rerank: that many of the first candidates are put in a new order by the model's cross-attention; for a
        picture only those that have captions. where: see `zoo.retrieval.where.parse`. An empty index gives an
        empty list. Raises UsageError for wrong arguments, ZooError for a picture that cannot be read.
        """
        if (query is None) == (image is None):
            raise UsageError("search: give either a text or an image")
        for name, value, least in (("k", k, 1), ("rerank", rerank, 0)):
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise UsageError(f"search: {name} is {value!r}; it must be a whole number >= {least}")
        condition = parse(where) if where is not None else None
        self.renew()
        if not self._ask(len):
            return []
        vector, image = self._query(query, image, rerank)
        found = self._ask(lambda store: store.search(vector, max(k, rerank), condition))
        hits = ranked(self, found)
        if rerank:
            captions = {row["key"]: row["captions"] or [] for _, row in found}
            hits = reranked(self, hits, captions, query, image, rerank)
        return hits[:k]

    def first(self, count: int, where=None) -> list[dict]:
        """The first rows of the index, or the first of those that a filter selects, as they lie in it."""
        condition = parse(where) if where is not None else None
        self.renew()
        rows = self._ask(lambda store: store.rows())
        if condition is None or not len(rows):
            return rows.slice(0, count).to_pylist()
        anything = np.full(self.manifest["dim"], 1, np.float32)
        kept = {row["key"] for _, row in self._ask(lambda store: store.search(anything, len(rows), condition))}
        places = [place for place, key in enumerate(rows["key"].to_pylist()) if key in kept]
        return rows.take(places[:count]).to_pylist()

    def _query(self, query: str | None, image, rerank: int) -> tuple[np.ndarray, object]:
        name = self.manifest["model"]
        if rerank and not hasattr(self.model, "match"):
            raise UsageError(f"search: {name} has no cross-attention to re-rank with; leave rerank at 0")
        if query is None:
            from zoo.preprocess import load_image

            image = load_image(image)
            return _finite(embedded(self.model, [image])[0], "the picture"), image
        if not isinstance(query, str):
            raise UsageError(f"search: the query is {query!r}; a text is needed")
        if not hasattr(self.model, "embed_text"):
            raise UsageError(f"search: {name} knows no text; search by image, or use a text_image model")
        # macOS types letters and accents apart; a shell may hand on bytes that are no text
        query = unicodedata.normalize("NFC", query).encode(errors="replace").decode()
        return _finite(np.asarray(self.model.embed_text([query]), np.float32)[0], query), None


def embedded(model, pictures: list) -> np.ndarray:
    """(n, dim) float32 unit vectors of pictures, by whichever of the two methods the model has."""
    embed = model.embed_image if hasattr(model, "embed_image") else model.embed
    return np.asarray(embed(pictures), np.float32)


def _finite(vector: np.ndarray, query: str) -> np.ndarray:
    if not np.isfinite(vector).all():
        raise ZooError(f"search: the model's vector of {query!r} is not finite")
    return vector


def loaded(model):
    """A model as it is, but in eval mode: dropout would blur its vectors; or the one of that name or file."""
    if isinstance(model, (str, os.PathLike)):
        import zoo

        return zoo.load(model)
    return model.eval() if hasattr(model, "eval") else model
