"""From a path to vectors and answers: of the training split, of the split to score on, and which of the first are held out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from zoo import inference
from zoo.data.items import Items, split
from zoo.errors import UsageError, ZooError
from zoo.features import vectors
from zoo.probe.learn import Learnt

HELD = 0.2


@dataclass(frozen=True)
class Asked:
    """split: to score on; None: test, or a fifth where there are no splits. label: column of classes; targets: of numbers."""

    split: str | None = None
    split_column: str = "split"
    label: str | None = None
    targets: tuple[str, ...] = ()


@dataclass
class Gathered:
    """held (n) bool: places of `train` that what is open is chosen on. split: of `test`. classes, or names of the targets."""

    train: Learnt
    test: Learnt
    held: Tensor
    split: str
    classes: list[str] | None = None
    names: list[str] | None = None


def gather(model, data: Path, asked: Asked) -> Gathered:
    """Vectors and answers of both splits; see zoo.probe.probe for the errors."""
    from zoo.data.networks import is_network

    modality = model.card.modality
    if modality == "text":
        raise UsageError("--probe: for pictures, sounds and graphs; a text model gives vectors: zoo embed")
    if modality == "graph" and data.exists() and is_network(data):
        return _nodes(model, data, asked)
    opened, names = _opener(model, data, asked)
    known = names(data, asked.split_column)
    if "train" in known:
        where = asked.split or next((name for name in ("test", "val") if name in known), None)
        if where in (None, "train"):
            raise ZooError(f"{data}: splits are {', '.join(known)}; one beside train is needed to score on: --split")
        train, test = opened("train"), opened(where)
    elif known or asked.split:
        raise ZooError(f"{data}: no split 'train' to learn from (has: {', '.join(known) or 'no splits'})")
    else:
        where = "a fifth that was held out"
        train, test = split(opened(None), HELD)
    if train.labels is None and train.targets is None:
        raise ZooError(f"{data}: nothing to learn; name a column: --label")
    if train.labels is not None and 2 * len(set(train.labels)) > len(train):
        raise ZooError(f"{data}: {len(set(train.labels))} classes for {len(train)} training items; name another column: --label")
    held = set(split(train, HELD)[1].keys)
    held = torch.tensor([key in held for key in train.keys])
    learnt, scored = (_learnt(model, part) for part in (train, test))
    return Gathered(learnt, scored, held, where, train.classes, getattr(train, "names", None))


def _opener(model, data: Path, asked: Asked) -> tuple[Callable, Callable]:
    """split -> items, and what lists the splits."""
    from zoo.data import graphs, images, sounds

    column = asked.split_column
    if model.card.modality == "graph":
        smiles = model.card.recipe.get("smiles") or "smiles"
        targets = () if asked.label else asked.targets or ("y",)
        return lambda name: graphs.open_graphs(data, name, column, smiles, targets, asked.label), graphs.splits
    opening, module = (sounds.open_sounds, sounds) if model.card.modality == "audio" else (images.open_images, images)
    if asked.targets:
        raise UsageError(f"targets: numbers are learnt of graphs; for a model of {model.card.modality}s name a column of labels")
    return lambda name: opening(data, name, asked.label or "label", column), module.splits


def _learnt(model, items: Items) -> Learnt:
    """Vectors and answers. ZooError names an item that cannot be read."""
    def prepare(i: int):
        try:
            return model.preprocess(items.image(i) if getattr(items, "kind", "") == "image" else items.sources[i])
        except ZooError as error:
            raise error if items.keys[i] in str(error) else ZooError(f"{items.keys[i]}: {error}") from error

    found: list = [None] * len(items)
    with inference.evaluating(model):
        for places, inputs in inference.batches(model, range(len(items)), 64, prepare):
            for place, vector in zip(places, vectors(model, inputs).float().cpu()):
                found[place] = vector
    answers = items.labels if items.labels is not None else items.targets
    y = torch.tensor(answers) if items.labels is not None else torch.tensor(answers, dtype=torch.float64)
    return Learnt(torch.stack(found).clone(), y)


def _nodes(model, data: Path, asked: Asked) -> Gathered:
    """The same for the nodes of one big graph, whose table names their splits."""
    from zoo.data.networks import open_network

    graph = open_network(data, label=asked.label or "label")
    if graph.y is None or graph.classes is None or graph.split is None:
        raise ZooError(f"{data}: its nodes have no {'split' if graph.y is not None else 'label'}; --probe needs both")
    where = asked.split or "test"
    encoded = model.preprocess(graph)
    with inference.evaluating(model):
        x = vectors(model, (model.collate([encoded]).to(next(model.parameters()).device),)).float().cpu()
    whole, places = Learnt(x.clone(), torch.from_numpy(graph.y)), {}
    for name in ("train", where):
        places[name] = torch.from_numpy((graph.split == name) & (graph.y >= 0))
        if not places[name].any():
            raise ZooError(f"{data}: no nodes of the split {name!r} (has: {', '.join(sorted(set(graph.split) - {''}))})")
    train = whole.part(places["train"])
    held = torch.zeros(len(train.x), dtype=torch.bool)
    draw = torch.Generator().manual_seed(0)
    for i in range(len(graph.classes)):
        mine = (train.y == i).nonzero().flatten()
        held[mine[torch.randperm(len(mine), generator=draw)[: max(1, round(HELD * len(mine)))]]] = len(mine) > 1
    return Gathered(train, whole.part(places[where]), held, where, graph.classes)
