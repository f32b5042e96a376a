"""Recall worked out by hand, on three images with 2, 1 and 3 captions."""

import numpy as np
import pytest

from zoo.errors import ZooError
from zoo.retrieval import positives, ranks, recall

OWNER = [0, 0, 1, 2, 2, 2]
SIMILARITY = np.array([
    # image 0, 1, 2      rank of the right image
    [0.9, 0.1, 0.2],  # 1
    [0.3, 0.4, 0.5],  # 3
    [0.6, 0.5, 0.1],  # 2
    [0.2, 0.3, 0.4],  # 1
    [0.7, 0.8, 0.6],  # 3
    [0.1, 0.2, 0.0],  # 3
])  # fmt: skip
# captions of each image in order of similarity:  image 0: c0 c4 ...      right first at 1
#                                                 image 1: c4 c2 ...      right (c2) at 2
#                                                 image 2: c4 ...         right (c4) at 1


def test_both_directions_by_hand():
    assert recall(SIMILARITY, OWNER, ks=(1, 2, 3)) == {
        "text_to_image": {"R@1": 100 * 2 / 6, "R@2": 50.0, "R@3": 100.0, "median_rank": 2.5, "queries": 6},
        "image_to_text": {"R@1": 100 * 2 / 3, "R@2": 100.0, "R@3": 100.0, "median_rank": 1.0, "queries": 3},
    }


def test_any_caption_is_a_hit_and_not_only_the_first():
    similarity = np.array([[0.0, 0.9], [0.9, 0.0], [0.1, 0.1], [0.0, 0.2]])
    assert ranks(similarity.T, positives([0, 0, 1, 1], 2).T).tolist() == [1, 2]


def test_twin_captions_and_identical_pictures_are_right():
    captions = ["a dog", "it runs", "A  dog", "a cat", "on a mat", "sleeping"]
    right = positives(OWNER, 3, captions)
    assert right.astype(int).tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert ranks(SIMILARITY, right).tolist() == [1, 3, 1, 1, 3, 3]  # caption 2 prefers its twin's
    right = positives(OWNER, 3, pictures=["x", "y", "x"])
    assert right.astype(int).tolist() == [[1, 0, 1], [1, 0, 1], [0, 1, 0], [1, 0, 1], [1, 0, 1], [1, 0, 1]]
    assert ranks(SIMILARITY, right).tolist() == [1, 1, 2, 1, 2, 2]


def test_composed_and_decomposed_text_is_one_caption():
    assert positives([0, 1], 2, ["caf\u00e9", "cafe\u0301"]).all()


def test_indifference_is_not_rewarded():
    assert ranks(np.zeros((1, 100)), positives([3], 100)).tolist() == [100]


def test_images_without_captions_are_answers_but_no_queries():
    result = recall(np.array([[0.1, 0.9, 0.5]]), [0], ks=(1, 3))
    assert result["text_to_image"] == {"R@1": 0.0, "R@3": 100.0, "median_rank": 3.0, "queries": 1}
    assert result["image_to_text"] == {"R@1": 100.0, "R@3": 100.0, "median_rank": 1.0, "queries": 1}


def test_equals_counting_one_by_one():
    random = np.random.default_rng(0)
    owner = np.sort(random.integers(0, 20, 70))
    similarity = random.normal(size=(70, 20))
    result = recall(similarity, owner, ks=(5,))
    hits = [owner[t] in np.argsort(-similarity[t])[:5] for t in range(70)]
    assert result["text_to_image"]["R@5"] == pytest.approx(100 * np.mean(hits))
    hits = [(owner[np.argsort(-similarity[:, i])[:5]] == i).any() for i in sorted({*owner})]
    assert result["image_to_text"]["R@5"] == pytest.approx(100 * np.mean(hits))


@pytest.mark.parametrize("call, message", [
    (lambda: recall(SIMILARITY, [0, 1]), r"similarity \(6, 3\) and right \(2, 3\)"),
    (lambda: recall(SIMILARITY, [0, 0, 1, 2, 2, 3]), r"in 0 \.\. 2 are needed"),
    (lambda: recall(SIMILARITY, [0.0] * 6), "float64"),
    (lambda: recall(SIMILARITY * np.nan, OWNER), "18 of 18 similarities are NaN"),
    (lambda: positives(OWNER, 3, captions=["a"]), "captions: 1 given, 6 needed"),
    (lambda: recall(np.zeros((0, 3)), np.zeros(0, int)), "no query has a right answer"),
])  # fmt: skip
def test_wrong_input_is_named(call, message):
    with pytest.raises(ZooError, match=message):
        call()
