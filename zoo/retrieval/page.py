"""The demo page: its parts, and what happens when they are used."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, wraps
from pathlib import PurePosixPath

import gradio as gr

from zoo.errors import ZooError
from zoo.retrieval import cards
from zoo.retrieval.heat import overlay, seen
from zoo.retrieval.names import Names
from zoo.retrieval.style import CLICKS, SHOW_DETAIL, SHOW_RESULTS

SHOWN, NAMED, RERANKED = 24, 10, 64
# What one visitor looks at. found: (key, caption or None) of each card, names: the text of each name's row
START = {"query": None, "picture": None, "found": [], "names": []}


def demo(
    index,
    names: Names | None = None,
    examples: tuple[str, ...] = (),
    languages: dict[str, str] | None = None,
    explain: Callable | None = None,
) -> gr.Blocks:
    """The page for an open index.

    names: what a dropped picture may be called. examples: queries to click on. languages: code -> label of
    the names in the pictures' metadata. explain(model, text, picture) -> [(word, heat)]: `zoo.explain`.
    """
    page = _Page(index, names, languages or {}, explain or _explain)
    with gr.Blocks(title="zoo demo", analytics_enabled=False, delete_cache=(3600, 3600)) as blocks:
        page.lay_out(list(examples))
        page.connect(blocks, list(examples))
    return blocks


def _explain(model, text: str, picture) -> list:
    import zoo

    return zoo.explain(model, text, picture)


class Picture(gr.Image):
    """The visitor's file as it is: `load_image` reads more kinds of picture, and says what is wrong."""

    is_template = True  # gradio: looks like its parent

    def preprocess(self, payload):
        return payload and payload.path


def _told(method):
    """An expected error becomes the status line, and the rest of the page stays as it is."""

    @wraps(method)
    def call(self, *arguments):
        try:
            return method(self, *arguments)
        except ZooError as error:
            return {self.status: cards.status(str(error), error=True)}

    return call


class _Page:
    def __init__(self, index, names: Names | None, languages: dict[str, str], explain: Callable):
        self.index, self.names, self.languages, self.explain = index, names, languages, explain
        self.thumbnail = lru_cache(4096)(self._thumbnail)
        rows = index.store.rows()
        firsts = [captions[0] if captions else None for captions in rows["captions"].to_pylist()]
        self.meta = dict(zip(firsts, rows["meta"].to_pylist())) if languages else {}  # caption -> JSON
        self.first = list(zip(rows["key"].to_pylist()[:SHOWN], firsts))

    def lay_out(self, examples: list[str]) -> None:
        """Controls at the left, answers at the right; below each other where it is narrow."""
        self.state = gr.State(START)
        model = cards.esc(self.index.manifest["model"])
        about = f"{len(self.index):,} pictures, searched by {model} on this machine"
        gr.HTML(f"<h1>zoo demo</h1><p>{about}</p>", elem_id="zoo-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=280, elem_classes="zoo-side"):
                self._controls(examples)
            with gr.Column(scale=3, min_width=300):
                self.status, self.detail, self.named, self.results = (
                    gr.HTML(js_on_load=CLICKS, apply_default_css=False, elem_id=f"zoo-{part}")
                    for part in ("status", "detail", "names", "results")
                )

    def _controls(self, examples: list[str]) -> None:
        reads, matches = (hasattr(self.index.model, name) for name in ("embed_text", "match"))
        self.query = gr.Textbox(
            label="Search by text", placeholder="what is in the picture?", max_lines=1,
            max_length=1000, submit_btn=True, autofocus=True, visible=reads, elem_id="zoo-query",
        )  # fmt: skip
        self.chips = gr.HTML(
            cards.chips(examples), visible=reads and bool(examples),
            js_on_load=CLICKS, apply_default_css=False, elem_id="zoo-examples",
        )  # fmt: skip
        self.picture = Picture(
            label="or by picture" if reads else "Search by picture",
            type="filepath", sources=["upload", "clipboard"], height=190, buttons=[], elem_id="zoo-picture",
        )  # fmt: skip
        self.rerank = gr.Checkbox(
            label="Re-rank by cross-attention", info=f"looks closely at each of the first {RERANKED}",
            visible=matches, elem_id="zoo-rerank",
        )  # fmt: skip
        self.language = gr.Dropdown(
            [(label, code) for code, label in self.languages.items()], label="Names in",
            visible=bool(self.languages), elem_id="zoo-language",
        )  # fmt: skip

    def connect(self, blocks: gr.Blocks, examples: list[str]) -> None:
        """Which use of which part calls which method; one at a time: models need not be safe for threads."""
        settings = [self.rerank, self.language]
        shown = [self.status, self.state, self.detail, self.named, self.results]
        common = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
        common["api_visibility"] = "private"

        def ask_example(event: gr.EventData, rerank, language):
            return {self.query: examples[event.place], **self.ask(examples[event.place], rerank, language)}

        asked = [
            self.query.submit(self.ask, [self.query, *settings], [*shown, self.picture], **common),
            self.chips.click(ask_example, settings, [*shown, self.query, self.picture], **common),
            self.picture.input(self.ask_picture, [self.picture, *settings], [*shown, self.query], **common),
        ]
        for event in asked:
            event.then(js=SHOW_RESULTS)
        changes = [blocks.load, self.rerank.input, self.language.input]
        gr.on(changes, self.answer, [self.state, *settings], shown, **common)
        opened = [self.status, self.detail]
        self.results.click(self.open_card, [self.state, self.language], opened, **common).then(js=SHOW_DETAIL)
        self.named.click(self.open_name, self.state, opened, **common).then(js=SHOW_DETAIL)
        self.detail.click(lambda: "", None, self.detail, **common)

    @_told
    def ask(self, text: str, rerank: bool, language: str | None) -> dict:
        """A text was entered; none at all shows the first pictures again."""
        state = START | {"query": text.strip() or None}
        return {self.picture: None, **self._answer(state, rerank, language)}

    @_told
    def ask_picture(self, file: str | None, rerank: bool, language: str | None) -> dict:
        """A picture was dropped, or taken away."""
        return {self.query: "", **self._answer(START | {"picture": file}, rerank, language)}

    @_told
    def answer(self, state: dict, rerank: bool, language: str | None) -> dict:
        """The same question under other settings."""
        return self._answer(state, rerank, language)

    @_told
    def open_card(self, state: dict, language: str | None, event: gr.EventData) -> dict:
        """Where the words of the query, or else of the picture's caption, looked in the chosen picture."""
        key, caption = state["found"][event.place]
        about = f"{self._name(key, caption, language)} · {key}"
        return self._open(state["query"] or caption, self.index.image(key), about)

    @_told
    def open_name(self, state: dict, event: gr.EventData) -> dict:
        """Where the words of the chosen name looked in the dropped picture."""
        return self._open(state["names"][event.place], state["picture"], "your picture")

    def _open(self, text: str | None, picture, about: str) -> dict:
        frame = seen(self.index.model, picture)
        if text is None or not hasattr(self.index.model, "match"):
            hint = f"{about} · search by text to see what its words look at"
            return {self.detail: cards.detail("The picture", hint, frame, [])}
        heats = [(word, overlay(frame, heat)) for word, heat in self.explain(self.index.model, text, picture)]
        return {self.detail: cards.detail(f"What each word of “{text}” looked at", about, frame, heats)}

    def _answer(self, state: dict, rerank: bool, language: str | None) -> dict:
        query, picture, depth = state["query"], state["picture"], RERANKED if rerank else 0
        hits, names, start = [], [], time.perf_counter()
        if query is not None:
            hits = self.index.search(query, k=SHOWN, rerank=depth)
        elif picture is not None:
            hits = self.index.search(image=picture, k=SHOWN, rerank=depth)
            names = self.names.rank(picture, NAMED, depth) if self.names else []
        seconds = time.perf_counter() - start
        asked = query is not None or picture is not None
        found = [(hit.key, hit.caption) for hit in hits] if asked else self.first
        summary = self._summary(query, found, seconds, depth) if asked else f"The first {len(found)} pictures"
        return {
            self.state: state | {"found": found, "names": [name.text for name in names]},
            self.status: cards.status(summary),
            self.detail: "",
            self.named: cards.names([(self._translated(n.text, language), n) for n in names], language),
            self.results: self._grid(found, hits, language, "Pictures" if names else ""),
        }

    def _summary(self, query: str | None, found: list, seconds: float, depth: int) -> str:
        what = "your picture" if query is None else f"“{query}”"
        close = f", the first {min(depth, len(self.index))} re-ranked by cross-attention" if depth else ""
        best = f"The best {len(found)} of {len(self.index):,} pictures for {what}"
        return f"{best} in {1000 * seconds:.0f} ms{close}"

    def _grid(self, found: list, hits: list, language: str | None, heading: str) -> str:
        with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
            pictures = list(pool.map(self._thumbnail_or_none, [key for key, _ in found]))
        names = [self._name(key, caption, language) for key, caption in found]
        rows = enumerate(zip(names, pictures, hits or [None] * len(found)))
        return cards.grid(
            [cards.picture_card(i, name, uri, language, hit) for i, (name, uri, hit) in rows], heading
        )

    def _thumbnail(self, key: str) -> str:
        return cards.thumbnail(self.index.source(key), key)

    def _thumbnail_or_none(self, key: str) -> str | None:
        """None where a picture has gone since it was indexed: its card says so, and a click tells why."""
        try:
            return self.thumbnail(key)
        except ZooError:
            return None

    def _name(self, key: str, caption: str | None, language: str | None) -> str:
        return PurePosixPath(key).name if caption is None else self._translated(caption, language)

    def _translated(self, caption: str, language: str | None) -> str:
        meta = self.meta.get(caption)
        return json.loads(meta).get(language, caption) if meta else caption
