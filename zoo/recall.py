"""`zoo eval` of a text-image model: recall both ways, by the vectors alone and with the first candidates re-ranked."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zoo.data.items import Items
from zoo.inference import evaluating
from zoo.pairs import Pairs
from zoo.retrieval import metrics, rerank

WORD = r"\w+"
RERANK = 64  # candidates


@dataclass(frozen=True)
class Rerank:
    """count: so many candidates of each query are put in a new order, 0: none. fit: with the weight of the match logit that is
    best on these pairs (validation pairs: never those it is then tested on), else the model's own. progress: (done, total).
    """

    count: int = RERANK
    fit: bool = False
    progress: Callable[[int, int], None] = lambda done, total: None


def recall(model, items: Items, known: Items | None = None, again: Rerank = Rerank()) -> dict:
    """R@1/5/10 and median rank both ways: over all captions, over the first one (the name) alone, and over the further ones
    (tags) that occur in no caption of `known` (the training split), be it as a part. "reranked" of each kind: see Rerank.

    {kind: {"text_to_image": {...}, "image_to_text": {...}, "reranked": the same}, "rerank": {"candidates", "weight"}}
    """
    similarity, logits, kinds = measured(model, items, known, again)
    result: dict = {}
    if again.count:
        rows, right = kinds["all captions"]
        fitted = rerank.fit(similarity[rows], logits[rows], right, again.count) if again.fit else rerank.rerank_weight(model)
        result["rerank"] = {"candidates": again.count, "weight": fitted}
    for name, (rows, right) in kinds.items():
        result[name] = rerank.recall(similarity[rows], similarity[rows], right, 0, 0)
        if again.count:
            result[name]["reranked"] = rerank.recall(similarity[rows], logits[rows], right, again.count, fitted)
    return result


def measured(model, items: Items, known: Items | None, again: Rerank) -> tuple[np.ndarray, np.ndarray, dict]:
    """Scaled cosine and match logit (captions, images), the latter NaN where nobody asks; kinds: {name: (rows, right)}."""
    captions = [text for row in items.captions for text in row]
    owner = np.array([i for i, row in enumerate(items.captions) for _ in row])
    with evaluating(model):
        pairs = Pairs(model, captions, len(items), items.image, sides=again.count > 0)
        similarity = model.similarity(pairs.text, pairs.image).cpu().numpy()
        kinds = {name: (rows, metrics.positives(owner[rows], len(items), [captions[i] for i in rows]))
                 for name, rows in _kinds(items, known).items() if len(rows)}
        logits = np.full(similarity.shape, np.nan, np.float32)
        if again.count:
            _ask(pairs, similarity, logits, [rows for rows, _ in kinds.values()], again)
    return similarity, logits, kinds


def _ask(pairs: Pairs, similarity: np.ndarray, logits: np.ndarray, kinds: list[np.ndarray], again: Rerank) -> None:
    """Fills in the logits of every pair that some query of some kind re-ranks; each is computed once."""
    images, count, progress = rerank.candidates(similarity, again.count), again.count, again.progress
    total = sum(logits.shape)
    for text, best in enumerate(images):
        logits[text, best] = pairs.text_asks(text, best)
        progress(text + 1, total)
    wanted = np.zeros(logits.shape, bool)
    for rows in kinds:
        best = rerank.candidates(similarity[rows].T, count)
        wanted[rows[best], np.arange(len(best))[:, None]] = True
    wanted &= np.isnan(logits)
    for image, texts in enumerate(map(np.flatnonzero, wanted.T)):
        if len(texts):
            logits[texts, image] = pairs.image_asks(image, texts)
        progress(len(images) + image + 1, total)


def _kinds(items: Items, known: Items | None) -> dict[str, np.ndarray]:
    """Which captions count, in the order of all: {name: places}."""
    place = np.cumsum([0] + [len(row) for row in items.captions])
    first = [start for start, row in zip(place, items.captions) if row]
    kinds = {"all captions": range(place[-1]), "first caption": first}
    if known is not None:
        kinds["unseen captions"] = unseen(items.captions, known.captions)
    return {name: np.array(rows, int) for name, rows in kinds.items()}


def unseen(captions: list[list[str]], known: list[list[str]]) -> list[int]:
    """Places, among all, of the further captions of each picture that no known caption is or holds as whole words."""
    def words(text: str) -> str:
        return f" {' '.join(re.findall(WORD, text.casefold()))} "

    corpus, found, place = "\n".join(words(text) for row in known for text in row), [], 0
    for row in captions:
        found += [place + i for i, text in enumerate(row) if i and words(text) not in corpus]
        place += len(row)
    return found
