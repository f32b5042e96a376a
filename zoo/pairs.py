"""What a text-image model can do with raw texts and pictures: embed_text, embed_image, match; Pairs for many of both."""

from types import MethodType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from zoo import towers
from zoo.card import Card
from zoo.inference import evaluating, several
from zoo.models.fusion import ImageSide
from zoo.preprocess import ImagePreprocess
from zoo.tokens import TextPreprocess


def attach(model: nn.Module, card: Card) -> None:
    """Fills the frozen tower from its package and gives `model` its methods. ZooError where the tower is missing or another."""
    set_preprocess(model, card.preprocess)
    if model.tower:
        known = next(iter(card.towers.values()), {}).get("sha256")
        weights, _ = towers.load_tower(model.tower, known)
        model.text.load_state_dict(weights)
        tower = towers.find(model.tower).to_dict()
        card.towers = {prefix: tower for prefix in card.towers or ("text.",)}  # blocks that were trained are not among them
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
        states = _states(self, texts)
        for start in range(0, len(images), batch_size):
            side = self.image_side(self.encode_image(_pixels(self, images[start : start + batch_size]))[0])
            place = slice(start, start + side.shape[0])
            if side.shape[0] >= len(texts):
                rows = [self.forward_match(state[None], None, side) for state in states]
                scores[:, place] = torch.stack(rows).float().cpu() if rows else scores[:, place]
            else:
                columns = [_one_picture(self, states, side.pick([i]), batch_size) for i in range(side.shape[0])]
                scores[:, place] = torch.stack(columns, 1).float().cpu()
    return scores


class Pairs:
    """Texts and pictures encoded once, to be matched pair by pair: unit vectors `text` (t dim) and `image` (i dim).

    `picture(i)` gives the i-th of `count` pictures. sides: whether what matching needs is kept too. In eval mode, no gradients.
    """

    def __init__(self, model: nn.Module, texts: list[str], count: int, picture, sides: bool = True, batch_size: int = 64):
        self._model, self._states, vectors, kept, images = model, [], [], [], []
        for part in _parts(texts, 4 * batch_size):
            states, mask = _padded(model, part)
            vectors.append(model.project_text(states, mask))
            if sides:
                self._states += [row[real].clone() for row, real in zip(states, mask)]
        for start in range(0, count, batch_size):
            tokens, found = model.encode_image(_pixels(model, [picture(i) for i in range(start, min(start + batch_size, count))]))
            images.append(found)
            if sides:
                kept.append(model.image_side(tokens))
        self.text, self.image = (torch.cat(found) for found in (vectors, images))
        self._side = ImageSide.cat(kept) if kept else None

    def text_asks(self, text: int, images) -> np.ndarray:
        """Match logits (len(images)) of one text with those pictures."""
        return self._model.forward_match(self._states[text][None], None, self._side.pick(images)).float().cpu().numpy()

    def image_asks(self, image: int, texts) -> np.ndarray:
        """Match logits (len(texts)) of one picture with those texts."""
        states = [self._states[i] for i in texts]
        return _one_picture(self._model, states, self._side.pick([image]), len(states)).float().cpu().numpy()


def _states(model: nn.Module, texts: list[str], batch_size: int = 256) -> list[Tensor]:
    """Token states (n dim) of each text, without padding."""
    return [row[real] for part in _parts(texts, batch_size) for row, real in zip(*_padded(model, part))]


def _padded(model: nn.Module, texts: list[str]) -> tuple[Tensor, Tensor]:
    ids, mask = _ids(model, texts)
    return model.text_states(ids, mask), mask


def _one_picture(model: nn.Module, states: list[Tensor], side: ImageSide, batch_size: int) -> Tensor:
    """Match logits (len(states)) of texts with one picture. They go by length: little of a batch is padding."""
    order = sorted(range(len(states)), key=lambda i: len(states[i]))
    scores = torch.zeros(len(states), device=model.logit_scale.device)
    for part in _parts(order, batch_size):
        lengths = torch.tensor([len(states[i]) for i in part], device=scores.device)
        padded = pad_sequence([states[i] for i in part], batch_first=True)
        mask = torch.arange(padded.shape[1], device=scores.device) < lengths[:, None]
        scores[part] = model.forward_match(padded, mask, side).float()
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
