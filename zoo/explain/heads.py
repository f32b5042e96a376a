"""All layers and heads at once: a row for each layer, a column for each head."""

import numpy as np

from zoo.explain.figure import GREY, answer, colour_bar, new_figure, shares, title
from zoo.explain.maps import Map, Maps
from zoo.explain.pictures import outline, overlay
from zoo.retrieval.heat import seen

MOST = 240  # tokens a side of one heat map: more are put together
CELL, HEIGHT, MOST_COLUMNS = 1.25, 24, 16  # inches of a heat map, of all; heads beside each other
HIGH = 99.5  # percentile of a layer's weights that has the brightest colour: a diagonal would darken all else
AXES = {"audio": "in time", "text": "by word piece", "graph": "by node"}


def draw_grid(model, item, maps: Maps, query=None):
    """Of pictures the attention that each place received (or that of `query`), of all else the weights of all pairs.

    `query` maps a Map to the place of a token among those that look (see query.py). The colours of one layer have one scale.
    """
    picture, size = (seen(model, item), maps.prepared.shape[:-3:-1]) if model.card.modality == "image" else (None, (1, 1))
    heads = min(MOST_COLUMNS, max(shown.heads for shown in maps.values()))
    cell = min(CELL, HEIGHT / len(maps))
    figure = new_figure(2.6 + cell * heads, 1.5 + (cell * size[1] / size[0] + 0.2) * len(maps))
    for row, (name, shown) in zip(figure.subplots(len(maps), heads, squeeze=False), maps.items()):
        at = None if query is None else query(shown)
        heats = [_heat(shown, head, picture is not None, at) for head in range(min(shown.heads, heads))]
        low, high = min(heat.min() for heat in heats), np.percentile(np.stack(heats), HIGH)
        scale = {"vmin": low, "vmax": max(high, low + 1e-9)}
        for axes, heat in zip(row, heats):
            if picture is None:
                drawn = axes.imshow(heat, cmap="cividis", aspect="auto", interpolation="nearest", **scale)
            else:
                drawn = overlay(axes, picture, heat, size, shown.step, **scale)
            if at is not None:
                outline(axes, divmod(at, shown.axes[1]), shown.step)
        _frame(row, name, len(heats))
        colour_bar(drawn, row[-1], "", width=0.07)
    received = "received by each place" if query is None else "of the outlined token"
    what = f"attention {received} (1: an even share)"
    if picture is None:
        what = f"weights: down who looks, across who is looked at, {AXES[model.card.modality]}"
    title(figure, model, f"{len(maps)} layers × {heads} heads", what, answer(model, maps))
    return figure


def _heat(shown: Map, head: int, picture: bool, query: int | None) -> np.ndarray:
    head = slice(head, head + 1)
    return shares(shown.received(head, query)) if picture else shrink(shown.weight(head))


def _frame(row, name: str, heads: int) -> None:
    """Names of layer and heads; no ticks; places without a head are empty."""
    for column, axes in enumerate(row):
        if column >= heads:
            axes.axis("off")
            continue
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"head {column}", fontsize=7, pad=2)
        for side in axes.spines.values():
            side.set(color=GREY, linewidth=0.5)
    row[0].set_ylabel(name.removesuffix(".attn"), fontsize=8, rotation=0, ha="right", va="center")


def shrink(weight: np.ndarray, most: int = MOST) -> np.ndarray:
    """(m n) -> at most (most most): neighbouring queries averaged, their keys summed, so that a row still sums to 1."""
    rows, cols = (np.arange(0, n, -(-n // most)) for n in weight.shape)
    heat = np.add.reduceat(np.add.reduceat(weight, rows, 0), cols, 1)
    return heat / np.diff(np.append(rows, len(weight)))[:, None]
