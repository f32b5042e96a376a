"""From logits to answers in the words and units of the data: labels, tags, values, and the frames of a sound."""

import os
from itertools import islice

import torch
from torch import Tensor, nn

from zoo.errors import UsageError, ZooError
from zoo.inference import batches, evaluating, inputs, several


def predict(self: nn.Module, items, batch_size: int = 64, window: float | None = None) -> list[dict]:
    """One dict per item, in order: `item`, and by what the card says the model answers

    label    label, probability, top (up to 5 pairs [label, probability])
    tags     tags (every label with probability >= 0.5), top
    values   one key per target, in its own unit

    window (sounds): see `collect`.
    """
    items = several(items)
    found = collect(self, items, batch_size, window=window)
    return [{"item": shown(items, i), **row} for i, row in enumerate(rows(self, found))]


def collect(model: nn.Module, items, batch_size: int = 64, prepare=None, window: float | None = None) -> Tensor:
    """(items classes): probabilities of labels or tags, values in their units, float32 on the CPU.

    prepare: item -> what `preprocess` gives (default). window (sounds): each is read piece by piece in windows of so many
    seconds that overlap by half, and their answers are averaged: a file of any length needs the memory of one batch.
    """
    need_answers(model)
    found = torch.zeros(len(items), model.num_classes)
    with evaluating(model):
        if window is not None:
            for i, item in enumerate(items):
                found[i] = _heard(model, item, window, batch_size)
            return found
        for places, x in batches(model, items, batch_size, prepare):
            found[places] = chances(model, model(*x))
    return found


def _heard(model: nn.Module, item, seconds: float, batch_size: int) -> Tensor:
    if model.card.modality != "audio":
        raise UsageError(f"window: for sounds, {model.card.name or model.card.model} takes none")
    from zoo.sound import windows

    total, count = torch.zeros(model.num_classes), 0
    parts = windows(item, model.preprocess.rate, seconds, overlap=0.5)
    while part := list(islice(parts, batch_size)):
        chance = chances(model, model(*inputs(model, [wave for _, wave in part])))
        total, count = total + chance.sum(0), count + len(chance)
    return total / count


def need_answers(model: nn.Module) -> None:
    """ZooError where the model has no trained head."""
    card = model.card
    named = card.targets if card.head == "values" else card.labels
    if not named or len(named) != model.num_classes:
        raise ZooError(f"{card.name or card.model} has no labels: train it first, see: zoo recipes")


def chances(model: nn.Module, logits: Tensor) -> Tensor:
    """Logits (... classes) -> probabilities, or values in their units, on the CPU."""
    card, logits = model.card, logits.float().cpu()
    if card.head == "values":
        mean, std = (torch.tensor([target[key] for target in card.targets]) for key in ("mean", "std"))
        return logits * std + mean
    return logits.sigmoid() if card.head == "tags" else logits.softmax(-1)


def rows(model: nn.Module, found: Tensor) -> list[dict]:
    """What `predict` says about each row of (n classes)."""
    card = model.card
    if card.head == "values":
        return [dict(zip([target["name"] for target in card.targets], row)) for row in found.tolist()]
    if card.head == "tags":
        tops = _top(card.labels, found, count=len(card.labels))
        return [{"tags": [name for name, chance in top if chance >= 0.5], "top": top[:5]} for top in tops]
    return [{"label": top[0][0], "probability": top[0][1], "top": top} for top in _top(card.labels, found)]


def _top(labels: list[str], chances: Tensor, count: int = 5) -> list[list[list]]:
    chance, index = chances.topk(min(count, len(labels)))
    return [[[labels[at], round(value, 6)] for at, value in zip(i, p)] for p, i in zip(chance.tolist(), index.tolist())]


def predict_frames(self: nn.Module, items, threshold: float = 0.5) -> list[dict]:
    """When each label fired: one dict per clip with `item` and `events`, [{"label", "start", "end", "probability"}] in seconds.

    A frame fires for a label whose probability (softmax for one label a clip, sigmoid for tags) is at least `threshold`;
    neighbouring frames are one event, with the highest probability among them.
    """
    need_answers(self)
    items = several(items)
    results: list[dict] = [{} for _ in items]
    with evaluating(self):
        for places, x in batches(self, items, 16):
            logits, mask = self.forward_frames(*x)
            for row, place in enumerate(places):
                frames = logits[row] if mask is None else logits[row][mask[row]]
                found = events(chances(self, frames), self, threshold, seconds=float(x[1][row]) / self.preprocess.rate)
                results[place] = {"item": shown(items, place), "events": found}
    return results


def events(frames: Tensor, model: nn.Module, threshold: float, seconds: float) -> list[dict]:
    """Runs of frames (t classes) at or above `threshold`, by start; none ends behind the clip, which has `seconds`."""
    found = []
    for label, column in zip(model.card.labels, frames.T):
        fired = torch.cat([column.new_zeros(1), (column >= threshold).to(column), column.new_zeros(1)]).diff()
        starts, ends = ((fired == sign).nonzero().flatten().tolist() for sign in (1, -1))
        for start, end in zip(starts, ends):
            found.append({"label": label, "start": round(start * model.frame_seconds, 3),
                          "end": round(min(end * model.frame_seconds, seconds), 3),
                          "probability": round(float(column[start:end].max()), 6)})
    return sorted(found, key=lambda event: (event["start"], event["label"]))


def shown(items: list, i: int) -> str:
    """How an item is named in an answer."""
    return str(items[i]) if isinstance(items[i], (str, os.PathLike)) else f"item {i}"
