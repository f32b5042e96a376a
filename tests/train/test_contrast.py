"""Text-image losses by hand: true pairs by picture and by caption, soft targets, sigmoid, memory bank, hard wrong pairs."""

from dataclasses import replace
from math import log
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from zoo.models.text_image import TextImage
from zoo.train.loss import SOFT_TEMPERATURE, contrastive, hard_negatives, likeness, one_way, sigmoid
from zoo.train.objective import Objective
from zoo.train.recipe import Recipe

RECIPE = Recipe(task="text_image_contrastive", model="text_image_pico", batch_size=4)
OWNED = [[0, 1], [2], [3, 4], [0, 5], [6]]  # pictures 0 and 3 share caption 0


def test_contrastive_is_the_hand_computed_one():
    logits = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    rows = [-2 + np.log(np.exp(2) + 1), -3 + np.log(np.exp(1) + np.exp(3))]
    columns = [-2 + np.log(np.exp(2) + np.exp(1)), -3 + np.log(1 + np.exp(3))]
    expected = (np.mean(rows) + np.mean(columns)) / 2
    assert contrastive(logits, torch.eye(2, dtype=torch.bool)).item() == pytest.approx(expected, rel=1e-6)


def test_several_true_pairs_share_the_target():
    """Twin captions: every cell true, so the best is to be indifferent."""
    positive = torch.ones(3, 3, dtype=torch.bool)
    even = contrastive(torch.zeros(3, 3), positive)
    assert even.item() == pytest.approx(np.log(3))
    assert contrastive(5 * torch.eye(3), positive) > even


def test_columns_left_out_are_as_if_they_were_not_there():
    logits = torch.randn(2, 4, requires_grad=True)
    left_out = torch.tensor([[False, False, True, False]] * 2)
    target = torch.tensor([[0.75, 0.25, 0, 0], [0, 1, 0, 0]])
    kept = [0, 1, 3]
    loss = one_way(logits, target, left_out)
    assert torch.allclose(loss, F.cross_entropy(logits[:, kept], target[:, kept]))
    loss.backward()
    assert logits.grad.isfinite().all() and not logits.grad[:, 2].any()


def test_sigmoid_is_siglips():
    """Zhai et al. 2023, algorithm 1: labels = 2 eye(n) - 1, loss = -sum(log_sigmoid(labels * logits)) / n."""
    logits = torch.randn(4, 4)
    labels = 2 * torch.eye(4) - 1
    assert torch.allclose(sigmoid(logits, torch.eye(4) > 0), -F.logsigmoid(labels * logits).sum() / 4)


def test_hard_negatives_are_wrong_ones_drawn_by_likeness():
    torch.manual_seed(0)
    logits = torch.tensor([[0.0, 9.0, 9.0], [0.0, 0.0, 0.0], [8.0, 0.0, 0.0]])
    positive = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    rows, columns = hard_negatives(logits.half(), positive)
    assert rows.tolist() == [0, 2] and columns.tolist()[0] == 2  # row 1 has none and is left out
    drawn = torch.stack([hard_negatives(logits, positive)[1] for _ in range(200)])
    assert (drawn[:, 1] == 0).float().mean() > 0.95


def test_hard_negatives_at_the_ends_of_the_scale():
    """At the largest temperature a wrong pair may be e^200 less likely than the true one: still drawn, never NaN."""
    logits = torch.tensor([[100.0, -100.0, -99.0], [float("nan")] * 3]).bfloat16()
    rows, columns = hard_negatives(logits, torch.tensor([[True, False, False], [False, True, False]]))
    assert rows.tolist() == [0, 1] and columns[0] in (1, 2) and columns[1] in (0, 2)


def test_a_batch_of_one_has_no_negative():
    rows, columns = hard_negatives(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert len(rows) == len(columns) == 0


def unit(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(shape), dim=-1)


def model(scale: float = 5.0):
    """What the objective needs of a TextImage."""
    fake = SimpleNamespace(logit_scale=torch.nn.Parameter(torch.tensor(log(scale))))
    fake.similarity = lambda text, image: TextImage.similarity(fake, text, image)
    return fake


def test_other_captions_of_the_same_picture_and_twins_are_true():
    objective = Objective(RECIPE, OWNED, 8)
    true = objective.true_pairs(torch.tensor([1, 2, 4, 0]), torch.tensor([0, 1, 2, 3]))
    assert true.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]


def test_without_options_the_objective_is_the_contrastive_loss():
    text, image, captions, items = unit(4, 8), unit(4, 8), torch.tensor([1, 2, 4, 0]), torch.arange(4)
    objective = Objective(RECIPE, OWNED, 8)
    loss, logits = objective(model(), text, image, captions, items)
    assert torch.allclose(logits, 5 * text @ image.T, atol=1e-5)
    assert torch.allclose(loss, contrastive(logits, objective.true_pairs(captions, items)))


def test_the_temperature_is_clamped_and_comes_back():
    given = model(1e4)
    text = unit(4, 8).requires_grad_()
    captions, items = torch.tensor([1, 2, 4, 6]), torch.tensor([0, 1, 2, 4])
    loss, logits = Objective(RECIPE, OWNED, 8)(given, text, -text.detach(), captions, items)
    assert logits.min().item() == pytest.approx(-100, rel=1e-4) and given.logit_scale.item() == pytest.approx(log(100))
    loss.backward()
    assert given.logit_scale.grad > 0  # all pairs wrong: the next step lowers it, from 100 and not from 10,000


def test_soft_targets_are_written_out():
    sentences = unit(7, 6).half()
    captions, items, share = torch.tensor([1, 2, 4, 6]), torch.tensor([0, 1, 2, 4]), 0.3
    text, image = unit(4, 8), unit(4, 8)
    loss, logits = Objective(replace(RECIPE, soft_targets=share), OWNED, 8, sentences)(model(), text, image, captions, items)
    alike = (sentences[captions].double() @ sentences[captions].double().T / SOFT_TEMPERATURE).exp()
    target = (1 - share) * torch.eye(4) + share * alike / alike.sum(1, keepdim=True)
    expected = (F.cross_entropy(logits.double(), target) + F.cross_entropy(logits.T.double(), target)) / 2
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert likeness(sentences, sentences).sum(1).allclose(torch.ones(7))


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_the_bank_adds_past_pairs_but_none_of_the_same_picture_or_caption(loss):
    """Against loops over every pair. Second batch: picture 0 comes again, picture 3 shares a caption with it."""
    torch.manual_seed(1)
    objective, given = Objective(replace(RECIPE, bank=3, loss=loss), OWNED, 8), model()
    first = unit(2, 8), unit(2, 8), torch.tensor([0, 3]), torch.tensor([0, 2])
    objective(given, *first)
    text, image, captions, items = unit(2, 8), unit(2, 8), torch.tensor([0, 2]), torch.tensor([3, 1])
    found, logits = objective(given, text, image, captions, items)
    bias = objective.bias.item() if loss == "sigmoid" else 0.0
    assert bias == (pytest.approx(-log(3)) if loss == "sigmoid" else 0)

    def row(query, here, there, wrong):
        near = 5 * here @ query + bias
        far = (5 * there @ query + bias)[wrong]
        if loss == "softmax":
            return F.cross_entropy(torch.cat([near[:1], near[1:], far])[None], torch.tensor([0]))
        return -F.logsigmoid(torch.cat([near[:1], -near[1:], -far])).sum()

    # caption 0 belongs to pictures 0 and 3: the past picture 0 is not asked about; caption 2: both are wrong
    rows = [row(text[0], image, first[1], [1]), row(text[1], image.flip(0), first[1], [0, 1])]
    # picture 3 owns the past caption 0
    columns = [row(image[0], text, first[0], [1]), row(image[1], text.flip(0), first[0], [0, 1])]
    assert found.item() == pytest.approx(((sum(rows) + sum(columns)) / 4).item(), rel=1e-5)
    assert objective.bank.item.tolist() == [1, 2, 3] and objective.bank.caption.tolist() == [2, 3, 0]  # the oldest is gone


def test_a_batch_larger_than_the_bank_leaves_its_end():
    objective = Objective(replace(RECIPE, bank=2), OWNED, 8)
    objective(model(), unit(3, 8), unit(3, 8), torch.tensor([1, 2, 4]), torch.tensor([0, 1, 2]))
    assert sorted(objective.bank.item.tolist()) == [1, 2]
