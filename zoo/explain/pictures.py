"""Heat over a picture: what a layer of an image model took from each place, or what each word looked at."""

from math import ceil

import numpy as np

from zoo.explain.figure import answer, colour_bar, head_name, label_axes, new_figure, shares, short, title
from zoo.explain.maps import Maps
from zoo.explain.words import find_layer, layers, words
from zoo.retrieval.heat import seen

COVER = 0.62  # how much of a pixel is heat; the rest is the picture in gray
LABEL = "attention (1: an even share)"


def draw_picture(model, item, maps: Maps, layer: str, head: slice):
    """The picture as the model sees it, and beside it the attention that each place received from all others."""
    shown = maps[layer]
    height, width = maps.prepared.shape[-2:]
    heat, token = shares(shown.received(head)), int(shown.step)
    figure = new_figure(9, 1.4 + 3.7 * height / width)
    left, right = figure.subplots(1, 2)
    left.imshow(seen(model, item), extent=(0, width, height, 0))
    drawn = _overlay(right, seen(model, item), heat, (width, height), token)
    left.set_title("what the model sees", fontsize=10)
    right.set_title(f"{heat.shape[0]} × {heat.shape[1]} tokens of {token} pixels", fontsize=10)
    for axes in (left, right):
        label_axes(axes, "column (pixels of the model's input)", "row" if axes is left else None)
    colour_bar(drawn, right, LABEL)
    title(figure, model, layer, head_name(shown, head), answer(model, maps))
    return figure


def draw_words(model, text: str, item, layer: str | None, head: int | None):
    """The picture, and for each word what it looked at in it; one colour scale for all."""
    heats = [(word, shares(heat)) for word, heat in words(model, text, item, layer, head)]
    columns = min(4, len(heats) + 1)
    rows = ceil((len(heats) + 1) / columns)
    picture, (height, width) = seen(model, item), model.preprocess_image.size
    token = model.image.patch * 2 ** (len(model.image.stages) - 1)
    figure = new_figure(max(5.4, 0.9 + 2.3 * columns), 0.9 + (0.35 + 2.2 * height / width) * rows)
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places:
        axes.axis("off")
    places[0].imshow(picture, extent=(0, width, height, 0))
    places[0].set_title("what the model sees", fontsize=10)
    low, high = (pick([pick(heat) for _, heat in heats]) for pick in (np.min, np.max))
    for axes, (word, heat) in zip(places[1:], heats):
        drawn = _overlay(axes, picture, heat, (width, height), token, vmin=low, vmax=high)
        axes.set_title(short(word, 24), fontsize=11)
    colour_bar(drawn, places[min(columns, len(heats) + 1) - 1], LABEL, width=0.06)
    heads = model.fusion.text_asks[0].attn.heads
    title(figure, model, find_layer(layers(model), layer), f"mean of {heads} heads" if head is None else f"head {head}")
    return figure


def _overlay(axes, picture, heat: np.ndarray, size: tuple[int, int], token: float, **scale):
    """Gray picture of `size` (width, height) under its heat, one square of `token` a value; a ragged edge is cut off."""
    width, height = size
    axes.imshow(picture.convert("L"), cmap="gray", extent=(0, width, height, 0), vmin=0, vmax=255)
    rows, columns = heat.shape
    drawn = axes.imshow(heat, cmap="cividis", alpha=COVER, extent=(0, columns * token, rows * token, 0), **scale)
    axes.set(xlim=(0, width), ylim=(height, 0))
    return drawn
