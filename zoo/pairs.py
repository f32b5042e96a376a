"""What a text-image model can do with raw texts and pictures: embed_text, embed_image, match."""

from types import MethodType

import torch
from torch import Tensor, nn

from zoo import towers
from zoo.card import Card
from zoo.inference import evaluating, several
from zoo.preprocess import ImagePreprocess
from zoo.tokens import TextPreprocess


def attach(model: nn.Module, card: Card) -> None:
    """Fills the frozen tower from its package and gives `model` its methods. ZooError where the tower is missing or another."""
    set_preprocess(model, card.preprocess)
    if model.tower:
        known = card.towers.get("text.", {}).get("sha256")
        weights, _ = towers.load_tower(model.tower, known)
        model.text.load_state_dict(weights)
        card.towers = {"text.": towers.find(model.tower).to_dict()}
    for method in (embed_text, embed_image, match, embed):
        setattr(model, method.__name__, MethodType(method, model))


def set_preprocess(model: nn.Module, settings: dict) -> None:
    """Replaces the preprocessing {"image": ..., "text": ...}, in the model and in its card."""
    model.preprocess_image = ImagePreprocess.from_dict(settings["image"])
    model.preprocess_text = TextPreprocess.from_dict(settings["text"])
    model.preprocess = MethodType(preprocess, model)
    model.card.preprocess = {"image": model.preprocess_image.to_dict(), "text": model.preprocess_text.to_dict()}


def preprocess(self: nn.Module, item) -> Tensor:
    """A picture (path, PIL image, array, bytes) -> (3 h w). Strings are paths; for texts: preprocess_text."""
    return self.preprocess_image(item)


def embed_text(self: nn.Module, texts: list[str], batch_size: int = 256) -> Tensor:
    """Unit vectors (n, dim) of texts, float32 on the CPU."""
    with evaluating(self):
        vectors = [self.encode_text(*_ids(self, part))[1].cpu() for part in _parts(texts, batch_size)]
    return torch.cat(vectors) if vectors else torch.zeros(0, self.num_features)


def embed_image(self: nn.Module, items: list, batch_size: int = 64) -> Tensor:
    """Unit vectors (n, dim) of pictures, float32 on the CPU."""
    with evaluating(self):
        vectors = [self.encode_image(_pixels(self, part))[1].cpu() for part in _parts(items, batch_size)]
    return torch.cat(vectors) if vectors else torch.zeros(0, self.num_features)


def embed(self: nn.Module, items: list, batch_size: int = 64) -> Tensor:
    """Pictures, as `embed_image`: what the other modalities call embed."""
    return self.embed_image(items, batch_size)


def match(self: nn.Module, texts: list[str], images: list, batch_size: int = 64) -> Tensor:
    """Match logits (len(texts), len(images)): every text with every picture; sigmoid gives the probability."""
    texts, images = several(texts), several(images)
    scores = torch.zeros(len(texts), len(images))
    with evaluating(self):
        states = [self.text_states(*_ids(self, [text])) for text in texts]
        for start in range(0, len(images), batch_size):
            tokens, _ = self.encode_image(_pixels(self, images[start : start + batch_size]))
            for row, state in enumerate(states):
                real = torch.ones(state.shape[:2], dtype=torch.bool, device=state.device)
                scores[row, start : start + len(tokens)] = self.forward_match(state, real, tokens).float().cpu()
    return scores


def _parts(items, size: int):
    items = several(items)
    return (items[start : start + size] for start in range(0, len(items), size))


def _ids(model: nn.Module, texts: list[str]) -> tuple[Tensor, Tensor]:
    device = model.logit_scale.device
    ids, mask = model.preprocess_text.batch(texts)
    return ids.to(device), mask.to(device)


def _pixels(model: nn.Module, items: list) -> Tensor:
    return torch.stack([model.preprocess_image(item) for item in items]).to(model.logit_scale.device)
