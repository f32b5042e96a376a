"""From stored rows to ranked hits, and the second look at the first of them by cross-attention."""

import json
import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from zoo.errors import ZooError
from zoo.retrieval.rerank import cosine_scale, rerank_weight


@dataclass(frozen=True)
class Hit:
    """One picture found. Ranks count from 1; match is None where the pair was not re-ranked."""

    key: str
    path: str | None  # absolute file; None where the picture lies in a table or in the index
    score: float  # cosine of the two vectors
    match: float | None  # probability that text and picture belong together
    rank_before: int  # by score
    rank_after: int  # as returned
    meta: dict = field(default_factory=dict)  # folder, width, height and the collection's own columns
    caption: str | None = None  # of several the one that matches a picture query best, else the first


def ranked(index, found: list[tuple[float, dict]]) -> list[Hit]:
    """Hits in the order of the store's (score, row) pairs."""
    return [_hit(index, score, row, rank) for rank, (score, row) in enumerate(found, 1)]


def _hit(index, score: float, row: dict, rank: int) -> Hit:
    meta = {name: row[name] for name in ("folder", "width", "height")} | json.loads(row["meta"])
    captions = row["captions"] or [None]
    return Hit(row["key"], index.file(row), score, None, rank, rank, meta, captions[0])


def reranked(index, hits: list[Hit], captions: dict, query: str | None, image, count: int) -> list[Hit]:
    """The first `count` hits in the order of their match with the query; the others stay where they are.

    For a text the order is that of zoo.retrieval.rerank: weighted match logit + scaled cosine, the weight the model's own.

    A text query is matched with the candidates' pictures, a picture query with their captions (the best one
    counts). A candidate that has none, or whose picture cannot be read any more (a warning names it), keeps
    its place: there is nothing to compare it by. captions: all captions by key.
    """
    look = _by_pictures if query is not None else _by_captions
    judged = look(index, hits[:count], captions, query if query is not None else image)
    places = [place for place, verdict in enumerate(judged) if verdict is not None]
    scale = cosine_scale(index.model) if query is not None else 0.0  # a picture's cosine is with pictures, its match with texts
    weight = rerank_weight(index.model) if query is not None else 1.0
    order = sorted(places, key=lambda place: -weight * judged[place][0] - scale * hits[place].score)  # stable: ties stay
    result = list(hits)
    for place, source in zip(places, order):
        logit, caption = judged[source]
        probability = float(0.5 + 0.5 * np.tanh(logit / 2))  # the sigmoid, without overflow
        result[place] = replace(hits[source], match=probability, caption=caption)
    return [replace(hit, rank_after=rank) for rank, hit in enumerate(result, 1)]


def _by_pictures(index, hits: list[Hit], captions: dict, query: str) -> list[tuple[float, str | None] | None]:
    logits = _match(index, query, hits)
    return [None if logit is None else (logit, hit.caption) for hit, logit in zip(hits, logits)]


def _match(index, query: str, hits: list[Hit]) -> list[float | None]:
    try:
        # files and bytes, not pictures: the model decodes a chunk at a time, 64 photographs are 2 GB
        sources = [hit.path or index.source(hit.key) for hit in hits]
        return [float(logit) for logit in np.asarray(index.model.match([query], sources))[0]] if hits else []
    except ZooError as error:
        if len(hits) > 1:  # one of them is to blame
            return [logit for hit in hits for logit in _match(index, query, [hit])]
        warnings.warn(f"not re-ranked: {error}", stacklevel=6)
        return [None]


def _by_captions(index, hits: list[Hit], captions: dict, image) -> list[tuple[float, str | None] | None]:
    texts = list(dict.fromkeys(text for hit in hits for text in captions[hit.key]))
    if not texts:
        return [None] * len(hits)
    logits = dict(zip(texts, np.asarray(index.model.match(texts, [image]), np.float64)[:, 0]))
    verdicts = []
    for hit in hits:
        own = captions[hit.key]
        best = max(own, key=logits.get, default=None)
        verdicts.append((float(logits[best]), best) if best is not None else None)
    return verdicts
