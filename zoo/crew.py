"""Several processes that share one job (torchrun): who is who, and what the first one does for all.

Nothing here imports torch before there is more than one process. A process that dies closes its sockets: the others' next
exchange fails at once, and torchrun ends those that are between two exchanges.
"""

import atexit
import hashlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from zoo.errors import UsageError, ZooError

WAIT = timedelta(days=1)  # for a slow one; a dead one is noticed at once
LINGER = 20.0  # seconds; torchrun cuts them short


class Said(ZooError):
    """Something went wrong for all, and the first process says it."""


class Lost(ZooError):
    """Another process has ended in the middle."""


def launched() -> int:
    """How many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def number() -> int:
    """Which of them this is, from 0."""
    return int(os.environ["RANK"]) if launched() > 1 else 0


def first() -> bool:
    """Whether this process writes what there is one of, and speaks."""
    return number() == 0


def speaks(error: ZooError) -> bool:
    """Whether this process says an error. Wrong usage, and all before the processes have met, is said once a machine."""
    if launched() == 1:
        return True
    here = sys.modules.get("torch.distributed")
    met = here is not None and here.is_available() and here.is_initialized()
    common = isinstance(error, UsageError) or not met
    return not isinstance(error, Said) and (not common or os.environ.get("LOCAL_RANK", "0") == "0")


def linger() -> None:
    """Leaves the one that speaks the time to do so: torchrun ends all processes once the first of them has ended."""
    time.sleep(LINGER)


@contextmanager
def stoppable() -> Iterator[list[int]]:
    """SIGTERM ends the block as Ctrl-C does, by KeyboardInterrupt; which one it was is in the list. The first one counts:
    a terminal and torchrun signal the same process one after the other."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def stop(signum: int, _frame) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        caught.append(signum)
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def mine(key: str) -> bool:
    """Whether this process works on `key`: the same one does whatever lies beside it, and in whatever order."""
    if launched() == 1:
        return True
    found = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(found, "big") % launched() == number()


def join() -> None:
    """Meets the others."""
    if launched() == 1:
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=WAIT)
        atexit.register(dist.destroy_process_group)  # or its threads may outlive the interpreter, and abort


def lead(work: Callable):
    """What `work()` gives in the first process, in all of them. Where it fails there, the others raise `Said`."""
    if launched() == 1:
        return work()
    box: list = [None, None]
    if first():
        try:
            box = [True, work()]
        except ZooError:
            _exchange(lambda dist: dist.broadcast_object_list([False, None], 0))
            raise
    _exchange(lambda dist: dist.broadcast_object_list(box, 0))
    done, value = box
    if not done:
        raise Said("the first process says why")
    return value


def everyone(value) -> list:
    """The values of all processes, in their order, in each of them."""
    found = [value] * launched()
    if launched() > 1:
        _exchange(lambda dist: dist.all_gather_object(found, value))
    return found


def _exchange(call: Callable) -> None:
    import torch.distributed as dist

    try:
        call(dist)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise Lost(f"another process of this run has ended ({str(error).splitlines()[0][:120]})") from error
