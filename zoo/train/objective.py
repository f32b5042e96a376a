"""The contrastive part of text-image training: which pairs are true, and what the loss makes of them."""

from math import log

import torch
from torch import Tensor, nn

from zoo.models.text_image import MAX_SCALE
from zoo.train.bank import Bank
from zoo.train.loss import likeness, one_way, sigmoid, spread
from zoo.train.recipe import Recipe


class Objective(nn.Module):
    """loss, soft_targets and bank of a recipe. `owned`: the numbers of the captions of each training item.

    sentences (captions dim): unit vectors of a frozen text tower, needed for soft_targets only. `bias` is the learnt one of the
    sigmoid loss; it starts where one true pair in a row of the batch is expected.
    """

    def __init__(self, recipe: Recipe, owned: list[list[int]], dim: int, sentences: Tensor | None = None):
        super().__init__()
        self.share = recipe.soft_targets
        longest = max(map(len, owned))
        table = torch.tensor([row + [-1] * (longest - len(row)) for row in owned])
        self.register_buffer("owned", table, persistent=False)
        self.register_buffer("sentences", sentences, persistent=False)
        self.bank = Bank(recipe.bank, dim) if recipe.bank else None
        start = torch.tensor(-log(max(recipe.batch_size - 1, 1)))
        self.bias = nn.Parameter(start) if recipe.loss == "sigmoid" else None

    def true_pairs(self, captions: Tensor, items: Tensor) -> Tensor:
        """(t i) bool: caption t is one of picture i's, its twin in another picture included."""
        return (self.owned[items][None] == captions[:, None, None]).any(-1)

    def forward(self, model: nn.Module, text: Tensor, image: Tensor, captions: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, similarity (t i)) of unit vectors (b dim) of aligned pairs; captions and items (b) are their numbers.

        The temperature is clamped before it is used, as in CLIP: it must not wander where its gradient has no say.
        """
        with torch.no_grad():
            model.logit_scale.clamp_(max=log(MAX_SCALE))
        logits = model.similarity(text, image)
        past = self.bank
        if past is None:
            to_image, to_text, far = logits, logits.T, (None, None)
        else:
            past_text, past_image = past.text.clone(), past.image.clone()  # backward needs them as they are now
            to_image = torch.cat([logits, model.similarity(text, past_image)], 1)
            to_text = torch.cat([logits.T, model.similarity(past_text, image).T], 1)
            far = self._not_asked(captions, items)
        true = self.true_pairs(captions, items)
        loss = (self._one_way(to_image, true, captions, far[0]) + self._one_way(to_text, true.T, captions, far[1])) / 2
        if past is not None:
            past.push(text.detach(), image.detach(), items, captions)
        return loss, logits

    def _one_way(self, logits: Tensor, true: Tensor, captions: Tensor, far: Tensor | None) -> Tensor:
        """logits (b b + bank), true (b b); `far` (b bank): entries of the bank that are neither right nor wrong."""
        left_out = None
        if far is not None:
            left_out = torch.cat([torch.zeros_like(true), far], 1)
            true = torch.cat([true, torch.zeros_like(far)], 1)
        if self.bias is not None:
            return sigmoid(logits + self.bias, true, left_out)
        target = spread(true)
        if self.share:
            others = captions if far is None else torch.cat([captions, self.bank.caption])
            target = target.lerp(likeness(self.sentences[captions], self.sentences[others], left_out), self.share)
        return one_way(logits, target, left_out)

    def _not_asked(self, captions: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """(t bank), (i bank): empty places, and those of the same picture or caption."""
        empty = self.bank.item < 0
        same_image = self.true_pairs(captions, self.bank.item.clamp(min=0))
        same_text = self.true_pairs(self.bank.caption, items).T
        return same_image | empty, same_text | empty
