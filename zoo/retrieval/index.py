"""An index on disk: which model made it, where its pictures lie, and the store of their vectors."""

import hashlib
import os
from numbers import Integral
from pathlib import Path

import numpy as np

from zoo.errors import UsageError, ZooError
from zoo.retrieval.manifest import identity, read_manifest, reference, refuse_other
from zoo.retrieval.search import Hit, ranked, reranked
from zoo.retrieval.sources import open_source
from zoo.retrieval.store import NumpyStore, Store
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

    def __init__(self, path):
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.store: Store = NumpyStore(self.path / self.manifest["store"]["folder"], self.manifest["dim"])
        self._model = None
        self._table: dict[str, bytes] | None = None
        self._places: tuple = (None, {})  # rows, place of each key among them

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
        source = self.manifest["source"] or "/"
        base = os.path.dirname(source) if os.path.isfile(source) else source
        return os.path.join(base, os.fsdecode(row["path"]))

    def image(self, key: str):
        """The picture of `key`: PIL, RGB, full size. Raises ZooError for an unknown key or a lost picture."""
        from zoo.preprocess import load_image

        return load_image(self.source(key), key)

    def source(self, key: str) -> str | bytes:
        """Where the picture of `key` is read from: its absolute file, or its encoded bytes."""
        row = self._row(key)
        if row["path"] is not None:
            return self.file(row)
        blob = self.store.blob(key)
        return self._from_table(row) if blob is None else blob

    def _row(self, key: str) -> dict:
        rows = self.store.rows()
        if self._places[0] is not rows:  # another state of the store
            self._places = rows, {known: place for place, known in enumerate(rows["key"].to_pylist())}
        place = self._places[1].get(key)
        if place is None:
            raise ZooError(f"{self.path}: no picture {key!r} in this index")
        return rows.slice(place, 1).to_pylist()[0]

    def _from_table(self, row: dict) -> bytes:
        source = self.manifest["source"]
        if self._table is None:
            items, _ = open_source(source)
            self._table = dict(zip(items.keys, items.sources))
        data = self._table.get(row["key"])
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise ZooError(f"{row['key']}: {source} has changed since it was indexed; build the index again")
        return data

    def info(self) -> dict:
        """What the index is: plain values, for people and for JSON."""
        sizes = [file.stat().st_size for file in self.path.rglob("*") if file.is_file()]
        counted = {"path": str(self.path), "rows": len(self), "bytes": sum(sizes)}
        ignored = [list(pair) for pair in self.store.ignored]
        return counted | {k: v for k, v in self.manifest.items() if k != "store"} | {"ignored": ignored}

    def search(
        self, query: str | None = None, image=None, k: int = 10, rerank: int = 0, where=None
    ) -> list[Hit]:
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
        if not len(self):
            return []
        vector, image = self._query(query, image, rerank)
        found = self.store.search(vector, max(k, rerank), condition)
        hits = ranked(self, found)
        if rerank:
            captions = {row["key"]: row["captions"] or [] for _, row in found}
            hits = reranked(self, hits, captions, query, image, rerank)
        return hits[:k]

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
