"""`zoo bench baselines`: a GCN or GINE learns exactly as `zoo train` would have our model learn, and meets the test split once.

The task is the one that `zoo train` builds (targets and their scaling, loss, score), with another network in it; data, splits,
encoded columns, batches, optimiser, schedule, moving average, best epoch and seed come from the same code (zoo.train.run.fit).
Dropout and pooling are those of our model.
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from zoo import checkpoint
from zoo.bench.baselines import GraphBaseline, NodeGCN, stack
from zoo.data.buckets import PairBudget
from zoo.data.loader import ResumableLoader
from zoo.errors import UsageError, ZooError
from zoo.inference import evaluating
from zoo.train import adapt, callbacks, resume, sets
from zoo.train import run as runs
from zoo.train.graphs import GraphDataset
from zoo.train.nodes import NodeDataset
from zoo.train.recipe import Recipe
from zoo.train.task import Task

TEST = "test"


@dataclass(frozen=True)
class Baseline:
    """Which network. dim, layers None: 96 and 5 for graphs; 16 and always 2 for nodes (gcn only), see zoo.bench.baselines."""

    conv: str = "gine"
    dim: int | None = None
    layers: int | None = None

    def __post_init__(self):
        if self.conv not in ("gine", "gcn"):
            raise UsageError(f"baselines: --conv {self.conv}; allowed: gine, gcn")
        for name, value in {"--dim": self.dim, "--layers": self.layers}.items():
            if value is not None and value < 1:
                raise UsageError(f"baselines: {name} {value}; allowed: >= 1")


def run(recipe: Recipe, baseline: Baseline) -> dict:
    """Trains; {"baseline", "dim", "layers", "parameters", "metric", "unit", "val", "test", ...}: the scores of the best epoch.

    UsageError where there is no baseline for the recipe, or where the test split would be seen before the end.
    """
    _check(recipe, baseline)
    _say(runs.device_line(recipe))
    data = sets.prepare(recipe, skip_bad=False)
    _say(data.summary())
    task, shape = build(recipe, data, baseline)
    held_out = test_loader(recipe, data)  # opened before the training: a table without the split fails now, not in an hour
    with tempfile.TemporaryDirectory() as folder:
        log = callbacks.Log(Path(folder), resume.KeepState(Path(folder) / "last.ckpt"))
        runs.fit(recipe, data, task, log)
        if log.state.caught:
            raise KeyboardInterrupt
        checkpoint.load_weights(task.model, Path(folder) / "best.safetensors")
    return {"baseline": baseline.conv, **shape, "parameters": sum(p.numel() for p in task.model.parameters()),
            "metric": task.score_name, "unit": task.unit(), "val": log.best, "test": score(task, held_out),
            "epoch": log.best_epoch + 1, "epochs": recipe.epochs, "seed": recipe.seed, "data": recipe.data,
            "minutes": round(log.seconds / 60, 2)}


def line(result: dict) -> str:
    """A result in one line."""
    unit = f" {result['unit']}" if result["unit"] else ""
    found = "  ".join(f"{split} {result['metric']} {result[split]:.4f}{unit}" for split in ("val", TEST))
    return (f"{result['baseline']}  dim {result['dim']}, {result['layers']} layers  {result['parameters']} parameters  {found}  "
            f"(epoch {result['epoch']} of {result['epochs']}, seed {result['seed']})")


def build(recipe: Recipe, data: sets.Sets, baseline: Baseline) -> tuple[Task, dict]:
    """The task of `zoo train` with the baseline in place of our model, and its {"dim", "layers"}."""
    task, _ = adapt.build(recipe, data)
    ours, schema = task.model, data.preprocess.arguments()
    torch.manual_seed(recipe.seed)  # ours has drawn its weights: those of the baseline do not depend on it
    if recipe.task == "node_classification":
        if schema["node_categories"] or not schema["node_floats"]:
            raise UsageError(f"baselines: {recipe.data} has node categories or no float features; gcn takes float features only")
        shape = {"dim": baseline.dim or 16, "layers": 2}
        model: nn.Module = NodeGCN(schema["node_floats"], ours.num_classes, shape["dim"], ours.dropout.p)
    else:
        shape = {"dim": baseline.dim or 96, "layers": baseline.layers or 5}
        model = GraphBaseline(schema, ours.num_classes, baseline.conv, **shape, pool=ours.pool, dropout=ours.dropout.p)
    model.card = replace(ours.card, model=baseline.conv, arguments={})
    task.model, data.collate = model, stack
    return task, shape


def test_loader(recipe: Recipe, data: sets.Sets) -> ResumableLoader:
    """Batches of the test split, encoded as the training data is. ZooError where there is none."""
    if recipe.task == "node_classification":
        graph = data.train.encode(data.preprocess)[0]
        if not (graph.test_mask & (graph.y >= 0)).any():
            raise ZooError(f"{recipe.data}: no labelled node in the split {TEST!r}")
        return ResumableLoader(NodeDataset(graph, stack, replace(recipe, neighbours=[], parts=1), TEST), shuffle=False)
    graphs = sets.kind(recipe.task).open(recipe, TEST).encode(data.preprocess)
    order = PairBudget([graph.num_nodes for graph in graphs], recipe.batch_size, shuffle=False)
    return ResumableLoader(GraphDataset(graphs, stack), order=order)


def score(task: Task, loader: ResumableLoader) -> float:
    """The score of a task over all batches of a loader, on the CPU."""
    with evaluating(task.cpu()):
        for at, batch in enumerate(loader):
            task.validation_step(batch, at)
        return task.score()


def _check(recipe: Recipe, baseline: Baseline) -> None:
    nodes = recipe.task == "node_classification"
    if not nodes and recipe.task != "graph_regression":
        raise UsageError(f"baselines: task {recipe.task}; there are baselines for graph_regression and node_classification")
    if nodes and (baseline.conv != "gcn" or baseline.layers not in (None, 2)):
        raise UsageError("baselines: the one baseline of node_classification is the two-layer --conv gcn")
    if recipe.start or recipe.freeze or recipe.layer_decay != 1:
        raise UsageError("baselines: start, freeze and layer_decay are for fine-tuning; a baseline learns from scratch")
    if recipe.val == TEST or recipe.hold_out and TEST not in recipe.hold_out:
        raise UsageError(f"baselines: val {recipe.val!r}, hold_out {recipe.hold_out}: split {TEST!r} would be seen before the "
                         f"end; choose another --val, and have {TEST} among --hold-out")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
