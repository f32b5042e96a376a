"""`zoo eval` and `zoo predict`: a loaded model on labelled data, pairs, or files."""

import re
from pathlib import Path

import torch

from zoo import checkpoint
from zoo.data.images import open_images, open_pairs, open_pictures, splits
from zoo.data.items import Items, unreadable
from zoo.errors import UsageError, ZooError

WORD = r"\w+"


def evaluate(model, data: Path, split: str | None, captions: list[str], skip_bad: bool) -> dict:
    """{"model", "data", "split", "items", metrics ...}: accuracy for images, recall for text-image models."""
    score, known = {"image": accuracy, "text_image": recall}[model.card.modality], {}
    if model.card.modality == "image":
        items = open_images(data, split=split).relabel(model.card.labels)
    else:
        columns = tuple(captions or model.card.recipe.get("captions", [])) or None
        items = open_pairs(data, split=split, captions=columns)
        if split not in (None, "train") and "train" in splits(data):
            known["known"] = open_pairs(data, split="train", captions=columns)
    if skip_bad:
        bad = {key for key, _ in unreadable(items)}
        items = items.subset([i for i, key in enumerate(items.keys) if key not in bad])
    if not len(items):
        raise ZooError(f"{data}: nothing to evaluate" + (f" in split {split!r}" if split else ""))
    facts = {"model": model.card.name or model.card.model, "data": str(data), "split": split, "items": len(items)}
    return {**facts, **score(model, items, **known)}


def save_scores(source, result: dict) -> None:
    """Adds what `evaluate` found to the card of a checkpoint; scores of the same split are replaced."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    seed = card.recipe.get("seed")
    found = {"accuracy": result["accuracy"]} if "accuracy" in result else {
        f"R@10 {kind}": result[kind]["text_to_image"]["R@10"]
        for kind in ("first caption", "unseen captions", "all captions") if kind in result}
    rows = [{"metric": name, "value": value, "split": result["split"], "seed": seed, "items": result["items"]}
            for name, value in found.items()]
    card.scores = [row for row in card.scores if row["split"] != result["split"]] + rows
    checkpoint.replace_card(file, card)
    if file.with_name("index.json").is_file():
        checkpoint.write_index(file.parent)


@torch.inference_mode()
def accuracy(model, items: Items, batch_size: int = 250) -> dict:
    right, per_class = 0, {}
    for start in range(0, len(items), batch_size):
        part = range(start, min(start + batch_size, len(items)))
        x = torch.stack([model.preprocess(items.image(i)) for i in part]).to(next(model.parameters()).device)
        for i, guess in zip(part, model(x).argmax(-1).tolist()):
            label = items.labels[i]
            hit = guess == label
            right += hit
            count = per_class.setdefault(items.classes[label], [0, 0])
            count[0], count[1] = count[0] + hit, count[1] + 1
    return {"accuracy": right / len(items), "per_class": {name: hit / n for name, (hit, n) in sorted(per_class.items())}}


def recall(model, items: Items, known: Items | None = None) -> dict:
    """R@1/5/10 and median rank both ways: over all captions, over the first one (the name) alone, and over the further ones
    (tags) that occur in no caption of `known` (the training split), be it as a part.
    """
    from zoo.retrieval import metrics

    parts = [range(at, min(at + 256, len(items))) for at in range(0, len(items), 256)]
    image = torch.cat([model.embed_image([items.image(i) for i in part]) for part in parts])
    kinds = {"all captions": items.captions, "first caption": [texts[:1] for texts in items.captions]}
    if known is not None:
        unseen = novel([texts[1:] for texts in items.captions], known.captions)
        kinds["unseen captions"] = unseen
    result = {}
    for name, texts in kinds.items():
        captions = [text for row in texts for text in row]
        owner = [i for i, row in enumerate(texts) for _ in row]
        if captions:
            result[name] = metrics.recall(model.embed_text(captions) @ image.T, owner, captions=captions)
    return result


def novel(captions: list[list[str]], known: list[list[str]]) -> list[list[str]]:
    """The captions that no known caption is or holds as whole words."""
    def words(text: str) -> str:
        return f" {' '.join(re.findall(WORD, text.casefold()))} "

    corpus = "\n".join(words(text) for row in known for text in row)
    return [[text for text in row if words(text) not in corpus] for row in captions]


def predict_paths(model, paths: list[Path]) -> tuple[list[dict], list[tuple[str, str]]]:
    """(results, unreadable (item, reason)) for files and folders, in the order given."""
    if not hasattr(model, "predict"):
        raise UsageError(f"{model.card.name}: a {model.card.modality} model has no labels to predict; "
                         "index pictures with it: zoo index build")
    good, bad = [], []
    for path in paths:
        items = open_pictures(path)
        broken = dict(unreadable(items))
        bad += [(str(path / key) if path.is_dir() else str(path), why) for key, why in broken.items()]
        fine = [source for key, source in zip(items.keys, items.sources) if key not in broken]
        good += model.predict(fine)
    return good, bad
