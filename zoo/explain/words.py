"""What each word of a text looked at in a picture: the fusion of a text-image model."""

import numpy as np
import torch

from zoo.core import Recorder
from zoo.errors import UsageError, ZooError
from zoo.models.text_image import TextImage


def words(model, text: str, image, layer: str | None = None, head: int | None = None) -> list[tuple[str, np.ndarray]]:
    """Per word of the text: (word, heat (rows cols) float32 over the image's tokens, >= 0, sums to 1).

    The heat is the weight with which the word's tokens asked the image's in `layer`, a name as in `layers` (default:
    the last), and `head` (default: mean over the heads), mean over the word's tokens. `model`: a loaded text-image
    model; image: as for model.preprocess_image. A text without words gives []. ZooError where the model is of another
    kind or an input cannot be read; UsageError where it has no such layer or head.
    """
    if not isinstance(model, TextImage):
        raise ZooError(f"explain: {type(model).__name__} has no maps for words; a text-image model is needed")
    layer = find_layer(layers(model), layer)
    device = model.logit_scale.device
    ids = model.preprocess_text(text)[None].to(device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    x = model.preprocess_image(image)[None].to(device)
    with torch.inference_mode():
        states, tokens = model.text_states(ids, mask), model.image.forward_features(x)
        with Recorder(model.fusion) as record:
            model.forward_match(states, mask, tokens.flatten(1, 2))
    maps = record.maps[layer.removeprefix("fusion.")][0]  # h n m
    weights = maps[find_head(len(maps), head)].mean(0).cpu()
    heats = [(word, weights[places].mean(0)) for word, places in model.preprocess_text.words(text)]
    return [(word, (heat / heat.sum()).view(tokens.shape[1:3]).numpy()) for word, heat in heats]


def layers(model: TextImage) -> list[str]:
    """Names of the layers in which words ask the picture."""
    return [f"fusion.text_asks.{i}.attn" for i in range(len(model.fusion.text_asks))]


def find_layer(names: list[str], layer: str | None) -> str:
    """The layer of that name, or the last. UsageError lists the names."""
    if layer is None:
        return names[-1]
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
