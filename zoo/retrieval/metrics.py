"""Recall@k and median rank between images and any number of captions each, in both directions."""

import unicodedata
from collections.abc import Hashable, Sequence

import numpy as np

from zoo.errors import ZooError


def positives(
    owner, images: int, captions: Sequence[str] | None = None, pictures: Sequence[Hashable] | None = None
) -> np.ndarray:
    """(captions, images) bool: which pairs count as right.

    owner: (captions,) the image of each caption, counts may be ragged. captions: their texts; a text that
    several images own is right for each of them. pictures: one id (a hash, say) for each image; images of
    equal id are one.
    """
    owner = np.asarray(owner)
    whole = owner.ndim == 1 and np.issubdtype(owner.dtype, np.integer)
    if not whole or owner.size and not 0 <= owner.min() <= owner.max() < images:
        raise ZooError(
            f"owner: integers of shape (captions,) in 0 .. {images - 1} are needed, "
            f"not {owner.dtype} {owner.shape}"
        )
    texts = _numbered(
        range(len(owner)) if captions is None else [_folded(c) for c in captions], len(owner), "captions"
    )
    copies = _numbered(range(images) if pictures is None else pictures, images, "pictures")
    right = np.zeros((int(texts.max(initial=-1)) + 1, int(copies.max(initial=-1)) + 1), bool)
    right[texts, copies[owner]] = True
    return right[texts][:, copies]


def ranks(similarity, right) -> np.ndarray:
    """Rank, from 1, of the best right column of each row; 0 for a row that has none.

    similarity: (rows, columns) numbers; right: the same shape, bool. Wrong columns of equal similarity count
    as ranked before, so that a model which says the same of everything is not praised for it.
    """
    similarity, right = np.asarray(similarity), np.asarray(right, bool)
    if similarity.shape != right.shape or similarity.ndim != 2:
        raise ZooError(
            f"ranks: similarity {similarity.shape} and right {right.shape} must be two matrices of one shape"
        )
    if np.isnan(similarity).any():
        raise ZooError(f"ranks: {int(np.isnan(similarity).sum())} of {similarity.size} similarities are NaN")
    best = np.where(right, similarity, -np.inf).max(axis=1, initial=-np.inf)
    before = (~right & (similarity >= best[:, None])).sum(axis=1)
    return np.where(right.any(axis=1), 1 + before, 0)


def recall(
    similarity,
    owner,
    ks: Sequence[int] = (1, 5, 10),
    captions: Sequence[str] | None = None,
    pictures: Sequence[Hashable] | None = None,
) -> dict[str, dict[str, float]]:
    """{"text_to_image": {"R@1": %, ..., "median_rank": r, "queries": n}, "image_to_text": {...}}.

    similarity: (captions, images), a tensor or an array. Image to text is a hit if any caption of the image
    is among the first k. Images without captions are answers, not queries. owner, captions, pictures: see
    `positives`.
    """
    similarity = np.asarray(similarity)
    right = positives(owner, similarity.shape[1], captions, pictures)
    return {
        "text_to_image": summary(ranks(similarity, right), ks),
        "image_to_text": summary(ranks(similarity.T, right.T), ks),
    }


def summary(ranks: np.ndarray, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """R@k in percent and the median rank, over the queries that have a right answer (rank > 0)."""
    ranks = ranks[ranks > 0]
    if not len(ranks):
        raise ZooError("recall: no query has a right answer")
    return {f"R@{k}": float(100 * (ranks <= k).sum() / len(ranks)) for k in ks} | {
        "median_rank": float(np.median(ranks)), "queries": len(ranks)
    }  # fmt: skip


def _numbered(values: Sequence[Hashable], count: int, name: str) -> np.ndarray:
    if len(values) != count:
        raise ZooError(f"{name}: {len(values)} given, {count} needed")
    numbers: dict = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _folded(caption: str) -> str:
    return " ".join(unicodedata.normalize("NFC", caption).casefold().split())
