"""Batches of graphs of similar size: little padding, bounded memory, and exact restart like EpochOrder."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from zoo.data.loader import EpochOrder
from zoo.errors import ZooError

POOL = 4  # batches whose graphs are sorted among each other: similar sizes; more, and a batch says too little of the whole


class PairBudget(EpochOrder):
    """Batches of places (index, epoch, repeat) of graphs with `sizes` nodes: batch_size graphs with at most `pairs` padded pairs.

    A batch of b graphs, the largest with n nodes, costs b n^2 pairs. Shuffled: graphs of which batch_size fit into the budget
    are cut into equal batches, sorted by size within a random pool; larger ones form smaller batches of their own. The number
    of batches is the same in every epoch, and no graph is left out: one that exceeds the budget alone is a batch alone. Not
    shuffled: in order. Depends on (seed, epoch) only; skip: batches to leave out.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, pairs: int = 2**17, seed: int = 0, shuffle: bool = True):
        super().__init__(len(sizes), batch_size, seed, shuffle)
        if pairs < 1:
            raise ZooError(f"loader: a budget of {pairs} pairs; at least 1 is needed")
        self.sizes, self.pairs = [int(size) for size in sizes], pairs

    def batches(self) -> list[list[int]]:
        """Indices of every batch of the epoch."""
        order = self.order()
        if not self.shuffle:
            return self._cut(order)
        small = [i for i in order if self.batch_size * self.sizes[i] ** 2 <= self.pairs]
        large = [i for i in order if self.batch_size * self.sizes[i] ** 2 > self.pairs]
        found, pool = [], POOL * self.batch_size
        for start in range(0, len(small), pool):
            part = sorted(small[start : start + pool], key=lambda i: self.sizes[i])
            found += [part[a : a + self.batch_size] for a in range(0, len(part), self.batch_size)]
        found += self._cut(sorted(large, key=lambda i: self.sizes[i]))
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]

    def __len__(self) -> int:
        return len(self.batches())

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        seen: Counter = Counter()
        for number, batch in enumerate(self.batches()):
            places = []
            for index in batch:
                places.append((index, self.epoch, seen[index]))
                seen[index] += 1
            if number >= self.skip:
                yield places

    def _cut(self, order: list[int]) -> list[list[int]]:
        """The order, cut where one more graph would exceed the budget or the batch size."""
        found, widest = [], 0
        for i in order:
            widest = max(widest, self.sizes[i])
            if found and len(found[-1]) < self.batch_size and (len(found[-1]) + 1) * widest**2 <= self.pairs:
                found[-1].append(i)
            else:
                found.append([i])
                widest = self.sizes[i]
        return found
