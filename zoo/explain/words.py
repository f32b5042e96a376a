"""What each word of a text looked at in a picture, and each patch in the text: the fusion of a text-image model."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.core import Recorder
from zoo.errors import UsageError, ZooError
from zoo.models.text_image import TextImage

LEAD, START, END = "(read-out)", "(start)", "(end)"  # tokens of a text that are no words


def words(model, text: str, image, layer: str | None = None, head: int | None = None) -> list[tuple[str, np.ndarray]]:
    """Per word of the text: (word, heat (rows cols) float32 over the image's tokens, >= 0, sums to 1).

    The heat is the weight with which the word's tokens asked the image's in `layer`, a name as in `layers` (default:
    the last), and `head` (default: mean over the heads), mean over the word's tokens. `model`: a loaded text-image
    model; image: as for model.preprocess_image. A text without words gives []. ZooError where the model is of another
    kind or an input cannot be read; UsageError where it has no such layer or head.
    """
    asked = _ask(model, text, image, "text", layer, head)
    weights = asked.weights[-asked.tokens:, -asked.patches:]
    heats = [(word, weights[places].mean(0)) for word, places in asked.words]
    return [(word, (heat / heat.sum()).view(asked.axes).numpy()) for word, heat in heats]


def patches(model, text: str, image, layer: str | None = None, head: int | None = None) -> tuple[list[str], np.ndarray]:
    """What each patch of the picture looked at in the text: (names, weights (rows cols names) float32, >= 0, a row sums to 1).

    The names are the words in their order; then (start) and (end), the marks around every text, and (read-out) where the model
    has such a token. A word's weight is the sum of its tokens'. Arguments and errors as of `words`, layers those of the image.
    """
    asked = _ask(model, text, image, "image", layer, head)
    weights = asked.weights[-asked.patches:]
    lead, last = weights.shape[1] - asked.tokens, asked.tokens - 1
    columns = [(word, [lead + place for place in places]) for word, places in asked.words]
    columns += [(START, [lead]), (END, [lead + last])] + ([(LEAD, list(range(lead)))] if lead else [])
    shares = torch.stack([weights[:, places].sum(1) for _, places in columns], -1)
    return [name for name, _ in columns], shares.view(*asked.axes, -1).numpy()


@dataclass(frozen=True)
class _Asked:
    """weights (queries keys); a read-out token may lead either side. words: (word, places of its tokens)."""

    weights: Tensor
    words: list[tuple[str, list[int]]]
    tokens: int
    axes: tuple[int, int]

    @property
    def patches(self) -> int:
        return self.axes[0] * self.axes[1]


def _ask(model, text: str, image, side: str, layer: str | None, head: int | None) -> _Asked:
    if not isinstance(model, TextImage):
        raise ZooError(f"explain: {type(model).__name__} has no maps for words; a text-image model is needed")
    names = layers(model, side)
    if not names:
        what = "words do not ask the picture" if side == "text" else "patches do not ask the words"
        raise UsageError(f"explain: in this model {what}")
    layer = find_layer(names, layer)
    device = model.logit_scale.device
    ids = model.preprocess_text(text)[None].to(device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    x = model.preprocess_image(image)[None].to(device)
    with torch.inference_mode():
        states, tokens = model.text_states(ids, mask), model.image.forward_features(x)
        axes, tokens = (tokens.shape[1:3], tokens.flatten(1, 2)) if tokens.ndim == 4 else (model.image.grid(x), tokens)
        with Recorder(model.fusion) as record:
            model.forward_match(states, mask, tokens)
    maps = record.maps[layer.removeprefix("fusion.")][0]  # h queries keys
    weights = maps[find_head(len(maps), head)].mean(0).float().cpu()
    return _Asked(weights, model.preprocess_text.words(text), ids.shape[1], tuple(axes))


def layers(model: TextImage, side: str = "text") -> list[str]:
    """Names of the layers in which words ask the picture (`side` "text"), or patches ask the words ("image")."""
    blocks = getattr(model.fusion, f"{side}_asks", None)
    return [f"fusion.{side}_asks.{i}.attn" for i in range(len(blocks or ()))]


def find_layer(names: list[str], layer: str | None, default: int = -1) -> str:
    """The layer of that name, or the one at `default`. UsageError lists the names."""
    if layer is None:
        return names[default]
    if layer not in names:
        raise UsageError(f"layer {layer!r}: no such attention layer; there are {', '.join(names)}")
    return layer


def find_head(heads: int, head: int | None) -> slice:
    """The place of one head, or of all. UsageError says how many there are."""
    if head is None:
        return slice(None)
    if not 0 <= head < heads:
        raise UsageError(f"head {head}: the layer has heads 0 to {heads - 1}")
    return slice(head, head + 1)
