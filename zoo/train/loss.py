"""Losses of text-image training: contrastive with all true pairs as targets, and matching with hard negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(logits: Tensor, positive: Tensor) -> Tensor:
    """Cross-entropy in both directions; a row's target is spread evenly over its true pairs.

    logits (t i) scaled similarity, positive (t i) bool, at least one True a row and a column. Source: Radford et al. 2021;
    Khosla et al. 2020 for several positives.
    """
    truth = positive.float()
    text = F.cross_entropy(logits, truth / truth.sum(1, keepdim=True))
    image = F.cross_entropy(logits.T, truth.T / truth.T.sum(1, keepdim=True))
    return (text + image) / 2


def hard_negatives(logits: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """One wrong column for each row, drawn by exp(logits) among the wrong ones: (rows, columns). Rows without one are left out.

    Drawn in float32. Source: Li et al. 2021 (ALBEF).
    """
    rows = (~positive).any(1).nonzero().squeeze(1)
    if not len(rows):
        return rows, rows
    chance = logits.detach().float()[rows].masked_fill(positive[rows], float("-inf"))
    chance = (chance - chance.max(1, keepdim=True).values).exp()
    return rows, torch.multinomial(chance, 1).squeeze(1)
