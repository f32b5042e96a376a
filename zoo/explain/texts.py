"""A text: what each word piece received, and below it, on the same axis, who looks at whom."""

import numpy as np

from zoo.explain.figure import (
    GREY,
    LINE,
    PALE,
    answer,
    colour_bar,
    head_name,
    label_axes,
    mark_row,
    new_figure,
    received_label,
    shares,
    short,
    title,
)
from zoo.explain.maps import Maps

NAMED = 64  # more word pieces than that have numbers


def draw_text(model, _item, maps: Maps, layer: str, head: slice, query: int | None = None):
    """Two panels over the word pieces: bars of attention received (or of `query`), and the weights of all pairs."""
    shown, names = maps[layer], pieces(model, maps.prepared)
    heat, received, n = shown.weight(head), shares(shown.received(head, query)), len(names)
    figure = new_figure(3.2 + 0.27 * min(max(n, 12), NAMED), 4.2 + 0.27 * min(max(n, 12), NAMED))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.27 * min(max(n, 12), NAMED)])
    top.bar(np.arange(n), received, color=PALE, edgecolor=LINE, linewidth=0.8, width=0.9)
    top.axhline(1, color=GREY, linewidth=0.7, linestyle=":")
    label_axes(top, None, received_label(query))
    drawn = bottom.imshow(heat, cmap="cividis", interpolation="nearest", aspect="auto")
    _name(bottom, names)
    label_axes(bottom, "word piece looked at", "word piece that looks")
    if query is not None:
        mark_row(bottom, query - 0.5, query + 0.5)
    colour_bar(drawn, bottom, "weight (a row sums to 1)")
    bottom.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5))
    looks = "" if query is None else f", asked: {short(names[query], 20)} ({query})"
    title(figure, model, layer, head_name(layer, shown, head) + looks, answer(model, maps))
    return figure


def pieces(model, ids) -> list[str]:
    """The word pieces of a prepared text, as the tokenizer names them; their ids where there is none."""
    tokenizer = getattr(model.preprocess, "tokenizer", None)
    return [str(i) if tokenizer is None else tokenizer.id_to_token(i) or str(i) for i in ids.tolist()]


def _name(axes, names: list[str]) -> None:
    if len(names) > NAMED:
        return
    places, shown = np.arange(len(names)), [short(name, 14).replace("$", r"\\$") for name in names]
    axes.set_xticks(places, shown, rotation=90)
    axes.set_yticks(places, shown)
