"""What the demo page shows, as HTML: pictures, names, heat maps. Text from outside passes through `esc`."""

import base64
import html
import io
from urllib.parse import quote

from PIL import Image

from zoo.preprocess import load_image
from zoo.retrieval.heat import CIVIDIS


def esc(text) -> str:
    """Safe in HTML and in an attribute, and in the page's templates, where `${` and `{{` would be code."""
    return html.escape(str(text)).replace("$", "&#36;").replace("{", "&#123;").replace("`", "&#96;")


def button(kind: str, place: int, content: str, attributes: str = "") -> str:
    """A button of the page; `place` is what a click on it tells."""
    return f'<button type="button" class="zoo-{kind}" data-place="{place}" {attributes}>{content}</button>'


def encoded(picture: Image.Image) -> tuple[bytes, str]:
    """The bytes of a picture and their kind: "png" keeps drawings sharp, "jpeg" photographs small."""
    kind = "png" if picture.width * picture.height <= 128 * 128 else "jpeg"
    data = io.BytesIO()
    picture.save(data, kind, **({"quality": 82} if kind == "jpeg" else {}))
    return data.getvalue(), kind


def data_uri(picture: Image.Image) -> str:
    """The picture itself in place of its address."""
    data, kind = encoded(picture)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def address(key: str) -> str:
    """Where the page asks for the thumbnail of a picture, once its card comes into sight; see `zoo.retrieval.app`."""
    return f"thumbnail?key={quote(key, safe='')}"


def thumbnail(source, key: str, side: int = 192) -> Image.Image:
    """A picture (path or bytes), at most `side` large. ZooError where it cannot be read."""
    try:
        opened = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        opened.draft(None, (2 * side, 2 * side))  # decodes a JPEG at a fraction of its size, ten times faster
    except (OSError, Image.DecompressionBombError):
        opened = source  # for load_image to name the reason
    picture = load_image(opened, key)
    picture.thumbnail((side, side))
    return picture


def picture_card(place: int, name: str, picture: str, language: str | None = None, hit=None) -> str:
    """One picture as a button. picture: its address. hit: scores and ranks, where there was a search."""
    image = f'<img src="{esc(picture)}" alt="" loading="lazy" width="192" height="112">'
    spoken = f"{name}, rank {hit.rank_after}, score {hit.score:.3f}" if hit else name
    label = f'aria-label="{esc(spoken)}" title="{esc(name)}"'
    numbers = _numbers(hit) if hit else ""
    return f"<li>{button('card', place, image + _name(name, language) + numbers, label)}</li>"


def grid(cards: list[str], heading: str = "") -> str:
    """Picture cards as an ordered list, under a heading if there is one."""
    return _headed(heading, f'<ol class="zoo-grid">{"".join(cards)}</ol>')


def names(found: list, language: str | None = None) -> str:
    """Ranked names as buttons; found: (text to show, Name). Nothing where there are none."""
    rows = [
        button("row", place, _name(text, language) + _numbers(name))
        for place, (text, name) in enumerate(found)
    ]
    items = "".join(f"<li>{row}</li>" for row in rows)
    return _headed("Names", f'<ol class="zoo-names">{items}</ol>') if found else ""


def chips(texts: list[str]) -> str:
    """Example queries as buttons."""
    row = "".join(button("chip", place, esc(text)) for place, text in enumerate(texts))
    return f'<div class="zoo-chips"><span>Try</span>{row}</div>'


def status(text: str, error: bool = False) -> str:
    """One line above the results. An error is announced by screen readers at once."""
    kind, role = (" zoo-error", "alert") if error else ("", "status")
    return f'<p class="zoo-status{kind}" role="{role}">{esc(text)}</p>'


def detail(title: str, about: str, picture: Image.Image, heats: list[tuple[str, Image.Image]]) -> str:
    """One picture, then its heat map for each word, with the legend."""
    figures = _figure(picture, "picture") + "".join(_figure(heat, word, " zoo-heat") for word, heat in heats)
    close = button("close", -1, "✕", 'aria-label="Close"')
    return (
        f'<section class="zoo-detail"><header><h2>{esc(title)}</h2>{close}</header>'
        f'<p class="zoo-note">{esc(about)}</p><div class="zoo-figures">{figures}</div>'
        f"{_legend() if heats else ''}</section>"
    )


def _figure(picture: Image.Image, caption: str, kind: str = "") -> str:
    image = f'<img src="{data_uri(picture)}" alt="">'
    return (
        f'<figure class="zoo-figure{kind}">{image}<figcaption dir="auto">{esc(caption)}</figcaption></figure>'
    )


def _legend() -> str:
    colours = ", ".join(f"rgb{colour}" for colour in CIVIDIS)
    bar = f'<i style="background: linear-gradient(90deg, {colours})"></i>'
    scale = "more; each word on its own scale"
    return f'<p class="zoo-legend"><span>looked less</span>{bar}<span>{scale}</span></p>'


def _headed(heading: str, body: str) -> str:
    return f'<h2 class="zoo-heading">{esc(heading)}</h2>{body}' if heading else body


def _name(text: str, language: str | None) -> str:
    return f'<span class="zoo-name" dir="auto" lang="{esc(language or "")}">{esc(text)}</span>'


def _numbers(found) -> str:
    """Rank and score; where re-ranked also match and rank before -> after (its arrow tells up from down)."""
    score, before, after = f"<span>score {found.score:.3f}</span>", found.rank_before, found.rank_after
    if found.match is None:
        return f'<span class="zoo-numbers"><b>{after}</b>{score}</span>'
    kind, arrow = ("same", "=") if before == after else ("up", "▲") if after < before else ("down", "▼")
    return (
        f'<span class="zoo-numbers"><b>{after}</b><span>match {100 * found.match:.0f} %</span></span>'
        f'<span class="zoo-numbers"><span class="zoo-{kind}">{arrow} {before} → {after}</span>{score}</span>'
    )
