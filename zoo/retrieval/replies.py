"""What the demo page answers, as HTML by the name of the part it belongs in; the page itself is in page.py."""

import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePosixPath

from zoo.errors import ZooError
from zoo.retrieval import cards
from zoo.retrieval.heat import overlay, seen
from zoo.retrieval.names import Names

SHOWN, NAMED, RERANKED = 24, 10, 64
FOLDERS, EVERY = 200, "/"  # more are no longer a list to choose from; what stands for all of them, being no folder's name
# What one visitor looks at. found: (key, caption or None) of each card, names: the text of each name's row, shown: how many
START = {"query": None, "picture": None, "found": [], "names": [], "shown": SHOWN}
Shown = dict[str, object]  # name of a part -> what it shows now


class Replies:
    """The answers about one open index. languages: code -> label; explain(model, text, picture) -> [(word, heat)].

    Settings of the visitor, in this order everywhere: rerank, language, folder, where. An expected error becomes the
    status line, and the rest of the page stays as it is.
    """

    def __init__(self, index, names: Names | None, languages: dict[str, str], explain: Callable):
        self.index, self.names, self.languages, self.explain = index, names, languages, explain
        self._small = lru_cache(4096)(lambda key: cards.encoded(cards.thumbnail(index.source(key), key)))
        rows = index.store.rows().select(["key", "captions", "meta", "folder"]) if len(index) else None
        firsts = [captions[0] if captions else None for captions in rows["captions"].to_pylist()] if rows else []
        self.meta = dict(zip(firsts, rows["meta"].to_pylist())) if languages and rows else {}  # caption -> JSON
        folders = sorted(set(rows["folder"].to_pylist())) if rows else []
        self.folders = folders if 1 < len(folders) <= FOLDERS else []

    def ask(self, text: str, *settings) -> Shown:
        """A text was entered; none at all shows the first pictures again."""
        return {"picture": None, **self.answer(START | {"query": text.strip() or None}, *settings)}

    def ask_picture(self, file: str | None, *settings) -> Shown:
        """A picture was dropped, or taken away."""
        return {"query": "", **self.answer(START | {"picture": file}, *settings)}

    def more(self, state: dict, *settings) -> Shown:
        """Further results of the same question."""
        return self.answer(state | {"shown": state["shown"] + SHOWN}, *settings)

    def answer(self, state: dict, rerank: bool, language: str | None, folder: str | None, where: str | None) -> Shown:
        """The same question under other settings."""
        depth, condition = RERANKED if rerank else 0, narrowed(folder, where)
        query, picture, asked = state["query"], state["picture"], state["query"] or state["picture"]
        hits, names, start = [], [], time.perf_counter()
        if asked:
            given = {"image": picture} if query is None else {"query": query}
            hits = self.index.search(**given, k=state["shown"], rerank=depth, where=condition)
            names = self.names.rank(picture, NAMED, depth) if query is None and self.names else []
            found = [(hit.key, hit.caption) for hit in hits]
        else:
            found = [(row["key"], (row["captions"] or [None])[0]) for row in self.index.first(state["shown"], condition)]
        seconds = time.perf_counter() - start
        summary = self._summary(state, len(found), seconds, depth, condition)
        note = self.index.note()
        return {
            "state": state | {"found": found, "names": [name.text for name in names]},
            "status": cards.status(summary + (f"\n{note}" if note else "")),
            "detail": "",
            "named": cards.names([(self._translated(n.text, language), n) for n in names], language),
            "results": self._grid(found, hits, language, "Pictures" if names else ""),
            "further": len(found) == state["shown"] < len(self.index),
        }

    def open_card(self, state: dict, place: int, language: str | None) -> Shown:
        """Where the words of the query, or else of the picture's caption, looked in the chosen picture."""
        key, caption = state["found"][place]
        about = f"{self._name(key, caption, language)} · {key}"
        return self._open(state["query"] or caption, self.index.image(key), about)

    def open_name(self, state: dict, place: int) -> Shown:
        """Where the words of the chosen name looked in the dropped picture."""
        return self._open(state["names"][place], state["picture"], "your picture")

    def _open(self, text: str | None, picture, about: str) -> Shown:
        frame = seen(self.index.model, picture)
        if text is None or not hasattr(self.index.model, "match"):
            hint = f"{about} · search by text to see what its words look at"
            return {"detail": cards.detail("The picture", hint, frame, [])}
        heats = [(word, overlay(frame, heat)) for word, heat in self.explain(self.index.model, text, picture)]
        return {"detail": cards.detail(f"What each word of “{text}” looked at", about, frame, heats)}

    def _summary(self, state: dict, found: int, seconds: float, depth: int, condition: str | None) -> str:
        narrow = f" where {condition}" if condition else ""
        if not (state["query"] or state["picture"]):
            return f"The first {found} pictures{narrow}" if found else f"No picture{narrow}"
        what = "your picture" if state["query"] is None else f"“{state['query']}”"
        if not found:
            return f"No picture{narrow}"
        close = f", the first {min(depth, len(self.index))} re-ranked by cross-attention" if depth else ""
        return f"The best {found} of {len(self.index):,} pictures for {what}{narrow} in {1000 * seconds:.0f} ms{close}"

    def _grid(self, found: list, hits: list, language: str | None, heading: str) -> str:
        shown = zip(found, hits or [None] * len(found))
        return cards.grid([cards.picture_card(place, self._name(key, caption, language), cards.address(key), language, hit)
                           for place, ((key, caption), hit) in enumerate(shown)], heading)

    def thumbnail(self, key: str) -> tuple[bytes, str] | None:
        """A small copy of a picture of the index and its kind; None for what is none, or cannot be read any more."""
        try:
            return self._small(key)
        except ZooError:
            return None

    def _name(self, key: str, caption: str | None, language: str | None) -> str:
        return PurePosixPath(key).name if caption is None else self._translated(caption, language)

    def _translated(self, caption: str, language: str | None) -> str:
        meta = self.meta.get(caption)
        return json.loads(meta).get(language, caption) if meta else caption


def narrowed(folder: str | None, where: str | None) -> str | None:
    """The filter of a chosen folder and of what was typed; None where there is neither. folder: its name, or EVERY."""
    chosen = [] if folder in (None, EVERY) else ["folder = '" + folder.replace("'", "''") + "'"]
    typed = (where or "").strip()
    if chosen and typed:
        return f"{chosen[0]} and ({typed})"
    return typed or (chosen[0] if chosen else None)
