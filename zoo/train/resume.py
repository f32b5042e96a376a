"""Exact resume and a clean stop: random states in the checkpoint, one saved state at a signal."""

import os
import random
import signal
import sys

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from zoo.errors import ZooError
from zoo.train import ranks


class RandomState(Callback):
    """Python's, numpy's and torch's random states travel with the checkpoint; restored before the first batch.

    Under torchrun every rank draws its own (drop path, mixup), and the states of all ranks are kept.
    """

    _pending: dict | None = None

    def state_dict(self) -> dict:
        mine = self._mine()
        return {**mine, "ranks": ranks.everyone(mine)} if ranks.world() > 1 else mine

    def _mine(self) -> dict:
        numpy = np.random.get_state()
        return {
            "python": list(random.getstate()[1]), "torch": torch.get_rng_state(),
            "numpy": [torch.from_numpy(numpy[1].astype(np.int64)), numpy[2], numpy[3], numpy[4]],
        }

    def load_state_dict(self, state: dict) -> None:
        kept = state.get("ranks", [state])
        self._pending = kept[ranks.rank()] if len(kept) == ranks.world() else None

    def on_train_start(self, *_) -> None:
        if ranks.rank():
            torch.manual_seed(torch.initial_seed() + ranks.rank())

    def on_train_batch_start(self, *_) -> None:
        if self._pending is None:
            return
        state, self._pending = self._pending, None
        random.setstate((3, tuple(state["python"]), None))
        key, *rest = state["numpy"]
        np.random.set_state(("MT19937", key.numpy().astype(np.uint32), *rest))
        torch.set_rng_state(state["torch"])


class KeepState(Callback):
    """Saves the training state to `path` after every epoch, and at the first Ctrl-C or SIGTERM after the batch; then stops.

    A second signal stops at once. To be used as a context around the run: it gives the signals back.
    `caught` is the signal, `inside` says that it came inside an epoch.
    """

    def __init__(self, path, data: str = ""):
        self.data = data
        self.path, self.caught, self.inside, self._before = path, None, False, {}

    def __enter__(self) -> "KeepState":
        self._before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def state_dict(self) -> dict:
        return {"data": self.data}

    def on_train_start(self, *_) -> None:  # here, because Lightning puts its own in place before
        for signum in self._before:
            signal.signal(signum, self._catch)

    def _catch(self, signum, _frame) -> None:
        if ranks.world() > 1:  # a rank that leaves alone would hang the others; torchrun kills what is left after 30 s
            self.caught = signum
            return
        if self.caught:
            raise KeyboardInterrupt
        self.caught = signum
        print("Stopping after this batch; press Ctrl-C again to stop now.", file=sys.stderr, flush=True)

    def on_train_batch_end(self, trainer, _task, _outputs, _batch, number: int) -> None:
        self._agree()
        step = trainer.is_last_batch or (number + 1) % trainer.accumulate_grad_batches == 0  # summed gradients are not saved
        if self.caught and step and not trainer.should_stop:
            if not trainer.is_last_batch:  # else the save after the epoch comes next; and Lightning 2.6 resumes wrongly,
                self.inside = True  # the second time, from a state saved between the last batch and the epoch's end
                self._save(trainer)
            trainer.should_stop = True

    def on_train_epoch_end(self, trainer, *_) -> None:
        if not self.inside:
            self._save(trainer)
        self._agree()
        if self.caught:  # while it was validated
            trainer.should_stop = True

    def _agree(self) -> None:
        """All ranks stop after the same batch, whichever got the signal first."""
        if ranks.world() > 1:
            self.caught = signal.Signals(caught) if (caught := int(ranks.total(self.caught or 0, largest=True))) else None

    def _save(self, trainer) -> None:
        """Whole or not at all: the old state stays until the new one is complete."""
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            trainer.save_checkpoint(part)
            if not ranks.first():
                return
            with open(part, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(part, self.path)
        except (OSError, RuntimeError) as error:  # torch words a full disk as a RuntimeError
            part.unlink(missing_ok=True)
            kept = f"; kept: {self.path} from before" if self.path.exists() else ""
            why = str(error).splitlines()[0]
            raise ZooError(f"{self.path}: the training state could not be written ({why}){kept}") from error
