"""Mixup: what comes out is a blend of two items and of their labels, in the same shares."""

import pytest
import torch

from zoo.train.mix import mixup


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
def test_pictures_and_labels_are_blended_alike(batch):
    torch.manual_seed(0)
    x = torch.eye(batch).view(batch, 1, 1, batch).expand(-1, 3, 2, -1)  # item i is 1 in column i
    (mixed,), target = mixup([x], torch.eye(batch), alpha=0.4)
    assert torch.allclose(mixed[:, 0, 0], target) and torch.allclose(target.sum(1), torch.ones(batch))
    assert (target.diagonal() >= 0.5).all()


def test_shares_differ_within_a_batch_and_follow_the_seed():
    def draw():
        torch.manual_seed(3)
        return mixup([torch.randn(64, 1, 2, 2)], torch.eye(64), alpha=1.0)[1]

    assert torch.equal(draw(), draw())
    assert draw().max(1).values.unique().numel() > 30


def test_a_mixed_sound_is_as_long_as_the_longer_one_and_padding_is_silent():
    torch.manual_seed(1)
    wave = torch.full((4, 10), float("nan"))
    lengths = torch.tensor([3, 10, 5, 1])
    for row, length in enumerate(lengths):
        wave[row, :length] = 1.0
    (mixed, longer), target = mixup([wave, lengths], torch.eye(4), alpha=1.0)
    assert mixed.isfinite().all()
    for row in range(4):
        share = target[row, row]
        assert longer[row] == max(lengths[i] for i in target[row].nonzero().flatten())
        assert mixed[row, longer[row]:].eq(0).all()
        both = int(min(lengths[i] for i in target[row].nonzero().flatten()))
        assert torch.allclose(mixed[row, :both], torch.ones(both)) and share >= 0.5
