"""One figure of one layer's attention: which drawing, its title, its colours; written whole or not at all."""

import io
from functools import partial
from pathlib import Path

import numpy as np
import torch

from zoo import answers, checkpoint
from zoo.card import Card
from zoo.errors import UsageError
from zoo.explain.maps import Map, Maps, record
from zoo.explain.query import find_query
from zoo.explain.rollout import NAME, rollout
from zoo.explain.words import find_head, find_layer, layers

SUFFIXES = (".png", ".jpg", ".pdf", ".svg")
DPI = 150
GREY, PALE, LINE = "#555555", "#9ecae1", "#00468b"


def draw(model, item, output: Path, text: str | None, layer: str | None, head: int | None, query=None) -> None:
    """See zoo.explain.draw."""
    card = _check(model, output)
    if card.modality == "text_image":
        if text is None or not text.split():
            raise UsageError(f"{card.name or card.model} looks at pictures word by word: give words, --text 'a red car'")
        if layer == NAME:
            asked = ", ".join([*layers(model), *layers(model, "image")])
            raise UsageError(f"--layer {NAME} follows one kind of tokens through all layers, {card.name or card.model} has two, "
                             f"words and patches; leave --layer out, or take one of {asked}")
        from zoo.explain.pairs import draw_pair

        return save(draw_pair(model, text, item, layer, head, query), output)
    maps, item = _recorded(model, item, text)
    layer = find_layer([*maps, NAME], layer, len(maps) - 1)
    if layer == NAME:
        if head is not None:
            raise UsageError(f"head {head}: rollout takes the mean of all heads; leave --head out")
        maps[NAME] = rollout(maps)
    place = None if query is None else find_query(query, maps[layer], card.modality)
    save(_drawing(card.modality)(model, item, maps, layer, find_head(maps[layer].heads, head), place), output)


def grid(model, item, output: Path, query=None) -> None:
    """See zoo.explain.grid."""
    card = _check(model, output)
    if card.modality == "text_image":
        raise UsageError(f"--grid: {card.name or card.model} has two kinds of tokens and no grid; leave --grid out, give --text")
    if query is not None and card.modality != "image":
        raise UsageError(f"query {query!r}: the grid shows all that look; leave --query or --grid out")
    from zoo.explain.heads import draw_grid

    maps, item = _recorded(model, item, None)
    asked = None
    if query is not None:
        last = list(maps.values())[-1]
        row, col = divmod(find_query(query, last, card.modality), last.axes[1])
        pixel = ",".join(str((place + 0.5) * last.step) for place in (row, col)) + "px"
        asked = partial(find_query, pixel, modality=card.modality)
    save(draw_grid(model, item, maps, asked), output)


def _check(model, output: Path) -> Card:
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--out {output}: a picture file, {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    return getattr(model, "card", None) or Card(type(model).__name__, "")


def _recorded(model, item, text: str | None) -> tuple[Maps, object]:
    card = model.card
    if text is not None:
        raise UsageError(f"--text is for text-image models; {card.name or card.model} takes none")
    if card.modality == "graph":
        from zoo.explain.graphs import first_graph

        item = first_graph(model, item)
    return record(model, item), item


def _drawing(modality: str):
    """(model, item, maps, layer, head, query) -> Figure."""
    if modality == "audio":
        from zoo.explain.sounds import draw_sound

        return draw_sound
    if modality == "graph":
        from zoo.explain.graphs import draw_graph

        return draw_graph
    if modality == "text":
        from zoo.explain.texts import draw_text

        return draw_text
    from zoo.explain.pictures import draw_picture

    return draw_picture


def new_figure(width: float, height: float):
    """An empty figure of so many inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure((width, height), dpi=DPI, layout="constrained", facecolor="white")


def save(figure, output: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=output.suffix[1:].lower())
    checkpoint.write(output, buffer.getvalue())


def title(figure, model, layer: str, head: str, said: str = "") -> None:
    """Model and answer in the first line, layer and head in the second."""
    card = model.card
    first = f"{card.name or card.model}" + (f" says {said}" if said else "")
    figure.suptitle(f"{short(first, 90)}\n{layer}, {head}", fontsize=11, linespacing=1.5)


def head_name(layer: str, shown: Map, head: slice) -> str:
    """How a title names it."""
    if layer == NAME:
        return "all layers, mean of their heads"
    return f"mean of {shown.heads} heads" if head == slice(None) else f"head {head.start} of 0 to {shown.heads - 1}"


def answer(model, maps: Maps) -> str:
    """The answer about the item in a few words; "" for a model without a trained head, or one that answers about parts."""
    card = model.card
    named = card.targets if card.head == "values" else card.labels
    logits = maps.logits
    if not named or logits.shape != torch.Size([1, len(named)]):
        return ""
    row = answers.rows(model, answers.chances(model, logits))[0]
    if "label" in row:
        return f"{row['label']} ({row['probability']:.0%})"
    if "tags" in row:
        return ", ".join(row["tags"]) or "no tag"
    return ", ".join(f"{t['name']} {value:.4g} {t.get('unit') or ''}".strip() for t, value in zip(card.targets, row.values()))


def colour_bar(drawn, axes, label: str, width: float = 0.03) -> None:
    """Right of the axes and as high as they are; `width` as a share of theirs."""
    bar = axes.figure.colorbar(drawn, cax=axes.inset_axes([1.02, 0, width, 1]))
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def label_axes(axes, x: str | None, y: str | None) -> None:
    axes.tick_params(labelsize=8, color=GREY)
    axes.set_xlabel(x or "", fontsize=9)
    axes.set_ylabel(y or "", fontsize=9)


def received_label(query: int | None) -> str:
    """What an axis of `shares` says."""
    return ("received" if query is None else "looked at") + "\n(1: even share)"


def mark_row(axes, start: float, end: float) -> None:
    """A frame around the row of the token that is asked, seen on every colour of the map."""
    for colour, width in (("black", 2.4), ("white", 1.0)):
        for edge in (start, end):
            axes.axhline(edge, color=colour, linewidth=width, zorder=3)


def shares(received: np.ndarray) -> np.ndarray:
    """Attention per token as a multiple of an even share: 1 where nothing stands out."""
    return received * received.size


def short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
