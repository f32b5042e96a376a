"""Times on a GPU, beside those of the CPU: each call waited for, and the share of the time that the GPU worked."""

import subprocess
import time
from collections.abc import Callable
from statistics import median

import torch

LONG_ENOUGH = 0.5  # seconds: the driver tells the share of time with work over about the last sixth of a second


def there() -> bool:
    return torch.cuda.is_available()


def name() -> str:
    return torch.cuda.get_device_name()


def measure(runs: dict[str, Callable], records: list[dict], rounds: int) -> None:
    """Adds gpu_ms, gpu_ratio (time / ours) and gpu_busy (0 to 1, None: unknown) to the record of each of `runs`, ours first.

    Rounds in turn, the order reversed every other round; the median of the ratios of each round.
    """
    times = {case: [] for case in runs}
    for run in runs.values():
        _timed(run, 3)  # libraries are loaded, kernels chosen
    for i in range(rounds):
        for case in reversed(runs) if i % 2 else runs:
            times[case].append(_timed(runs[case], 10))
    ours = times[next(iter(runs))]
    for record in records:
        own = times[record["case"]]
        record |= {"gpu_ms": 1e3 * median(own), "gpu_ratio": median(t / o for t, o in zip(own, ours, strict=True)),
                   "gpu_busy": _busy_while(runs[record["case"]])}


def peak(run: Callable) -> float:
    """MiB that torch holds on the GPU at most during a call, beyond what stood there. MemoryError where it is too little."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    try:
        kept = run()  # noqa: F841  (the output counts)
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError("out of memory") from error
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _timed(run: Callable, repeats: int) -> float:
    """Seconds of one call: from an idle GPU to an idle GPU."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def _busy_while(run: Callable) -> float | None:
    end = time.perf_counter() + LONG_ENOUGH
    while time.perf_counter() < end:
        run()
    return busy()


def busy() -> float | None:
    """The share of the last moments in which the GPU had work, from the driver; None where it does not tell."""
    try:
        return torch.cuda.utilization() / 100
    except (ModuleNotFoundError, RuntimeError, AssertionError):  # needs the package nvidia-ml-py
        pass
    asked = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", str(torch.cuda.current_device())]
    try:
        return float(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout) / 100
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
