"""The second order: computed by hand, and recall with it by brute force over all pairs."""

import numpy as np
import pytest

from zoo.retrieval import metrics, rerank

SIMILARITY = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
LOGITS = np.array([[-5.0, 0.0, 0.5, np.nan], [np.nan, 9.0, 0.0, 0.5]])


@pytest.mark.parametrize(("count", "weight", "order"), [
    (3, 1.0, [[1, 2, 0, 3], [1, 3, 2, 0]]),  # 3 - 5, 2 + 0, 1 + 0.5; and 3 + 0.5, 2 + 0, 1 + 9
    (2, 1.0, [[1, 0, 2, 3], [3, 2, 1, 0]]),  # the third has the best score, and is no candidate
    (3, 0.1, [[0, 1, 2, 3], [3, 2, 1, 0]]),
    (0, 1.0, [[0, 1, 2, 3], [3, 2, 1, 0]]),
])
def test_order_by_hand(count, weight, order):
    found = rerank.reranked(SIMILARITY, LOGITS, count, weight)
    assert np.argsort(-found, 1).tolist() == order and np.isfinite(found).all()


def test_candidates_never_fall_behind_the_rest():
    generator = np.random.default_rng(0)
    similarity, logits = generator.normal(size=(2, 20, 30)) * [[[1]], [[50]]]
    found = rerank.reranked(similarity, logits, 7, 1.0)
    first = rerank.candidates(similarity, 7)
    assert (np.sort(np.argsort(-found, 1)[:, :7]) == np.sort(first)).all()
    assert (np.argsort(-found, 1)[:, 7:] == np.argsort(-similarity, 1)[:, 7:]).all()


def test_recall_both_ways_is_a_loop_over_queries():
    generator = np.random.default_rng(1)
    owner = np.array([0, 0, 0, 1, 3, 3, 4])  # picture 2 has no caption
    similarity, logits = generator.normal(size=(2, 7, 5))
    right = metrics.positives(owner, 5)

    def ranks(scores, logits, right):
        found = []
        for s, match, r in zip(scores, logits, right):
            best = sorted(range(len(s)), key=lambda i: -s[i])[:3]
            order = sorted(best, key=lambda i: -(0.7 * match[i] + s[i]))
            order += [i for i in sorted(range(len(s)), key=lambda i: -s[i]) if i not in best]
            if r.any():
                found.append(1 + next(place for place, i in enumerate(order) if r[i]))
        return found

    result = rerank.recall(similarity, logits, right, 3, 0.7, ks=(1, 2))
    for name, found in (("text_to_image", ranks(similarity, logits, right)),
                        ("image_to_text", ranks(similarity.T, logits.T, right.T))):
        expected = {f"R@{k}": 100 * np.mean([r <= k for r in found]) for k in (1, 2)}
        assert result[name] == pytest.approx(expected | {"median_rank": np.median(found), "queries": len(found)})
    assert result["image_to_text"]["queries"] == 4
    plain = rerank.recall(similarity, similarity, right, 0, 0)
    assert plain == metrics.recall(similarity, owner)


def test_the_weight_is_what_the_validation_pairs_ask_for():
    generator = np.random.default_rng(2)
    truth = np.eye(40, dtype=bool)
    noise = generator.normal(size=(2, 40, 40))
    useful = rerank.fit(2 * truth + noise[0], 2 * truth + noise[1], truth, 20)
    assert 0.5 <= useful <= 2  # of equal quality and scale: they count alike
    assert rerank.fit(5 * truth + noise[0], noise[1] * 10, truth, 20) == 0
    assert rerank.fit(0.01 * truth + 0.01 * noise[0], 5 * truth + noise[1], truth, 40) > 0


def test_numbers_of_a_model():
    class Bare:
        pass

    assert rerank.rerank_weight(Bare()) == 1 and rerank.cosine_scale(Bare()) == 0
    from zoo.models.text_image import TextImage

    image = dict(patch=4, window=3, dims=(32,), depths=(1,), head_dim=16)
    text = dict(vocab_size=50, max_length=20, dim=24, depth=1, heads=3, hidden=30)
    model = TextImage(image, text, fusion_dim=32, fusion={"rerank_weight": 0.35})
    assert rerank.rerank_weight(model) == 0.35
    assert rerank.cosine_scale(model) == pytest.approx(1 / 0.07)
    model.logit_scale.data.fill_(9)
    assert rerank.cosine_scale(model) == pytest.approx(100)  # as TextImage.similarity clamps it
