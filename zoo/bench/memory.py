"""Peak memory of a piece of work, in a child process so that nothing of the parent's past is counted."""

import ctypes
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(run: Callable) -> float | None:
    """MiB that a call of `run` needs at most beyond what stood before it; None where the system does not tell (not Linux).

    The second call in the child counts: libraries are loaded, and weights, inputs and tables kept between calls are there.
    The child has one thread. MemoryError where it was killed or ran out of memory; RuntimeError for other failures of `run`.
    """
    if not RESET.exists():
        return None
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on threads and fork: the child starts none
        child = os.fork()
    if child == 0:
        _answer(run, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        kind, _, text = pipe.read().partition(" ")
    _, status = os.waitpid(child, 0)
    if kind == "peak":
        return float(text)
    if kind == "memory" or os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        raise MemoryError("out of memory")
    raise RuntimeError(f"peak memory: the child failed: {text or os.waitstatus_to_exitcode(status)}")


def capped(run: Callable, mib: float) -> Callable:
    """`run` in a process that may grow by so many MiB: beyond that it is out of memory, and nothing else suffers."""
    import resource  # not on every system

    def limited():
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (1024 * _status("VmSize") + int(2**20 * mib), hard))
        return run()

    return limited


def _answer(run: Callable, writer: int) -> None:
    """In the child: writes "peak MIB", "memory" or "error WHAT" and ends the process without the parent's clean-up."""
    try:
        torch.set_num_threads(1)
        answer = f"peak {_second_call(run)}"
    except MemoryError:
        answer = "memory"
    except BaseException as error:  # the parent raises it
        answer = "memory" if "DefaultCPUAllocator" in str(error) else f"error {error!r}"
    os.write(writer, answer.encode())
    os._exit(0)


def _second_call(run: Callable) -> float:
    run()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # freed memory that the allocator kept would serve the second call unseen
    before = _status("VmRSS")
    RESET.write_text("5")  # VmHWM starts anew
    kept = run()  # noqa: F841  (the output counts)
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    """KiB of a line of /proc/self/status."""
    return next(int(line.split()[1]) for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
