"""Training on many graphs: one target, several, or a label each. Molecules come as SMILES, other graphs from data sets."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor, nn
from torch.utils.data import Dataset

import zoo
from zoo import answers, inference
from zoo.data import graphs as graph_data
from zoo.data.buckets import PairBudget
from zoo.data.gather import splits
from zoo.data.graphs import GraphItems, open_graphs
from zoo.data.loader import ResumableLoader
from zoo.errors import ZooError
from zoo.scaler import TargetScaler
from zoo.schema import GraphPreprocess
from zoo.train.balance import class_weights, tag_weights
from zoo.train.recipe import Recipe
from zoo.train.sets import Sets, label_column, start_card
from zoo.train.task import Classify, Tag, Task


class GraphDataset(Dataset):
    """Encoded graphs; a batch is (GraphBatch, y). `collate` is that of the model."""

    def __init__(self, graphs: list, collate: Callable):
        self.graphs, self._collate = graphs, collate

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, at):
        return self.graphs[at[0] if isinstance(at, tuple) else at]

    def prepare(self) -> None:
        """Computes what is kept on every graph now, so that workers inherit it."""
        for graph in self.graphs:
            self._collate([graph])

    def collate(self, graphs: list) -> tuple:
        batch = self._collate(graphs)
        return batch, batch.y


class Graphs(Sets):
    """Graphs with numbers to predict, or with labels. `collate` comes from the model, before the loaders are made."""

    noun = "graphs"
    unreadable = staticmethod(graph_data.unreadable)
    collate: Callable

    @classmethod
    def splits(cls, recipe: Recipe) -> list[str]:
        return splits(recipe.data, recipe.split_column)

    @classmethod
    def open(cls, recipe: Recipe, name: str | None) -> GraphItems:
        columns, label = target_columns(recipe), None
        if recipe.task == "graph_classification" and len(columns) < 2:
            columns, label = [], label_column(recipe)
        return open_graphs(recipe.data, name, recipe.split_column, recipe.smiles, columns, label)

    @classmethod
    def steps(cls, recipe: Recipe, train: GraphItems) -> GraphPreprocess:
        if recipe.start:
            return GraphPreprocess.from_dict({**start_card(recipe).preprocess, **recipe.preprocess})
        if isinstance(train.sources[0], str):
            return GraphPreprocess.from_dict(recipe.preprocess)  # molecules have one vocabulary, whatever there is to train on
        return GraphPreprocess.fit(train.sources, recipe.scaling, recipe.directed)

    def summary(self) -> str:
        what = f"{len(self.train.classes)} classes" if self.train.classes else f"targets {', '.join(self.train.names)}"
        return f"data    {len(self.train)} training and {len(self.val)} validation {self.noun}, {what}{self.bad_lines()}"

    def fingerprint(self) -> str:
        return self.train.fingerprint() + self.val.fingerprint()

    def loaders(self, recipe: Recipe) -> tuple[ResumableLoader, ResumableLoader]:
        train, val = (GraphDataset(part.encode(self.preprocess), self.collate) for part in (self.train, self.val))
        sizes, seen = ([len(graph.x_cat) for graph in part.graphs] for part in (train, val))
        order = PairBudget(sizes, recipe.batch_size, seed=recipe.seed)
        return (ResumableLoader(train, order=order, num_workers=recipe.workers),
                ResumableLoader(val, order=PairBudget(seen, recipe.batch_size, shuffle=False), num_workers=recipe.workers))


class Regress(Task):
    """Mean absolute or squared error of scaled targets, missing ones left out; the score is in the unit of the target.

    Of several targets the score is the mean of the errors, each divided by the deviation of its target.
    """

    sign = -1

    def __init__(self, model: nn.Module, recipe: Recipe, scaler: TargetScaler):
        super().__init__(model, recipe)
        self.scaler, self.score_name = scaler, recipe.metric.upper()
        self.metric = torchmetrics.MeanMetric()

    def errors(self, batch) -> Tensor:
        """|error| or error^2 of every target that is there, in deviations."""
        graphs, y = batch
        y = self.scaler.scale(y.view(len(graphs), -1))
        known = ~y.isnan()
        error = self.model(graphs).float()[known] - y[known]
        return error.abs() if self.recipe.metric == "mae" else error.square()

    def mass(self, batch) -> float:
        return int((~batch[1].isnan()).sum())

    def training_step(self, batch, _) -> Tensor:
        errors = self.errors(batch)
        return errors.mean() if len(errors) else self.model(batch[0]).sum() * 0.0

    def validation_step(self, batch, _) -> None:
        errors = self.errors(batch)
        if len(errors):
            self.metric.update(errors)

    def score(self) -> float:
        value = float(self.metric.compute())
        self.metric.reset()
        value = value if self.recipe.metric == "mae" else value**0.5
        return value * self.scaler.std[0] if len(self.scaler.names) == 1 else value

    def unit(self) -> str:
        return self.scaler.units[0] if len(self.scaler.names) == 1 else "deviations"


class TagGraphs(Tag):
    """Several yes-or-no targets, NaN where one is missing; the score is mean average precision."""

    def mass(self, batch) -> float:
        return int((~batch[1].isnan()).sum())

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        known = ~label.isnan()
        smooth = self.recipe.label_smoothing
        target = label.nan_to_num() * (1 - smooth) + smooth / 2
        return F.binary_cross_entropy_with_logits(logits, target, weight=known / known.sum().clamp(min=1), reduction="sum",
                                                  pos_weight=self.class_weights)

    def validation_step(self, batch, _) -> None:
        graphs, label = batch
        self.metric.update(self.model(graphs).float().sigmoid(), torch.where(label.isnan(), -1, label).long())

    def make_metric(self, classes: int) -> torchmetrics.Metric:
        return torchmetrics.classification.MultilabelAveragePrecision(num_labels=classes, ignore_index=-1)


def build(recipe: Recipe, data: Sets) -> tuple[Task, list[str]]:
    """The task of a graph recipe, and the lines that say what was loaded."""
    if recipe.task in ("node_classification", "link_prediction"):
        from zoo.train import nodes

        return nodes.build(recipe, data)
    items = data.train
    outputs = len(items.classes or items.names)
    if items.classes is not None and outputs < 2:
        raise ZooError(f"{recipe.data}: one class only ({items.classes[0]}); a classifier needs two or more")
    tags = recipe.task == "graph_classification" and items.classes is None
    labels = items.classes or (recipe.names or items.names if tags else None)
    model, lines = start(recipe, data, outputs, "graph", labels)
    data.collate = model.collate
    if items.classes is not None:
        model.card.head = "label"
        return Classify(model, recipe, class_weights(recipe, items.labels, outputs)), lines
    if tags:
        model.card.head = "tags"
        return TagGraphs(model, recipe, tag_weights(recipe, torch.tensor(items.targets))), lines
    scaler = TargetScaler.fit(items.targets, recipe.names or items.names, recipe.units)
    model.card.targets, model.card.head = scaler.to_targets(), "values"
    return Regress(model, recipe, scaler), lines


def start(recipe: Recipe, data: Sets, outputs: int, level: str, labels: list[str] | None) -> tuple[nn.Module, list[str]]:
    """The model for the data's schema, from scratch or from a checkpoint with a new head."""
    from zoo.train import adapt

    known = start_card(recipe).arguments if recipe.start else {}
    schema = data.preprocess.arguments()
    if recipe.start and (wrong := [key for key, value in schema.items() if _plain(known.get(key)) != _plain(value)]):
        raise ZooError(f"start: {recipe.start} was trained on other columns: {', '.join(wrong)} differ; start from scratch")
    arguments = {**known, **recipe.arguments, **schema, "num_classes": outputs, "level": level}
    model = zoo.create_model(recipe.model, **arguments)
    model.card.labels = labels and list(labels)
    inference.set_preprocess(model, data.preprocess.to_dict())
    if not recipe.start:
        return model, [f"model   {recipe.model}, from scratch"]
    return model, adapt.load_start(model, recipe.start, new=("classifier", "readout"))


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def target_columns(recipe: Recipe) -> list[str]:
    """Columns of numbers: those named, or y."""
    return recipe.targets or ["y"]


def scores(model, items: GraphItems) -> dict:
    """RMSE and MAE in the units of the targets; or accuracy; or mAP. Missing targets are left out."""
    found = answers.collect(model, items.sources)
    if model.card.head == "values":
        return _errors(model, found, torch.tensor(items.targets))
    if model.card.head == "tags":
        truth = torch.tensor(items.targets)
        metric = torchmetrics.classification.MultilabelAveragePrecision(num_labels=truth.shape[1], ignore_index=-1)
        return {"mAP": float(metric(found, torch.where(truth.isnan(), -1, truth).long()))}
    labels = torch.tensor(items.relabel(model.card.labels).labels)
    return {"accuracy": float((found.argmax(-1) == labels).float().mean())}


def _errors(model, found: Tensor, truth: Tensor) -> dict:
    rows = {}
    for i, target in enumerate(model.card.targets):
        known = ~truth[:, i].isnan()
        error = found[known, i] - truth[known, i]
        rows[target["name"]] = {"RMSE": float(error.square().mean().sqrt()), "MAE": float(error.abs().mean()),
                                "unit": target["unit"], "items": int(known.sum())}
    return next(iter(rows.values())) if len(rows) == 1 else {"targets": rows}
