"""`zoo eval`: a loaded model on labelled data or pairs, in the metric of its task."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import torch

from zoo import answers, checkpoint
from zoo.data.folders import split_name
from zoo.data.images import open_pairs, splits
from zoo.data.items import Items
from zoo.data.stream import Streamed
from zoo.errors import ZooError
from zoo.recall import RERANK, Rerank, recall
from zoo.retrieval.rerank import DIRECTIONS
from zoo.train import sets, streams
from zoo.train.recipe import TASKS, Recipe


@dataclass
class Options:
    """What to evaluate on. None and empty: as the recipe in the card says. window: see answers.collect. limit: so many items
    at most, evenly spread. rerank: candidates of a query that a text-image model looks at again, 0: none; fit_rerank: with
    the weight that is best on these data; progress of that."""

    split: str | None = None
    split_column: str | None = None
    captions: list[str] = field(default_factory=list)
    window: float | None = None
    skip_bad: bool = False
    limit: int | None = None
    rerank: int = RERANK
    fit_rerank: bool = False
    progress: Callable[[int, int], None] = lambda done, total: None


def evaluate(model, data: Path, options: Options = Options()) -> dict:
    """{"model", "data", "split", "items", metrics ...}: accuracy, mean average precision, errors in units, or recall."""
    recipe, split = recipe_of(model.card, data, options), options.split
    kind = sets.kind(recipe.task)
    if shards := streams.shards(recipe, split):
        items = shards
    elif recipe.task == "text_image_contrastive":
        items = open_pairs(data, split=split, captions=tuple(recipe.captions) or None)
    else:
        items = kind.open(recipe, split)
    if options.skip_bad and isinstance(items, Streamed):
        items, _ = items.readable()
    elif options.skip_bad:
        bad = {key for key, _ in kind.unreadable(items)}
        items = items.subset([i for i, key in enumerate(items.keys) if key not in bad])
    if options.limit and options.limit < len(items):
        items = items.subset([i * len(items) // options.limit for i in range(options.limit)])
    if not len(items):
        raise ZooError(f"{data}: nothing to evaluate" + (f" in split {split!r}" if split else ""))
    facts = {"model": model.card.name or model.card.model, "data": str(data), "split": split, "items": len(items)}
    return {**facts, **_score(model, items, recipe, options)}


def _score(model, items, recipe: Recipe, options: Options) -> dict:
    if recipe.task == "text_image_contrastive":
        known = None
        if not isinstance(items, Streamed) and options.split not in (None, "train") and "train" in splits(recipe.data):
            known = open_pairs(recipe.data, split="train", captions=tuple(recipe.captions) or None)
        return recall(model, items, known, Rerank(options.rerank, options.fit_rerank, options.progress))
    if TASKS[recipe.task] == "graph":
        from zoo.train import graphs, nodes

        if model.level == "graph":
            return graphs.scores(model, items)
        return nodes.scores(model, items, options.split, recipe.seed)
    return labelled(model, items, options.window)


def recipe_of(card, data: Path, options: Options) -> Recipe:
    """The recipe a model was trained by (of one without: the first task of its modality), on other data."""
    known = {f.name for f in fields(Recipe)}
    task = next((task for task, modality in TASKS.items() if modality == card.modality), None)
    if task is None:
        raise ZooError(f"{card.name or card.model}: a {card.modality} model gives vectors (model.embed) and has no score")
    stored = {key: value for key, value in card.recipe.items() if key in known}
    given = {"split_column": options.split_column, "captions": options.captions}
    return Recipe(**{"task": task, "model": card.model, **stored, **{k: v for k, v in given.items() if v}, "data": str(data)})


def save_scores(source, result: dict) -> None:
    """Adds what `evaluate` found to the card of a checkpoint; scores of the same split are replaced."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    seed = card.recipe.get("seed")
    first = str(card.recipe.get("metric", "")).upper()  # what was minimised is the score that is shown
    names = sorted(("accuracy", "mAP", "RMSE", "MAE", "AUC"), key=lambda name: name != first)
    found = {name: result[name] for name in names if name in result} or _recalls(result, bool(card.recipe.get("first_caption")))
    more = {"unit": result["unit"]} if result.get("unit") else {}
    split = split_name(result["split"] or "all")
    if split in card.recipe.get("hold_out", ()):  # a fold, a speaker: what the recipe kept away from training is the test
        more["where"], split = f"{card.recipe['split_column']} = {split}", "test"
    rows = [{"metric": name, "value": value, **more, "split": split, "seed": seed, "items": result["items"]}
            for name, value in found.items()]
    card.scores = [row for row in card.scores if row["split"] != split] + rows
    _replace_card(file, card)


def save_rerank_weight(source, weight: float) -> None:
    """Writes the weight of the match logit (see zoo.retrieval.rerank) into the arguments in the card of a checkpoint."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    card.arguments["fusion"] = {**(card.arguments.get("fusion") or {}), "rerank_weight": weight}
    _replace_card(file, card)


def _replace_card(file: Path, card) -> None:
    checkpoint.replace_card(file, card)
    if file.with_name("index.json").is_file():
        checkpoint.write_index(file.parent)


def _recalls(result: dict, names: bool) -> dict[str, float]:
    """What a card keeps of recall: text to image at 10 of each kind, that of `names` (first captions) first where they are what
    was learnt; then all captions both ways, re-ranked too. Of other results nothing.
    """
    if "all captions" not in result:
        return {}
    kinds = [kind for kind in ("first caption", "unseen captions", "all captions") if kind in result]
    kinds = kinds if names else kinds[::-1]
    found = {f"R@10 {kind}": result[kind]["text_to_image"]["R@10"] for kind in kinds}
    for more, ways in (("", result["all captions"]), (" re-ranked", result["all captions"].get("reranked", {}))):
        for way in DIRECTIONS if ways else ():
            found |= {f"{name.replace('_', ' ')} {way.replace('_', ' ')}{more}": ways[way][name]
                      for name in ("R@1", "R@5", "R@10", "median_rank")}
    return found


def labelled(model, items: Items, window: float | None = None) -> dict:
    """accuracy and per_class, or of tags mAP and per_class (average precision)."""
    items = items.relabel(model.card.labels)

    def prepare(i: int):
        try:
            return model.preprocess(items.image(i) if items.kind == "image" else items.sources[i])
        except ZooError as error:
            raise error if items.keys[i] in str(error) else ZooError(f"{items.keys[i]}: {error}") from error

    found = answers.collect(model, items.sources if window else range(len(items)), 64, prepare, window)
    if model.card.head == "tags":
        return _precision(found, items)
    count: dict[str, tuple[int, int]] = {}
    for guess, label in zip(found.argmax(-1).tolist(), items.labels):
        hits, n = count.get(items.classes[label], (0, 0))
        count[items.classes[label]] = hits + (guess == label), n + 1
    right = sum(hits for hits, _ in count.values())
    return {"accuracy": right / len(items), "per_class": {name: hits / n for name, (hits, n) in sorted(count.items())}}


def _precision(found: torch.Tensor, items: Items) -> dict:
    from torchmetrics.functional.classification import multilabel_average_precision

    truth = torch.zeros(found.shape, dtype=torch.long)
    for row, tags in enumerate(items.tags):
        truth[row, tags] = 1
    each = multilabel_average_precision(found, truth, num_labels=found.shape[1], average=None)
    return {"mAP": float(each[truth.any(0)].mean()), "per_class": dict(zip(items.classes, each.tolist()))}
