"""Ours against peers in one process: outputs compared first, then rounds in turn, of which the ratio of each round is taken.

What else the machine does hits neighbours in time alike, so it cancels in the ratio of one round; the order is reversed every
other round, so that nobody always runs behind the same neighbour. One thread, its CPU time: other processes are not counted.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from zoo.bench import Settings
from zoo.bench.limit import collect, replay
from zoo.bench.memory import peak

LONG_ENOUGH = 2e-3  # seconds of one sample: shorter work is repeated, else the clock itself is measured


@dataclass(frozen=True)
class Case:
    """One competitor: `run` does the work once, without gradients unless it opens them, and returns its output.

    `compared`: its weights are equal to ours, so its output must be the truth; `read` brings it into the truth's order first,
    outside of the time. `counted`: what the products of the limit are counted in (None: `run`).
    """

    name: str
    run: Callable[[], Tensor]
    compared: bool = True
    read: Callable[[Tensor], Tensor] = lambda output: output
    counted: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class Row:
    """One comparison at one size, counted in `unit`; cases[0] is ours.

    `truth` gives the right output in fp32; None: that of cases[0].
    `tolerance`: the largest error in fp32, relative to the truth's largest value where that is over 1.
    """

    name: str
    size: int
    unit: str
    cases: tuple[Case, ...]
    truth: Callable[[], Tensor] | None = None
    tolerance: float = 1e-5


@contextmanager
def surroundings(settings: Settings) -> Iterator[None]:
    """No gradients, the number of threads and the precision of `settings`, and the threads as they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=settings.dtype == "bf16"):
            yield
    finally:
        torch.set_num_threads(before)


def clock(settings: Settings) -> Callable[[], float]:
    """CPU time of this thread; wall time where it was asked for, or where other threads do part of the work."""
    return time.perf_counter if settings.wall or settings.threads > 1 else time.thread_time


def measure(row: Row, settings: Settings) -> list[dict]:
    """One plain record a case: error, median ms, ratio (its time / ours), peak MiB, and beside ours the limits in ms.

    A case whose output is wrong, or whose process was killed for memory, gets the reason under "refused", and no time.
    """
    records = [{"row": row.name, "size": row.size, "unit": row.unit, "case": case.name} for case in row.cases]
    for record, case in zip(records, row.cases):
        try:
            record["peak_mib"] = peak(case.run)
        except MemoryError as error:
            record["refused"] = str(error)
        except RuntimeError:  # what fails in this process too is raised below; CUDA's threads forbid a backward in the child only
            record["peak_mib"] = None
    _compare(row, records, settings)
    fit = {case.name: case.run for case, record in zip(row.cases, records) if "refused" not in record}
    ours = row.cases[0]
    limits = {}
    if ours.name in fit:
        products = collect(ours.counted or ours.run)
        limits = {part: replay(products, part) for part in ("linear", "attention") if products}
    times = interleave({**fit, **limits}, settings.rounds, clock(settings))
    for record in records:
        if record["case"] in fit:
            record["ms"] = 1e3 * median(times[record["case"]])
        if record["case"] in fit and ours.name in fit:
            record["ratio"] = ratio(times[record["case"]], times[ours.name])
    if limits:
        linear, attention = (1e3 * median(times[part]) for part in ("linear", "attention"))
        records[0] |= {"limit_linear_ms": linear, "limit_ms": linear + attention}
    return records


def _compare(row: Row, records: list[dict], settings: Settings) -> None:
    """Writes "error" into the records of compared cases, and "refused" where it is too large."""
    allowed = row.tolerance if settings.dtype == "fp32" else max(row.tolerance, 3e-2)  # 8 bits of mantissa, some layers deep
    truth = None
    if row.truth is not None:
        with torch.autocast("cpu", enabled=False):
            truth = row.truth()
    for record, case in zip(records, row.cases):
        if "refused" in record or not case.compared:
            continue
        output = case.read(case.run()).float()
        truth = output if truth is None else truth
        if output.shape != truth.shape:
            record["refused"] = f"output {[*output.shape]}, right is {[*truth.shape]}"
            continue
        record["error"] = float((output - truth).abs().max() / truth.abs().max().clamp(min=1))
        if not record["error"] <= allowed:  # NaN too
            record["refused"] = f"wrong output: error {record['error']:.1e}, allowed {allowed:.0e}"


def interleave(runs: dict[str, Callable], rounds: int, now: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each of `runs`, one sample a round, all of them in turn and in reversed order every other round."""
    repeats = {name: _repeats(run, now) for name, run in runs.items()}
    times = {name: [] for name in runs}
    gc.disable()
    try:
        for i in range(rounds):
            for name in reversed(runs) if i % 2 else runs:
                start = now()
                for _ in range(repeats[name]):
                    runs[name]()
                times[name].append((now() - start) / repeats[name])
    finally:
        gc.enable()
    return times


def _repeats(run: Callable, now: Callable[[], float]) -> int:
    """How often one sample repeats `run`; the call before it warms up."""
    run()
    start = now()
    run()
    return min(1000, max(1, math.ceil(LONG_ENOUGH / max(now() - start, 1e-9))))


def ratio(times: list[float], ours: list[float]) -> float:
    """Median over the rounds of time / our time: over 1 where ours is faster."""
    return median(theirs / mine for theirs, mine in zip(times, ours, strict=True))
