"""Heat over a picture: what a layer of an image model took from each place."""

import numpy as np

from zoo.explain.figure import answer, colour_bar, head_name, label_axes, new_figure, shares, title
from zoo.explain.maps import Maps
from zoo.retrieval.heat import seen

COVER = 0.62  # how much of a pixel is heat; the rest is the picture in gray
LABEL = "attention (1: an even share)"


def draw_picture(model, item, maps: Maps, layer: str, head: slice, query: int | None = None):
    """The picture as the model sees it, and beside it the attention that each place received: from all, or from token `query`."""
    shown = maps[layer]
    height, width = maps.prepared.shape[-2:]
    heat, token = shares(shown.received(head, query)), int(shown.step)
    figure = new_figure(9, 1.4 + 3.7 * height / width)
    left, right = figure.subplots(1, 2)
    left.imshow(seen(model, item), extent=(0, width, height, 0))
    drawn = overlay(right, seen(model, item), heat, (width, height), token)
    left.set_title("what the model sees", fontsize=10)
    right.set_title(f"{heat.shape[0]} × {heat.shape[1]} tokens of {token} pixels", fontsize=10)
    asked = ""
    for axes in (left, right):
        label_axes(axes, "column (pixels of the model's input)", "row" if axes is left else None)
    if query is not None:
        (_, columns), size = shown.askers
        place = divmod(query, columns)
        asked = f", asked: the outlined token {place[0]},{place[1]}"
        for axes in (left, right):
            outline(axes, place, size)
    colour_bar(drawn, right, LABEL)
    title(figure, model, layer, head_name(layer, shown, head) + asked, answer(model, maps))
    return figure


def outline(axes, place: tuple[int, int], size: float, start: float = 0) -> None:
    """A frame around the token at (row, column) of `size`, seen on every colour; the map begins at `start`."""
    from matplotlib.patches import Rectangle

    row, column = place
    for colour, width in (("black", 3.4), ("white", 1.4)):
        corner = start + column * size, start + row * size
        axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=colour, linewidth=width, clip_on=False, zorder=3))


def overlay(axes, picture, heat: np.ndarray, size: tuple[int, int], token: float, **scale):
    """Gray picture of `size` (width, height) under its heat, one square of `token` a value; a ragged edge is cut off."""
    width, height = size
    axes.imshow(picture.convert("L"), cmap="gray", extent=(0, width, height, 0), vmin=0, vmax=255)
    rows, columns = heat.shape
    drawn = axes.imshow(heat, cmap="cividis", alpha=COVER, extent=(0, columns * token, rows * token, 0), **scale)
    axes.set(xlim=(0, width), ylim=(height, 0))
    return drawn
