"""`zoo bench memory`: the longest sequence that attention of 8 heads of 64 gets through in a budget, and one long sequence.

Counted: queries, keys, values, what is computed on the way, the output. The articles say 4 times longer than softmax written
out. Ours asks for the fused kernel; a relative position is a view of a line of numbers (zoo.core.Whole), nothing of length^2.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median

import torch
from einops import einsum
from torch import Tensor

from zoo.bench import Settings, gpu
from zoo.bench.memory import RESET, capped, peak
from zoo.bench.rounds import clock, ratio
from zoo.core import ClippedPosition, Whole, attention
from zoo.core.attention import attend, weigh
from zoo.errors import ZooError

DTYPES = "fp32"
HEADS, WIDTH, REACH = 8, 64, 128  # REACH: the relative position is a table of -128 .. 128, clipped beyond
LONG, QUICK_LONG, MOST_ROUNDS = 32768, 1024, 3  # one sequence in full: half a minute a call
ASKED = 64  # queries asked where the length is searched: the memory of a call does not depend on it, its time does
EXACT = 0.01  # the longest sequence is found to 1 %
PUBLISHED, ALLOWED_MIB, ALLOWED_RATIO, TOLERANCE = 4, 300, 1.3, 1e-5
OURS, WRITTEN, BIASED = "zoo", "written out", ", relative position"


@dataclass(frozen=True)
class Inputs:
    """q, k, v (1 n h d), as a projection gives them, and the relative position or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    position: ClippedPosition | None

    def ask(self, asked: slice) -> Tensor:
        """Those queries by the core's own path: (1 h n d)."""
        q = self.q.transpose(1, 2)[:, :, asked]
        if self.position is None:
            return attention(q, self.k.transpose(1, 2), self.v.transpose(1, 2))
        layout = Whole().layout((self.q.shape[1],))
        keys, values = (layout.keys(t[:, None])[:, 0] for t in (self.k, self.v))
        return self.position.look(attend, lambda position: layout.bias(position)[:, asked], q, keys, values, None)

    def write_out(self, asked: slice) -> Tensor:
        """The same by softmax(q k^T / sqrt(d) + bias) v, every weight at once."""
        q, k, v = (t.transpose(1, 2) for t in (self.q, self.k, self.v))
        bias = None if self.position is None else self.position.reversed(q.shape[2])[:, asked].flip(-1)
        return einsum(weigh(q[:, :, asked], k, None, bias), v, "b h n m, b h m d -> b h n d")


def results(settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    """Records: the longest sequence of each way with and without relative position; then one long sequence, ours.

    ZooError where the system does not tell the peak of a process (not Linux).
    """
    if not RESET.exists():
        raise ZooError(f"bench memory: the peak of a process is read from {RESET}, which this system does not have")
    budget = 1024 * settings.budget / (32 if settings.quick else 1)
    records = []
    for device in ("cpu", "cuda") if gpu.there() else ("cpu",):
        where = "" if device == "cpu" else f", {gpu.name()}"
        found = {}
        for case, run in _ways(device).items():
            progress(f"memory: {case}, the longest sequence in {budget:g} MiB{where}")
            found[case], most = longest(run, budget, device)
            other = WRITTEN + case.removeprefix(OURS) if case.startswith(OURS) else None
            records.append({"row": f"longest sequence in {budget:g} MiB{where}", "size": found[case], "unit": "tokens",
                            "case": case, "peak_mib": most, "longer": other and found[case] / found[other]})
    return records + _long(settings, progress)


def said(records: list[dict], _settings: Settings) -> list[str]:
    """What became of the published factor, and of the limits on one long sequence."""
    lines = [f"Published: {PUBLISHED} times longer than softmax written out."]
    for record in records:
        if record.get("longer"):
            lines.append(f"{record['case']}, {record['row']}: {record['size']:,} tokens, {record['longer']:.0f} times longer.")
    one = [record for record in records if record["row"] == "one sequence"]
    for record in one:
        fits = "within" if record["peak_mib"] <= ALLOWED_MIB else "NOT within"
        slow = "" if record is one[0] else f"; {record['ratio']:.2f} of the time without (allowed {ALLOWED_RATIO})"
        lines.append(f"{record['case']}, {record['size']:,} tokens: {record['peak_mib']:.0f} MiB beyond queries, keys and "
                     f"values, {fits} {ALLOWED_MIB}{slow}.")
    return lines


def longest(run: Callable[[int], Callable], budget: float, device: str = "cpu") -> tuple[int, float]:
    """(tokens, MiB): the longest sequence, to 1 %, whose run(tokens) has its peak within `budget` MiB, and that peak."""
    fits, most, over = 0, 0.0, 1024
    while (used := _peak(run(over), budget, device)) <= budget:
        fits, most, over = over, used, 2 * over
    too_much, aside = used, -0.5
    while over - fits > max(1, EXACT * fits):
        share = 0.5 if too_much == inf else (budget - most) / (too_much - most)  # on a line between what is known
        middle = fits + share * (over - fits) + aside * EXACT * fits  # a little aside of it: the next step closes the gap
        middle = min(max(int(middle), fits + 1), over - 1)
        used = _peak(run(middle), budget, device)
        if used <= budget:
            fits, most, aside = middle, used, 0.5
        else:
            over, too_much, aside = middle, used, -0.5
    return fits, most


def _peak(run: Callable, budget: float, device: str) -> float:
    """MiB of a call; inf where it runs out of memory, of which a child may take twice the budget."""
    try:
        return peak(capped(run, 2 * budget)) if device == "cpu" else gpu.peak(run)
    except MemoryError:
        return inf


def _ways(device: str) -> dict[str, Callable[[int], Callable]]:
    """case -> tokens -> what is run at that length: all queries where they are written out, some of them otherwise."""
    return {case + term: partial(_at, ask, bool(term), device) for term in ("", BIASED)
            for case, ask in ((WRITTEN, _all), (OURS, _some))}


def _at(ask: Callable, biased: bool, device: str, tokens: int) -> Callable[[], Tensor]:
    position = ClippedPosition(REACH, HEADS).to(device) if biased else None

    def run() -> Tensor:
        q, k, v = (torch.full((1, tokens, HEADS, WIDTH), 0.1, device=device) for _ in range(3))
        return ask(Inputs(q, k, v, position))

    return run


def _all(inputs: Inputs) -> Tensor:
    return inputs.write_out(slice(None))


def _some(inputs: Inputs) -> Tensor:
    """All of the output is there, and ASKED queries of it are computed."""
    out = torch.full_like(inputs.q, 0.1)
    out[:, :ASKED] = inputs.ask(slice(ASKED)).transpose(1, 2)
    return out


def _long(settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    """One long sequence, every query: peak beyond queries, keys and values; time; error of its first and last queries."""
    tokens = QUICK_LONG if settings.quick else LONG
    torch.manual_seed(0)
    qkv = [torch.randn(1, tokens, HEADS, WIDTH) for _ in range(3)]
    inputs, records = _inputs(qkv), []
    for case, own in inputs.items():
        progress(f"memory: {case}, one sequence of {tokens} tokens, peak")
        asked = iter([slice(ASKED)])  # the call that warms up need not ask all
        records.append({"row": "one sequence", "size": tokens, "unit": "tokens", "case": case,
                        "peak_mib": peak(lambda own=own, asked=asked: own.ask(next(asked, slice(None))))})
    now, times = clock(settings), {case: [] for case in inputs}
    for i in range(min(settings.rounds, MOST_ROUNDS)):
        for case in reversed(inputs) if i % 2 else inputs:
            progress(f"memory: {case}, one sequence of {tokens} tokens, round {i + 1}")
            start = now()
            inputs[case].ask(slice(None))
            times[case].append(now() - start)
    for record, (case, own) in zip(records, inputs.items()):
        record |= {"ms": 1e3 * median(times[case]), "ratio": ratio(times[case], times[OURS])}
        record["error"] = max(float((own.ask(at) - own.write_out(at)).abs().max()) for at in (slice(ASKED), slice(-ASKED, None)))
        if record["error"] > TOLERANCE:
            record["refused"] = f"wrong output: error {record['error']:.1e}, allowed {TOLERANCE:.0e}"
    if gpu.there():
        gpu.measure({case: partial(own.ask, slice(None)) for case, own in _inputs(qkv, "cuda").items()}, records, settings.rounds)
    return records


def _inputs(qkv: list[Tensor], device: str = "cpu") -> dict[str, Inputs]:
    """Ours without and with relative position, on the same numbers."""
    on_device = [t.to(device) for t in qkv]
    return {OURS: Inputs(*on_device, None), OURS + BIASED: Inputs(*on_device, ClippedPosition(REACH, HEADS).to(device))}
