"""`zoo bench rnn`: one layer of self-attention against one recurrent layer of equal width, by batch and precision.

The articles say 5.2 times faster on one V100 and leave out batch, precision and cell; all three are named here, and `said` tells
from the measured ratios where the claim holds. Linear layers, weights and inputs are in the row's own precision.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from zoo.bench import Settings, gpu
from zoo.bench.rounds import Case, Row, measure
from zoo.core import Attention, Recorder

DTYPES = "fp32 and bf16 (weights and inputs)"
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
LENGTH, WIDTH, HEADS, BATCHES = 256, 512, 8, (1, 8, 32)
QUICK = {"length": 16, "width": 32, "batches": (1, 2)}
PUBLISHED, WHERE = 5.2, "42.7 ms / 8.2 ms = 5.2x for 100 forward passes on one V100; batch, precision and cell unstated"
TOLERANCE = {"fp32": 1e-5, "bf16": 3e-2}


def results(settings: Settings, progress: Callable[[str], None]) -> list[dict]:
    """Records of all rows; where a GPU is at hand also its times, ratios and how busy it was."""
    records = []
    for row in rows(settings):
        progress(f"rnn: {row.name}, {row.size} {row.unit}")
        records += measure(row, settings)
    for row in rows(settings, "cuda") if gpu.there() else ():
        progress(f"rnn: {row.name}, {row.size} {row.unit}, {gpu.name()}")
        own = [r for r in records if (r["row"], r["size"]) == (row.name, row.size)]
        gpu.measure({case.name: case.run for case in row.cases}, own, settings.rounds)
    return records


def rows(settings: Settings, device: str = "cpu") -> Iterator[Row]:
    """Rows by work, precision and batch; only ours is checked, against itself with its attention written out."""
    length, width, batches = QUICK.values() if settings.quick else (LENGTH, WIDTH, BATCHES)
    for dtype, precision in PRECISIONS.items():
        torch.manual_seed(0)
        ours = Attention(width, HEADS).to(device, precision)
        layers = {"self-attention": ours, **{name: cell(width, width, batch_first=True) for name, cell in CELLS.items()}}
        layers = {name: layer.to(device, precision) for name, layer in layers.items()}
        for batch in batches:
            x = torch.randn(batch, length, width).to(device, precision)
            for work, run in {"forward": _forward, "training step": _step}.items():
                cases = tuple(Case(name, lambda f=run, m=layer, x=x: f(m, x), layer is ours) for name, layer in layers.items())
                truth = lambda f=run, x=x: _written_out(ours, lambda: f(ours, x))  # noqa: E731
                yield Row(f"{work}, {dtype}", batch, f"x {length} tokens", cases, truth, TOLERANCE[dtype])


def said(records: list[dict], settings: Settings) -> list[str]:
    """In plain words, from the measured ratios: where the published factor is reached, where attention is faster, where not."""
    lines = [f"Published: {WHERE}."]
    threads = f"this CPU, {settings.threads} thread{'s' if settings.threads > 1 else ''}"
    for key, device in (("ratio", threads), ("gpu_ratio", "the GPU")):
        for work in ("forward", "training step"):
            own = [r for r in records if r["row"].startswith(work) and r["case"] in CELLS and r.get(key)]
            if own:
                lines.append(f"On {device}, {work}, the claim holds for: {_list(own, key, lambda x: x >= PUBLISHED)}. "
                             f"Attention is faster, by less: {_list(own, key, lambda x: 1 < x < PUBLISHED)}. "
                             f"It is not faster: {_list(own, key, lambda x: x <= 1)}.")
    return lines


def _list(records: list[dict], key: str, fits: Callable[[float], bool]) -> str:
    """`fp32 batch 1 GRU 7.9, LSTM 8.8; ...` of the records whose ratio fits."""
    found = {}
    for record in records:
        if fits(record[key]):
            where = f"{record['row'].rpartition(', ')[2]} batch {record['size']}"
            found.setdefault(where, []).append(f"{record['case']} {record[key]:.{1 if record[key] > 2 else 2}f}x")
    return "; ".join(f"{where} {', '.join(cells)}" for where, cells in found.items()) or "none"


def _forward(layer: nn.Module, x: Tensor) -> Tensor:
    out = layer(x)
    return out if isinstance(out, Tensor) else out[0]


@torch.enable_grad()
def _step(layer: nn.Module, x: Tensor) -> Tensor:
    """Forward and backward, the gradient of x included, as inside a network; the optimiser's part is the same for all."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    _forward(layer, x).float().square().mean().backward()
    return x.grad * x.grad.numel()  # of the size of 1


def _written_out(model: nn.Module, run: Callable[[], Tensor]) -> Tensor:
    with Recorder(model):
        return run().float()
