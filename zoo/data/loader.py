"""A loader that restarts exactly: the order depends on (seed, epoch) only, a restart skips what is done."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import DataLoader, Dataset

from zoo.data.share import Shared, rank_of_world
from zoo.errors import ZooError

TIMEOUT = 300  # seconds that a worker may take for one batch
WORKER_LOST = ("timed out", "exited unexpectedly", "killed by signal")  # how torch words it


class EpochOrder:
    """Batches of places (index, epoch, repeat) for one epoch; the last batch may be smaller.

    shuffle: a permutation; with weights (n,) instead n draws with replacement, index i by weights[i]. repeat
    counts the draws of an index within the epoch, so that each is augmented anew. skip: batches to leave out.
    """

    def __init__(self, n: int, batch_size: int, seed: int = 0, shuffle: bool = True,
                 weights: Sequence[float] | None = None):
        if n < 1 or batch_size < 1:
            raise ZooError(f"loader: {n} items in batches of {batch_size}; both must be at least 1")
        if weights is not None and len(weights) != n:
            raise ZooError(f"loader: {len(weights)} weights for {n} items")
        self.n, self.batch_size, self.seed, self.shuffle, self.weights = n, batch_size, seed, shuffle, weights
        self.epoch = self.skip = 0
        self.sampler = self  # Lightning calls loader.batch_sampler.sampler.set_epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def order(self) -> list[int]:
        """Indices of the whole epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        if self.weights is not None:
            weights = torch.as_tensor(self.weights, dtype=torch.float64)
            return torch.multinomial(weights, self.n, replacement=True, generator=generator).tolist()
        return torch.randperm(self.n, generator=generator).tolist() if self.shuffle else list(range(self.n))

    def __iter__(self) -> Iterator[list[tuple[int, int, int]]]:
        seen: Counter = Counter()
        places = []
        for index in self.order():
            places.append((index, self.epoch, seen[index]))
            seen[index] += 1
        for start in range(self.skip * self.batch_size, self.n, self.batch_size):
            yield places[start:start + self.batch_size]


class ResumableLoader(DataLoader):
    """Batches of a data set of zoo.data.dataset; state_dict counts those handed out in this epoch.

    waited: seconds of this epoch in which the caller waited for a batch.

    order: what makes the batches, default an EpochOrder of the arguments. num_workers changes nothing but the speed. Under
    torchrun a rank gets its part of every batch (zoo.data.share); `real` says how many items of the last one count.
    Raises ZooError if a worker dies, hangs or meets a broken item.
    """

    def __init__(self, dataset: Dataset, batch_size: int = 1, seed: int = 0, shuffle: bool = True,
                 weights: Sequence[float] | None = None, num_workers: int = 0, order: EpochOrder | None = None):
        self.done, self.waited, self.real = 0, 0.0, 0
        self.order = order or EpochOrder(len(dataset), batch_size, seed, shuffle, weights)
        super().__init__(
            dataset, batch_sampler=Shared(self.order, *rank_of_world()),
            collate_fn=getattr(dataset, "collate", None),  # None: stacked
            num_workers=num_workers, timeout=TIMEOUT if num_workers else 0, worker_init_fn=_leave_signals,
            generator=torch.Generator())  # so that starting an epoch draws nothing from the global one

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def __iter__(self):
        order, sizes = self.order, self.batch_sampler.sizes
        self.done, self.waited = order.skip, 0.0
        start = time.monotonic()
        if self.num_workers and hasattr(self.dataset, "prepare"):
            self.dataset.prepare()
        try:
            for batch in super().__iter__():
                self.waited += time.monotonic() - start
                order.skip = 0
                self.done += 1
                self.real = sizes.popleft()
                yield batch
                start = time.monotonic()
        except ZooError as error:  # torch sends a worker's error with its traceback as text
            raise ZooError(str(error).rsplit("ZooError: ", 1)[-1].strip()) from error
        except RuntimeError as error:
            if not any(words in str(error) for words in WORKER_LOST):
                raise
            raise ZooError(f"loader: {str(error).splitlines()[0]}\nnum_workers is {self.num_workers}; try 0 "
                           "(a worker may lack memory or /dev/shm)") from error

    def state_dict(self) -> dict:
        return {"done": self.done, **self._identity()}

    def load_state_dict(self, state: dict) -> None:
        """Goes on after the batches done. Raises ZooError if items, batch size or seed differ."""
        for key, here in self._identity().items():
            if state[key] != here:
                raise ZooError(f"resume: {key} was {state[key]} and is now {here}; it must be the same")
        self.done = self.order.skip = state["done"] % len(self)

    def _identity(self) -> dict:
        order = self.order
        return {"items": order.n, "batch_size": order.batch_size, "seed": order.seed}


def _leave_signals(_worker: int) -> None:
    """A group of its own: torchrun and a terminal signal all processes of a group, but the main one still wants its batches."""
    os.setpgid(0, 0)
