"""What a written program costs and what it loses: score on labelled data, size, time per item, beside the model itself."""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from zoo import evaluate, inference
from zoo.errors import UsageError, ZooError
from zoo.export import onnx
from zoo.export.dense import collated
from zoo.export.files import Written
from zoo.export.programs import programs

BATCHES = (1, 32)
ROUNDS = 15


class Running:
    """Stands for a model in zoo.evaluate; its logits come from `run`, inputs -> outputs. module: a DenseGraph, or None."""

    training = False

    def __init__(self, model, run, module=None):
        self.model, self.run, self.module, self.seen = model, run, module, []

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def eval(self) -> None:
        """What zoo.inference.evaluating asks for; a program knows no modes."""

    def train(self, _mode: bool) -> None:
        """As eval."""

    def __call__(self, *inputs) -> torch.Tensor:
        return self.run(inputs[0] if isinstance(inputs[0], Padded) else inputs)[0]

    def preprocess(self, item):
        """As the model's; the first are kept, to be timed with."""
        found = self.model.preprocess(item)
        if len(self.seen) < BATCHES[-1]:
            self.seen.append(found)
        return found

    def collate(self, graphs: list):
        return Padded(collated(self.module, graphs)) if self.module else self.model.collate(graphs)


class Padded(tuple):
    """The tensors of padded graphs, where a GraphBatch is expected."""

    def to(self, _device) -> "Padded":
        return self


def compare(model, written: list[Written], data: Path, options: evaluate.Options) -> list[dict]:
    """One row for the model in PyTorch and one for each ONNX file: score, megabytes, CPU ms per item at batch 1 and 32.

    The time is that of one thread, the median of 15 rounds, of the model alone, on the first items. UsageError for a model of
    several programs.
    """
    if model.card.modality == "text_image":
        raise UsageError("--check: a text-image model is three programs, and has no one score; leave --check out")
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    runs = [("PyTorch", _mb(size), Running(model, lambda inputs: [model(*inputs)]))]
    module = programs(model)[0].module if model.card.modality == "graph" else None
    runs += [(part.file.name, _mb(part.bytes), Running(model, onnx.runner(part.file), module)) for part in written]
    options = replace(options, split=options.split or _test(data, options))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scored = [(name, size, running, _score(running, data, options)) for name, size, running in runs]
        return [{"program": name, **score, "MB": size, **_times(running)} for name, size, running, score in scored]
    finally:
        torch.set_num_threads(threads)


def _score(running: Running, data: Path, options: evaluate.Options) -> dict:
    found = evaluate.evaluate(running, data, options)
    names = [name for name in ("accuracy", "mAP", "RMSE", "MAE") if name in found]
    if not names:
        raise ZooError(f"{data}: no one score to compare by; its targets are several: {', '.join(found.get('targets', ()))}")
    return {"split": found["split"] or "all", "items": found["items"], **{name: _shown(name, found) for name in names}}


def _shown(name: str, found: dict) -> str:
    """With a digit more than elsewhere: what is looked for is a small loss."""
    if name in ("accuracy", "mAP"):
        return f"{100 * found[name]:.2f} %"
    return f"{found[name]:.4f} {found.get('unit', '')}".rstrip()


def _test(data: Path, options: evaluate.Options) -> str | None:
    """The split `test` where the data has one."""
    from zoo.data.gather import splits

    return "test" if "test" in splits(data, options.split_column or "split") else None


def _times(running: Running) -> dict:
    found = {}
    with inference.evaluating(running):
        for batch in BATCHES:
            inputs = inference.inputs(running, running.seen[:batch])
            running(*inputs)  # warm
            spent = []
            for _ in range(ROUNDS):
                start = time.thread_time()
                running(*inputs)
                spent.append(time.thread_time() - start)
            found[f"ms/item at {batch}"] = f"{1000 * median(spent) / len(running.seen[:batch]):.2f}"
    return found


def _mb(count: int) -> str:
    return f"{count / 1e6:.2f}"
