"""The names a picture may have: the captions of an index, ranked for one picture by the same model."""

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zoo.retrieval.files import make_folder, write_atomic
from zoo.retrieval.index import embedded
from zoo.retrieval.rerank import cosine_scale, rerank_weight

MOST = 20_000  # captions; more take minutes to embed


@dataclass(frozen=True)
class Name:
    """One name found. Ranks count from 1; match is None where it was not re-ranked."""

    text: str
    score: float  # cosine
    match: float | None
    rank_before: int
    rank_after: int


class Names:
    """The distinct first captions of an index with their vectors, (n, dim), kept in `cache` between runs.

    Empty where the index has no captions, more than MOST, or a model without text.
    progress(done, total) is told while they are embedded.
    """

    def __init__(self, index, cache: Path, progress: Callable[[int, int], None] | None = None):
        self.model = index.model
        captions = index.store.rows()["captions"].to_pylist() if len(index) else []
        texts = dict.fromkeys(own[0] for own in captions if own)
        self.texts = list(texts) if hasattr(self.model, "embed_text") and len(texts) <= MOST else []
        self.vectors = self._vectors(cache, index.manifest["sha256"], progress) if self.texts else None

    def __len__(self) -> int:
        return len(self.texts)

    def rank(self, picture, k: int = 10, rerank: int = 0) -> list[Name]:
        """The k best names of a picture (whatever `load_image` takes); `rerank` of them sorted by match."""
        if not self.texts:
            return []
        scores = self.vectors @ embedded(self.model, [picture])[0]
        best = np.argsort(-scores, kind="stable")[: max(k, rerank)]
        found = [(self.texts[i], float(scores[i]), None, rank) for rank, i in enumerate(best, 1)]
        if rerank:
            close = self.model.match([text for text, *_ in found[:rerank]], [picture])
            logits = np.asarray(close, np.float64)[:, 0]
            matches = 0.5 + 0.5 * np.tanh(logits / 2)  # the sigmoid, without overflow
            judged = [(text, score, float(m), before) for (text, score, _, before), m in zip(found, matches)]
            cosine = cosine_scale(self.model) * scores[best[:rerank]]
            order = np.argsort(-rerank_weight(self.model) * logits - cosine, kind="stable")
            found = [judged[i] for i in order] + found[rerank:]
        return [Name(*name, rank) for rank, name in enumerate(found[:k], 1)]

    def _vectors(self, cache: Path, weights: str, progress: Callable[[int, int], None] | None) -> np.ndarray:
        digest = hashlib.sha256("\n".join([weights, *self.texts]).encode()).hexdigest()
        file = cache / f"{digest[:32]}.npy"
        if file.is_file():
            return np.load(file, allow_pickle=False)
        parts = []
        for start in range(0, len(self.texts), 64):
            parts.append(np.asarray(self.model.embed_text(self.texts[start : start + 64]), np.float32))
            if progress:
                progress(min(start + 64, len(self.texts)), len(self.texts))
        data = io.BytesIO()
        np.save(data, np.concatenate(parts), allow_pickle=False)
        make_folder(cache)
        write_atomic(file, data.getvalue())
        return np.concatenate(parts)
