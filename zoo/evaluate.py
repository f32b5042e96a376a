"""`zoo eval` and `zoo predict`: a loaded model on labelled data, pairs, or files."""

from pathlib import Path

import torch

from zoo.data.images import open_images, open_pairs, open_pictures
from zoo.data.items import Items, unreadable
from zoo.errors import UsageError, ZooError


def evaluate(model, data: Path, split: str | None, captions: list[str], skip_bad: bool) -> dict:
    """{"model", "data", "split", "items", metrics ...}: accuracy for images, recall for text-image models."""
    if model.card.modality == "image":
        items = open_images(data, split=split)
        score = accuracy
        items = items.relabel(model.card.labels)
    elif model.card.modality == "text_image":
        items = open_pairs(data, split=split, captions=tuple(captions or model.card.recipe.get("captions", [])) or None)
        score = recall
    else:
        raise UsageError(f"eval: no score known for modality {model.card.modality!r}")
    if skip_bad:
        bad = {key for key, _ in unreadable(items)}
        items = items.subset([i for i, key in enumerate(items.keys) if key not in bad])
    if not len(items):
        raise ZooError(f"{data}: nothing to evaluate" + (f" in split {split!r}" if split else ""))
    return {"model": model.card.name or model.card.model, "data": str(data), "split": split, "items": len(items), **score(model, items)}


@torch.inference_mode()
def accuracy(model, items: Items, batch_size: int = 250) -> dict:
    right, per_class = 0, {}
    for start in range(0, len(items), batch_size):
        part = range(start, min(start + batch_size, len(items)))
        x = torch.stack([model.preprocess(items.image(i)) for i in part])
        for i, guess in zip(part, model(x).argmax(-1).tolist()):
            label = items.labels[i]
            hit = guess == label
            right += hit
            count = per_class.setdefault(items.classes[label], [0, 0])
            count[0], count[1] = count[0] + hit, count[1] + 1
    return {"accuracy": right / len(items), "per_class": {name: hit / n for name, (hit, n) in sorted(per_class.items())}}


def recall(model, items: Items) -> dict:
    """R@1/5/10 and median rank both ways, over all captions; and over the first caption (the name) alone."""
    from zoo.retrieval import metrics

    image = model.embed_image([items.image(i) for i in range(len(items))])
    result = {}
    for name, texts in (("all captions", items.captions), ("first caption", [t[:1] for t in items.captions])):
        captions = [text for row in texts for text in row]
        owner = [i for i, row in enumerate(texts) for _ in row]
        result[name] = metrics.recall(model.embed_text(captions) @ image.T, owner, captions=captions)
    return result


def predict_paths(model, paths: list[Path]) -> tuple[list[dict], list[tuple[str, str]]]:
    """(results, unreadable (item, reason)) for files and folders, in the order given."""
    good, bad = [], []
    for path in paths:
        items = open_pictures(path)
        broken = dict(unreadable(items))
        bad += [(str(path / key) if path.is_dir() else str(path), why) for key, why in broken.items()]
        fine = [source for key, source in zip(items.keys, items.sources) if key not in broken]
        good += model.predict(fine)
    return good, bad
