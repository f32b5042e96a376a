"""What a model looked at: the recorded attention of one answer, mapped back to its input; as numbers and as a picture.

    maps = zoo.explain(model, "cat.jpg")               # layer -> Map, weights over the tokens of the picture
    zoo.explain(pairs, "a red car", "cat.jpg")         # of a text-image model: [(word, heat)]
    zoo.explain.draw(model, "cat.jpg", "explain.png")
"""

import os
import sys
from pathlib import Path
from types import ModuleType

from zoo.explain.maps import Map, Maps, record
from zoo.explain.words import words

__all__ = ["Map", "Maps", "draw", "explain"]


def explain(model, item, image=None):
    """The attention of every layer on one raw `item` (as for model.preprocess): Maps, layer -> Map.

    Of a text-image model: explain(model, text, image) -> [(word, heat)], see `words`. The model's answer is that of predict.
    ZooError where the model has no attention of that kind or an input cannot be read.
    """
    return record(model, item) if image is None else words(model, item, image)


def draw(
    model, item, output: str | os.PathLike, text: str | None = None, layer: str | None = None, head: int | None = None
) -> None:
    """Draws what `model` looked at in `item` into the file `output` (.png, .jpg, .pdf or .svg).

    layer: a name among the keys of explain(model, item) (default: the last); head: from 0 (default: the mean of all).
    text: what a text-image model is asked about its picture. UsageError where one of them does not fit the model.
    """
    from zoo.explain.figure import draw

    draw(model, item, Path(output), text, layer, head)


class _Callable(ModuleType):
    """`zoo.explain` is this module, and the facade's function has that name too."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _Callable
