"""The second order of candidates: match logit and cosine combined, the weight chosen on validation, recall with it.

score = rerank_weight * match logit + scaled cosine. The match score learns on hard negatives, drawn with a probability
proportional to exp(scaled cosine); so its logit estimates what the cosine does not know, log p / q, and the two are added
(noise-contrastive estimation: Gutmann and Hyvarinen 2012, eq. 4). How much it can be trusted on other data is a number.
"""

from math import log

import numpy as np

from zoo.retrieval import metrics

WEIGHTS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0)
DIRECTIONS = ("text_to_image", "image_to_text")


def rerank_weight(model) -> float:
    """The weight of the match logit that the model was given (Settings.rerank_weight of its fusion); 1 where it has none."""
    return model.fusion.settings.rerank_weight if hasattr(model, "fusion") else 1.0


def cosine_scale(model) -> float:
    """What makes the model's cosine of text and picture a log-odds: its learned scale; 0 for a model without one."""
    from zoo.models.text_image import MAX_SCALE

    return float(model.logit_scale.detach().clamp(max=log(MAX_SCALE)).exp()) if hasattr(model, "logit_scale") else 0.0


def candidates(similarity: np.ndarray, count: int) -> np.ndarray:
    """(rows, columns) -> (rows, min(count, columns)): the places of the best of each row, best first."""
    return np.argsort(-similarity, axis=1, kind="stable")[:, :count]


def reranked(similarity: np.ndarray, logits: np.ndarray, count: int, weight: float) -> np.ndarray:
    """Similarity (rows, columns) in which the first `count` of each row are in the order of weight * logit + similarity.

    They stay before all others. logits: the same shape, NaN allowed where they are not looked at.
    """
    first = candidates(similarity, count)
    row = np.arange(len(similarity))[:, None]
    score = weight * logits[row, first] + similarity[row, first]
    result = similarity.astype(np.float64)
    result[row, first] = similarity.max(initial=0) + 1 + score - score.min(initial=0)
    return result


def recall(similarity, logits, right, count: int, weight: float, ks=(1, 5, 10)) -> dict[str, dict[str, float]]:
    """{"text_to_image": {"R@1": %, ..., "median_rank", "queries"}, "image_to_text"}, the first `count` re-ranked both ways.

    similarity, logits (captions, images); right the same shape, bool: see metrics.positives.
    """
    ways = ((similarity, logits, right), (similarity.T, logits.T, right.T))
    return {name: metrics.summary(metrics.ranks(reranked(s, match, count, weight), true), ks)
            for name, (s, match, true) in zip(DIRECTIONS, ways)}


def fit(similarity, logits, right, count: int) -> float:
    """The weight of WEIGHTS with the best mean reciprocal rank over both directions; of equals the smallest."""
    def quality(weight: float) -> float:
        ways = ((similarity, logits, right), (similarity.T, logits.T, right.T))
        ranks = [metrics.ranks(reranked(s, match, count, weight), true) for s, match, true in ways]
        return sum(float((1 / found[found > 0]).mean()) for found in ranks)

    return max(WEIGHTS, key=quality)
