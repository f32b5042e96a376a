"""A text and a picture: what each word looked at in the picture, or what its patches looked at in the words."""

from math import ceil

import numpy as np

from zoo.errors import UsageError
from zoo.explain.figure import GREY, PALE, colour_bar, new_figure, shares, short, title
from zoo.explain.maps import Map
from zoo.explain.pictures import LABEL, outline, overlay
from zoo.explain.query import find_query
from zoo.explain.words import find_layer, layers, patches, words
from zoo.retrieval.heat import seen

SHARE = "share of the patch's attention"


def draw_pair(model, text: str, item, layer: str | None, head: int | None, query=None):
    """By `layer`: words over the picture, or patches over the words; with `query` (a patch) the words that it looked at.

    Default: the last layer in which words ask, with `query` the last in which patches do.
    """
    ask, asked = layers(model, "text"), layers(model, "image")
    layer = find_layer(ask + asked, layer, -1 if query is not None or not ask else len(ask) - 1)
    if layer in asked:
        return draw_patches(model, text, item, layer, head, query)
    if query is not None:
        there = f"a layer of {', '.join(asked)}" if asked else "not there in this model"
        raise UsageError(f"query {query!r}: in {layer} words ask, not patches; where patches do: {there}")
    return draw_words(model, text, item, layer, head)


def draw_words(model, text: str, item, layer: str | None, head: int | None):
    """The picture, and for each word what it looked at in it; one colour scale for all."""
    heats = [(word, shares(heat)) for word, heat in words(model, text, item, layer, head)]
    figure = _panels(model, item, heats, LABEL)
    _title(figure, model, find_layer(layers(model), layer), head, "what each word looked at")
    return figure


def draw_patches(model, text: str, item, layer: str | None, head: int | None, query=None):
    """For each word how much every patch looked at it; or, for one patch, bars of the words it looked at."""
    names, weights = patches(model, text, item, layer, head)
    layer = find_layer(layers(model, "image"), layer)
    if query is None:
        figure = _panels(model, item, [(name, weights[..., i]) for i, name in enumerate(names)], SHARE)
        _title(figure, model, layer, head, "how much each patch looked at a word")
        return figure
    token, (rows, columns) = _token(model), weights.shape[:2]
    place = divmod(find_query(query, Map((rows, columns), token, None, None), "image"), columns)
    figure = new_figure(9, max(4.2, 1.6 + 0.3 * len(names)))
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.1])
    _picture(left, model, item)
    outline(left, place, token)
    bars = right.barh(np.arange(len(names)), weights[place], color=PALE, edgecolor=GREY, linewidth=0.7)
    right.bar_label(bars, fmt="%.3f", fontsize=8, padding=2)
    right.axvline(1 / len(names), color=GREY, linewidth=0.7, linestyle=":")
    right.set_yticks(np.arange(len(names)), [short(name, 24) for name in names])
    right.set(xlabel=f"{SHARE} (sums to 1; dotted: even)", ylim=(len(names) - 0.5, -0.5))
    right.margins(x=0.15)
    _title(figure, model, layer, head, f"asked: the outlined patch {place[0]},{place[1]}")
    return figure


def _panels(model, item, heats: list[tuple[str, np.ndarray]], label: str):
    """The picture, then for each name its heat over it, at most 4 beside each other."""
    columns = min(4, len(heats) + 1)
    rows = ceil((len(heats) + 1) / columns)
    picture, (height, width) = seen(model, item), model.preprocess_image.size
    figure = new_figure(max(5.4, 0.9 + 2.3 * columns), 0.9 + (0.35 + 2.2 * height / width) * rows)
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places:
        axes.axis("off")
    _picture(places[0], model, item)
    low, high = (pick([pick(heat) for _, heat in heats]) for pick in (np.min, np.max))
    for axes, (name, heat) in zip(places[1:], heats):
        drawn = overlay(axes, picture, heat, (width, height), _token(model), vmin=low, vmax=high)
        axes.set_title(short(name, 24), fontsize=11)
    colour_bar(drawn, places[min(columns, len(heats) + 1) - 1], label, width=0.06)
    return figure


def _picture(axes, model, item) -> None:
    height, width = model.preprocess_image.size
    axes.axis("off")
    axes.imshow(seen(model, item), extent=(0, width, height, 0))
    axes.set_title("what the model sees", fontsize=10)


def _token(model) -> int:
    """Pixels of the model's input that a token of the last stage spans."""
    return model.image.patch * 2 ** (len(model.image.stages) - 1)


def _title(figure, model, layer: str, head: int | None, what: str) -> None:
    heads = model.get_submodule(layer).heads
    title(figure, model, layer, (f"mean of {heads} heads" if head is None else f"head {head} of 0 to {heads - 1}") + f", {what}")
