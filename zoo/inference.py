"""What a model can do with raw items (files, pictures, strings): preprocess, predict, embed; and how one is built or loaded."""

import os
from contextlib import contextmanager
from types import MethodType

import torch
from torch import Tensor, nn

from zoo import checkpoint, registry
from zoo.card import Card
from zoo.errors import ZooError
from zoo.preprocess import ImagePreprocess


def create(name: str, arguments: dict) -> nn.Module:
    """See zoo.create_model."""
    spec = registry.find(name)
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()}
    model = registry.build(name, **arguments)
    card = Card(model=name, modality=spec.modality, arguments={**spec.arguments, **given}, preprocess=dict(spec.preprocess))
    return attach(model, card)


def load(source: str | os.PathLike) -> nn.Module:
    """See zoo.load."""
    file = checkpoint.locate(source)
    card = checkpoint.read_card(file)
    try:
        model = attach(registry.build(card.model, **card.arguments), card)
    except ValueError as error:
        raise ZooError(f"{file}: the card does not give a model: {error}") from error
    checkpoint.load_weights(model, file)
    card.sha256 = checkpoint.sha256(file)
    checkpoint.verify(file, card.sha256)
    return model.eval()


def attach(model: nn.Module, card: Card) -> nn.Module:
    """Gives the model its card, preprocessing and the methods that take raw items."""
    model.card = card
    card.parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if card.modality == "image":
        set_preprocess(model, card.preprocess)
        model.predict = MethodType(predict, model)
        model.embed = MethodType(embed, model)
    elif card.modality == "text_image":
        from zoo import pairs

        pairs.attach(model, card)
    return model


def set_preprocess(model: nn.Module, settings: dict) -> None:
    """Replaces the preprocessing, in the model and in its card."""
    model.preprocess = ImagePreprocess.from_dict(settings)
    model.card.preprocess = model.preprocess.to_dict()


def batches(model: nn.Module, items, batch_size: int):
    """Preprocessed batches of raw items on the model's device."""
    items = several(items)
    device = next(model.parameters()).device
    for start in range(0, len(items), batch_size):
        yield torch.stack([model.preprocess(item) for item in items[start : start + batch_size]]).to(device)


@contextmanager
def evaluating(model: nn.Module):
    """Eval mode and no gradients inside; the mode from before afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def several(items) -> list:
    """The items as a list. ZooError for a single string or path, whose letters would be taken for files."""
    if isinstance(items, (str, os.PathLike)):
        raise ZooError(f"expected a list of items, got one: {str(items)!r}; write [{str(items)!r}]")
    return list(items)


def predict(self: nn.Module, items, batch_size: int = 64) -> list[dict]:
    """One dict per item: item, label, probability, top (up to 5 pairs [label, probability])."""
    items, labels, results = several(items), self.card.labels, []
    if labels is None or len(labels) != self.num_classes:
        raise ZooError(f"{self.card.name or self.card.model} has no labels: train it first, see: zoo recipes")
    with evaluating(self):
        for x in batches(self, items, batch_size):
            chance, index = self(x).float().softmax(-1).topk(min(5, len(labels)))
            for p, i in zip(chance.tolist(), index.tolist()):
                top = [[labels[at], round(value, 6)] for at, value in zip(i, p)]
                results.append({"item": _shown(items, len(results)), "label": top[0][0], "probability": top[0][1], "top": top})
    return results


def _shown(items: list, i: int) -> str:
    return str(items[i]) if isinstance(items[i], (str, os.PathLike)) else f"item {i}"


def embed(self: nn.Module, items, batch_size: int = 64) -> Tensor:
    """Unit vectors (n, dim), float32 on the CPU."""
    with evaluating(self):
        vectors = [self.forward_embed(x).float().cpu() for x in batches(self, items, batch_size)]
    return torch.cat(vectors) if vectors else torch.zeros(0, self.num_features)
