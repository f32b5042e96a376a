"""Losses of text-image training: softmax and sigmoid contrast with all true pairs as targets, and hard wrong pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor

SOFT_TEMPERATURE = 0.1  # of cosines between sentences; at 1 every caption would be like every other


def contrastive(logits: Tensor, positive: Tensor) -> Tensor:
    """Cross-entropy in both directions; a row's target is spread evenly over its true pairs.

    logits (t i) scaled similarity, positive (t i) bool, at least one True a row and a column. Source: Radford et al. 2021;
    Khosla et al. 2020 for several positives.
    """
    return (one_way(logits, spread(positive)) + one_way(logits.T, spread(positive.T))) / 2


def one_way(logits: Tensor, target: Tensor, left_out: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the rows: logits and target (n m), a row of the target sums to 1; `left_out` (n m) bool: columns
    that are neither right nor wrong, where the target is 0.
    """
    if left_out is not None:
        logits = logits.masked_fill(left_out, float("-inf"))
    chance = F.log_softmax(logits.float(), dim=1)
    return -(target * chance.masked_fill(target == 0, 0)).sum(1).mean()  # 0 * -inf would be NaN


def spread(positive: Tensor) -> Tensor:
    """True pairs (n m) bool as a target: each row evenly over its own."""
    truth = positive.float()
    return truth / truth.sum(1, keepdim=True)


def likeness(here: Tensor, there: Tensor, left_out: Tensor | None = None) -> Tensor:
    """How alike captions are, as a target: softmax of the cosines of sentence vectors (n d), (m d) -> (n m), rows sum to 1."""
    with torch.autocast(here.device.type, enabled=False):  # as of every cosine here: bf16 would leave 2 to 3 digits
        score = here.float() @ there.float().T / SOFT_TEMPERATURE
    return (score if left_out is None else score.masked_fill(left_out, float("-inf"))).softmax(dim=1)


def sigmoid(logits: Tensor, positive: Tensor, left_out: Tensor | None = None) -> Tensor:
    """Every pair a question of its own: -log sigmoid(+-logits), summed over a row, mean over rows.

    logits (n m) scaled similarity plus a learnt bias. Source: Zhai et al. 2023 (SigLIP), eq. 1.
    """
    loss = -F.logsigmoid(torch.where(positive, logits, -logits).float())
    return (loss if left_out is None else loss.masked_fill(left_out, 0)).sum(1).mean()


def hard_negatives(logits: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """One wrong column for each row, drawn by exp(logits) among the wrong ones: (rows, columns). Rows without one are left out.

    Drawn in float32. Source: Li et al. 2021 (ALBEF).
    """
    rows = (~positive).any(1).nonzero().squeeze(1)
    if not len(rows):
        return rows, rows
    score = logits.detach().float().nan_to_num()  # a loss that is NaN is reported by the run, not by the draw
    score = score[rows].masked_fill(positive[rows], float("-inf"))
    chance = (score - score.max(1, keepdim=True).values).exp()
    return rows, torch.multinomial(chance, 1).squeeze(1)
