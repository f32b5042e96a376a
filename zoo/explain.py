"""What a model looked at: the recorded attention of one answer, on the grid of the input."""

import sys
from types import ModuleType

import numpy as np
import torch

from zoo.core import Recorder
from zoo.errors import ZooError
from zoo.models.text_image import TextImage


def explain(model, text: str, image) -> list[tuple[str, np.ndarray]]:
    """Per word of the text: (word, heat (rows cols) float32 over the image's tokens, >= 0, sums to 1).

    The heat is the weight with which the word's tokens asked the image's, in the last fusion layer, mean over
    the heads and the word's tokens. `model`: a loaded text-image model; image: as for model.preprocess_image.
    A text without words gives []. ZooError where the model is of another kind or an input cannot be read.
    """
    if not isinstance(model, TextImage):
        raise ZooError(f"explain: {type(model).__name__} has no maps for words; a text-image model is needed")
    device = model.logit_scale.device
    ids = model.preprocess_text(text)[None].to(device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    x = model.preprocess_image(image)[None].to(device)
    with torch.inference_mode():
        states, tokens = model.text_states(ids, mask), model.image.forward_features(x)
        with Recorder(model.fusion) as record:
            model.forward_match(states, mask, tokens.flatten(1, 2))
    weights = record.maps[f"text_asks.{len(model.fusion.text_asks) - 1}.attn"][0].mean(0).cpu()  # n m
    heats = [(word, weights[places].mean(0)) for word, places in model.preprocess_text.words(text)]
    return [(word, (heat / heat.sum()).view(tokens.shape[1:3]).numpy()) for word, heat in heats]


class _Callable(ModuleType):
    """Importing this file makes `zoo.explain` the module; the facade's function has that name too."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _Callable
