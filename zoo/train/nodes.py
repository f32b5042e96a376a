"""Training on one big graph: a label for each node, or which links there are."""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor
from torch.utils.data import Dataset

from zoo.data.augment import number
from zoo.data.graphs import GraphItems, unreadable
from zoo.data.links import Links
from zoo.data.loader import ResumableLoader
from zoo.data.networks import open_network
from zoo.data.partition import Partitions, partition
from zoo.data.sample import Neighbourhoods
from zoo.errors import UsageError, ZooError
from zoo.inference import evaluating
from zoo.schema import GraphPreprocess
from zoo.train import graphs
from zoo.train.balance import class_weights
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets, start_card
from zoo.train.task import Classify, Task


class Network(Sets):
    """One big graph; the split is one of its nodes (or, for links, of its edges)."""

    noun = "graph"
    unreadable = staticmethod(unreadable)

    @classmethod
    def open(cls, recipe: Recipe, name: str | None = None) -> GraphItems:
        graph = open_network(recipe.data, recipe.directed, (recipe.targets or ["label"])[0])
        return GraphItems([graph.key], [graph], classes=graph.classes)

    @classmethod
    def prepare(cls, recipe: Recipe) -> "Network":
        """The graph, encoded by the statistics of its training nodes. ZooError where it lacks labels or a split."""
        items = cls.open(recipe)
        graph = items.sources[0]
        if recipe.task == "node_classification":
            cls.check(graph, recipe)
        stored = start_card(recipe).preprocess if recipe.start else None
        if stored:
            return cls(items, items, GraphPreprocess.from_dict(stored))
        return cls(items, items, GraphPreprocess.fit([graph], recipe.scaling, recipe.directed))

    @staticmethod
    def check(graph, recipe: Recipe) -> None:
        wanted = ("train", recipe.val if isinstance(recipe.val, str) else "val")
        if graph.y is None or graph.classes is None:
            raise ZooError(f"{recipe.data}: its nodes have no label; a column `label` in nodes.csv, or y in the .npz")
        if graph.split is None or any(not (graph.split == name).any() for name in wanted):
            have = ", ".join(sorted(set(graph.split.tolist()) - {""})) if graph.split is not None else "no column split"
            raise ZooError(f"{recipe.data}: nodes of the splits {' and '.join(wanted)} are needed (has: {have})")

    def summary(self) -> str:
        graph = self.train.sources[0]
        split = "" if graph.split is None else "; nodes " + ", ".join(
            f"{name} {int((graph.split == name).sum())}" for name in ("train", "val", "test"))
        return f"data    {graph.n} nodes, {graph.edge_index.shape[1]} edges, {len(graph.classes or [])} classes{split}"

    def fingerprint(self) -> str:
        graph = self.train.sources[0]
        return str(number(graph.n, graph.edge_index.tobytes(), None if graph.y is None else graph.y.tobytes()))

    def loaders(self, recipe: Recipe) -> tuple[ResumableLoader, ResumableLoader]:
        graph = self.train.encode(self.preprocess)[0]
        if recipe.task == "link_prediction":
            links = Links.of(graph, recipe.seed)
            return (ResumableLoader(LinkDataset(links, self.collate, recipe.seed)),
                    ResumableLoader(LinkDataset(links, self.collate, recipe.seed, "val"), shuffle=False))
        train = NodeDataset(graph, self.collate, recipe)
        size = recipe.batch_size if recipe.neighbours or recipe.parts > 1 else 1
        val = NodeDataset(graph, self.collate, replace(recipe, neighbours=[], parts=1), "val")
        return ResumableLoader(train, size, recipe.seed, num_workers=recipe.workers), ResumableLoader(val, shuffle=False)


class NodeDataset(Dataset):
    """Batches (GraphBatch, y (nodes), which nodes count (nodes) bool): the whole graph, joined parts, sampled neighbourhoods."""

    def __init__(self, graph, collate, recipe: Recipe, split: str = "train"):
        self.graph, self._collate, self.split, self.source = graph, collate, split, None
        if recipe.neighbours:
            seeds = graph.train_mask.nonzero().flatten()
            self.source = Neighbourhoods(graph, seeds, [int(size) for size in recipe.neighbours], recipe.seed)
        elif recipe.parts > 1:
            self.source = Partitions(graph, partition(graph.edge_index, graph.num_nodes, recipe.parts, recipe.seed))

    def __len__(self) -> int:
        return 1 if self.source is None else len(self.source)

    def __getitems__(self, places: list) -> list:
        return [self.graph if self.source is None else self.source.part(places)]

    def collate(self, parts: list) -> tuple[object, Tensor, Tensor]:
        part = parts[0]
        counts = getattr(part, f"{self.split}_mask") & (part.y >= 0)
        if hasattr(part, "seeds"):
            counts = counts & (torch.arange(len(counts)) < part.seeds)
        return self._collate([part]), part.y, counts


class ClassifyNodes(Classify):
    """Cross-entropy over the labels of the nodes that count; the score is accuracy."""

    def training_step(self, batch, _) -> Tensor:
        graph, label, counts = batch
        logits = self.model(graph).float()[counts]
        return self.loss(logits, label[counts]) if len(logits) else logits.sum()

    def validation_step(self, batch, _) -> None:
        graph, label, counts = batch
        self.metric.update(self.model(graph).float()[counts], label[counts])


class LinkDataset(Dataset):
    """Batches (GraphBatch, truth (pairs)): in training a fifth of the links is asked for and not shown, drawn anew each epoch."""

    def __init__(self, links: Links, collate, seed: int, split: str = "train"):
        self.links, self._collate, self.seed, self.split = links, collate, seed, split

    def __len__(self) -> int:
        return 1

    def __getitem__(self, at):
        train = self.links.part["train"]
        if self.split != "train":
            return self.links.sample(train, self.links.part[self.split], self.links.absent[self.split])
        random = np.random.default_rng([self.seed, at[1]])
        order = random.permutation(train.shape[1])
        asked = max(1, train.shape[1] // 5)
        return self.links.sample(train[:, order[asked:]], train[:, order[:asked]], self.links.without(asked, random))

    def collate(self, graphs: list) -> tuple[object, Tensor]:
        return self._collate(graphs), graphs[0].y


class PredictLinks(Task):
    """Binary cross-entropy on links and as many pairs without one; the score is the area under the ROC curve."""

    score_name = "AUC"

    def __init__(self, model, recipe: Recipe):
        super().__init__(model, recipe)
        self.metric = torchmetrics.classification.BinaryAUROC()

    def training_step(self, batch, _) -> Tensor:
        graph, truth = batch
        return F.binary_cross_entropy_with_logits(self.model(graph).float().squeeze(-1), truth)

    def validation_step(self, batch, _) -> None:
        graph, truth = batch
        self.metric.update(self.model(graph).float().squeeze(-1), truth.long())

    def score(self) -> float:
        value = float(self.metric.compute())
        self.metric.reset()
        return value


def build(recipe: Recipe, data: Network) -> tuple[Task, list[str]]:
    """The task on one big graph, and the lines that say what was loaded."""
    if recipe.neighbours and recipe.parts > 1:
        raise UsageError("neighbours and parts do not go together; give one")
    if recipe.task == "link_prediction":
        model, lines = graphs.start(recipe, data, 1, "edge", ["link"])
        data.collate, model.card.head = model.collate, "links"
        return PredictLinks(model, recipe), lines
    model, lines = graphs.start(recipe, data, len(data.train.classes), "node", data.train.classes)
    data.collate, model.card.head = model.collate, "label"
    graph = data.train.sources[0]
    labels = torch.as_tensor(graph.y[(graph.split == "train") & (graph.y >= 0)])
    return ClassifyNodes(model, recipe, class_weights(recipe, labels, len(data.train.classes))), lines


def scores(model, items: GraphItems, split: str | None, seed: int) -> dict:
    """accuracy over the labelled nodes of a split, or AUC over its links. ZooError for other labels and for an unknown split."""
    allowed = ("train", "val", "test")
    if split is not None and split not in allowed:
        raise ZooError(f"{items.keys[0]}: no split {split!r}; of one big graph there are {', '.join(allowed)}")
    if model.card.head == "label":
        items.relabel(model.card.labels)  # refuses other names; the same names have the same order
    graph = items.encode(model.preprocess)[0]
    with evaluating(model):
        if model.card.head == "links":
            sample = LinkDataset(Links.of(graph, seed), model.collate, seed, split or "test")[0]
            found = model(model.collate([sample]).to(_device(model))).float().squeeze(-1).cpu()
            return {"AUC": float(torchmetrics.functional.auroc(found, sample.y.long(), task="binary")), "items": len(found)}
        counts = graph.y >= 0 if split is None else getattr(graph, f"{split}_mask") & (graph.y >= 0)
        guess = model(model.collate([graph]).to(_device(model))).argmax(-1).cpu()
    return {"accuracy": float((guess == graph.y)[counts].float().mean()), "items": int(counts.sum())}


def _device(model) -> torch.device:
    return next(model.parameters()).device
