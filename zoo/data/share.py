"""What of every batch is this process's, where several train together (torchrun): the same batches, each cut over the ranks."""

from collections import deque
from collections.abc import Iterator

import torch.distributed as dist


def rank_of_world() -> tuple[int, int]:
    """(which process this is, how many there are); (0, 1) where there is one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def part(batch: list, rank: int, world: int) -> list:
    """The rank's run of a batch: runs differ by one item at most, in order, and together are the batch; rank 0 is never empty."""
    start, stop = (-(-len(batch) * at // world) for at in (rank, rank + 1))
    return batch[start:stop]


class Shared:
    """The rank's part of each batch of `order` (an EpochOrder): all ranks see the same number of batches.

    Of a batch with fewer items than ranks some get nothing. In training they take its first item as a stand-in, for every rank
    must have a part in the gradients; it weighs nothing there: `sizes` has the number of real items of every batch that was
    handed out, in order. In validation (no shuffling) they leave the batch out, so that each item is counted once.
    """

    def __init__(self, order, rank: int, world: int):
        self.order, self.rank, self.world, self.sizes = order, rank, world, deque()
        self.sampler = order  # Lightning calls loader.batch_sampler.sampler.set_epoch

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[list]:
        self.sizes.clear()
        for batch in self.order:
            mine = part(batch, self.rank, self.world)
            if mine or self.order.shuffle:
                self.sizes.append(len(mine))
                yield mine or batch[:1]
