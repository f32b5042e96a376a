"""The contrastive part of text-image training: which pairs are true, and what the loss makes of them."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor, nn

from zoo.models.text_image import MAX_SCALE
from zoo.train.bank import Bank
from zoo.train.loss import likeness, one_way, sigmoid, spread
from zoo.train.recipe import Recipe


class Objective(nn.Module):
    """loss, soft_targets and bank of a recipe. `owned`: the numbers of the captions of each training item; of a list they become
    a table, anything else (captions in shards) is asked for the items of a batch.

    sentences (captions dim): unit vectors of a frozen text tower, needed for soft_targets only; where captions are not at hand,
    their width, and those of a batch come with it. `bias` is the learnt one of the
    sigmoid loss; it starts where one true pair in a row of the batch is expected.
    """

    def __init__(self, recipe: Recipe, owned: Sequence[list[int]], dim: int, sentences: Tensor | int | None = None):
        super().__init__()
        self.share = recipe.soft_targets
        self._asked = None if isinstance(owned, list) else owned
        self.register_buffer("owned", table(owned) if isinstance(owned, list) else None, persistent=False)
        wide = sentences if isinstance(sentences, int) else 0
        self.register_buffer("sentences", None if wide else sentences, persistent=False)
        self.bank = Bank(recipe.bank, dim, wide) if recipe.bank else None
        start = torch.tensor(-log(max(recipe.batch_size - 1, 1)))
        self.bias = nn.Parameter(start) if recipe.loss == "sigmoid" else None

    def true_pairs(self, captions: Tensor, items: Tensor) -> Tensor:
        """(t i) bool: caption t is one of picture i's, its twin in another picture included."""
        own = self.owned[items] if self._asked is None else table([self._asked[i] for i in items.tolist()]).to(captions.device)
        return (own[None] == captions[:, None, None]).any(-1)

    def forward(self, model: nn.Module, text: Tensor, image: Tensor, captions: Tensor, items: Tensor,
                sentences: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(loss, similarity (t i)) of unit vectors (b dim) of aligned pairs; captions and items (b) are their numbers; sentences
        (b words) where those of all captions are not at hand.

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
        alike = self._alike(captions, sentences) if self.share else None
        loss = (self._one_way(to_image, true, alike, far[0]) + self._one_way(to_text, true.T, alike, far[1])) / 2
        if past is not None:
            past.push(text.detach(), image.detach(), items, captions, sentences)
        return loss, logits

    def _alike(self, captions: Tensor, sentences: Tensor | None) -> tuple[Tensor, Tensor]:
        """Sentence vectors of the batch, and of the batch and the bank."""
        mine = self.sentences[captions] if sentences is None else sentences
        if self.bank is None:
            return mine, mine
        past = self.sentences[self.bank.caption] if sentences is None else self.bank.sentence.clone()
        return mine, torch.cat([mine.float(), past.float()])  # autocast joins no half precision on a CPU

    def _one_way(self, logits: Tensor, true: Tensor, alike: tuple[Tensor, Tensor] | None, far: Tensor | None) -> Tensor:
        """logits (b b + bank), true (b b); `far` (b bank): entries of the bank that are neither right nor wrong."""
        left_out = None
        if far is not None:
            left_out = torch.cat([torch.zeros_like(true), far], 1)
            true = torch.cat([true, torch.zeros_like(far)], 1)
        if self.bias is not None:
            return sigmoid(logits + self.bias, true, left_out)
        target = spread(true)
        if alike is not None:
            target = target.lerp(likeness(*alike, left_out), self.share)
        return one_way(logits, target, left_out)

    def _not_asked(self, captions: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """(t bank), (i bank): empty places, and those of the same picture or caption."""
        empty = self.bank.item < 0
        same_image = self.true_pairs(captions, self.bank.item.clamp(min=0))
        same_text = self.true_pairs(self.bank.caption, items).T
        return same_image | empty, same_text | empty


def table(rows: list[list[int]]) -> Tensor:
    """(rows longest), -1 where a row has fewer."""
    longest = max(map(len, rows))
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows])
