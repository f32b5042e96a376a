"""What a model looked at: the recorded attention of one answer, mapped back to its input; as numbers and as a picture.

    maps = zoo.explain(model, "cat.jpg")               # layer -> Map, weights over the tokens of the picture
    zoo.explain.rollout(maps)                          # a Map: through all layers, from the last tokens to the first
    zoo.explain(pairs, "a red car", "cat.jpg")         # of a text-image model: [(word, heat)]
    zoo.explain.patches(pairs, "a red car", "cat.jpg") # the other way round: (words, weights (rows cols words))
    zoo.explain.draw(model, "cat.jpg", "explain.png", query="3,5")
    zoo.explain.grid(model, "cat.jpg", "explain.png")  # all layers and heads
"""

import os
import sys
from pathlib import Path
from types import ModuleType

from zoo.explain.maps import Map, Maps, record
from zoo.explain.rollout import rollout
from zoo.explain.words import patches, words

__all__ = ["Map", "Maps", "draw", "explain", "grid", "patches", "rollout"]


def explain(model, item, image=None):
    """The attention of every layer on one raw `item` (as for model.preprocess): Maps, layer -> Map.

    Of a text-image model: explain(model, text, image) -> [(word, heat)], see `words`. The model's answer is that of predict.
    ZooError where the model has no attention of that kind or an input cannot be read.
    """
    return record(model, item) if image is None else words(model, item, image)


def draw(
    model, item, output: str | os.PathLike, text: str | None = None, layer: str | None = None, head: int | None = None,
    query=None,
) -> None:
    """Draws what `model` looked at in `item` into the file `output` (.png, .jpg, .pdf or .svg).

    layer: a name among the keys of explain(model, item) (default: the last), or "rollout": through all of them; head: from 0
    (default: the mean of all). query: the token that is asked, see query.py (default: all, the mean).
    text: what a text-image model is asked about its picture. UsageError where one of them does not fit the model.
    """
    from zoo.explain.figure import draw

    draw(model, item, Path(output), text, layer, head, query)


def grid(model, item, output: str | os.PathLike, query=None) -> None:
    """Draws every layer and head into the file `output`, a heat map each. `query`: of pictures, as in `draw`."""
    from zoo.explain.figure import grid

    grid(model, item, Path(output), query)


class _Callable(ModuleType):
    """`zoo.explain` is this module, and the facade's function has that name too."""

    __call__ = staticmethod(explain)


sys.modules[__name__].__class__ = _Callable
