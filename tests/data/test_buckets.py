"""Batches by size: every graph once, within the budget, the same again from (seed, epoch)."""

import numpy as np
import pytest

from zoo.data.buckets import PairBudget
from zoo.errors import ZooError

SIZES = np.random.default_rng(0).integers(5, 40, 500).tolist() + [300, 90, 90, 120]


def cost(batch: list[tuple[int, int, int]]) -> int:
    return len(batch) * max(SIZES[index] for index, _, _ in batch) ** 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_graph_once_within_the_budget(shuffle):
    order = PairBudget(SIZES, 8, pairs=20_000, shuffle=shuffle)
    batches = list(order)
    assert len(batches) == len(order)
    assert sorted(index for batch in batches for index, _, _ in batch) == list(range(len(SIZES)))
    assert all(len(batch) <= 8 for batch in batches)
    assert [len(batch) for batch in batches if cost(batch) > 20_000] == [1]  # the graph of 300 nodes, alone
    if not shuffle:
        assert [index for batch in batches for index, _, _ in batch] == list(range(len(SIZES)))


def test_sizes_of_a_batch_are_similar():
    def padding(order) -> float:
        return sum(map(cost, order)) / sum(size**2 for size in SIZES)

    assert padding(PairBudget(SIZES, 8, 20_000)) < 1.3 < 1.7 < padding(PairBudget(SIZES, 8, 20_000, shuffle=False))


def test_an_epoch_repeats_exactly_and_goes_on_where_it_stopped():
    order, again = PairBudget(SIZES, 8, 20_000, seed=3), PairBudget(SIZES, 8, 20_000, seed=3)
    for epoch in (0, 1, 5):
        order.set_epoch(epoch), again.set_epoch(epoch)
        again.skip = 4
        first = list(order)
        assert list(again) == first[4:] and {e for batch in first for _, e, _ in batch} == {epoch}
    again.skip = 0
    assert list(PairBudget(SIZES, 8, 20_000, seed=4)) != list(PairBudget(SIZES, 8, 20_000, seed=3))


def test_epochs_differ_in_companions_and_not_in_length():
    order, found = PairBudget(SIZES, 8, 20_000), []
    for epoch in range(4):
        order.set_epoch(epoch)
        found.append({frozenset(index for index, _, _ in batch) for batch in order})
    assert len({len(batches) for batches in found}) == 1
    assert len(found[0] & found[1]) < 0.1 * len(found[0])


def test_a_budget_below_one_pair_is_refused():
    with pytest.raises(ZooError, match="budget of 0 pairs"):
        PairBudget(SIZES, 8, pairs=0)
