"""The demo page: its parts, and which use of which part asks for what."""

from collections.abc import Callable
from functools import wraps

import gradio as gr

from zoo.errors import ZooError
from zoo.retrieval import cards
from zoo.retrieval.names import Names
from zoo.retrieval.replies import EVERY, RERANKED, START, Replies
from zoo.retrieval.style import CLICKS, GONE, KEYS, SHOW_DETAIL, SHOW_RESULTS


def demo(
    index,
    names: Names | None = None,
    examples: tuple[str, ...] = (),
    languages: dict[str, str] | None = None,
    explain: Callable | None = None,
) -> "Page":
    """The page for an open index.

    names: what a dropped picture may be called. examples: queries to click on. languages: code -> label of
    the names in the pictures' metadata. explain(model, text, picture) -> [(word, heat)]: `zoo.explain`.
    """
    return Page(Replies(index, names, languages or {}, explain or _explain), list(examples))


def _explain(model, text: str, picture) -> list:
    import zoo

    return zoo.explain(model, text, picture)


class Picture(gr.Image):
    """The visitor's file as it is: `load_image` reads more kinds of picture, and says what is wrong."""

    is_template = True  # gradio: looks like its parent

    def preprocess(self, payload):
        return payload and payload.path


class Page:
    """blocks: the page for gradio. thumbnail(key) -> (bytes, kind) or None: what its pictures are asked for."""

    def __init__(self, replies: Replies, examples: list[str]):
        self.replies, self.examples, self.thumbnail = replies, examples, replies.thumbnail
        with gr.Blocks(title="zoo demo", analytics_enabled=False, delete_cache=(3600, 3600)) as self.blocks:
            self.lay_out()
            self.connect()

    def lay_out(self) -> None:
        """Controls at the left, answers at the right; below each other where it is narrow."""
        index = self.replies.index
        self.state = gr.State(START)
        model = cards.esc(index.manifest["model"])
        about = f"{len(index):,} pictures, searched by {model} on this machine"
        gr.HTML(f"<h1>zoo demo</h1><p>{about}</p>", elem_id="zoo-title")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=280, elem_classes="zoo-side"):
                self._questions()
                self._settings()
            with gr.Column(scale=3, min_width=300):
                self.status, self.detail, self.named, self.results = (
                    gr.HTML(js_on_load=CLICKS + GONE, apply_default_css=False, elem_id=f"zoo-{part}")
                    for part in ("status", "detail", "names", "results")
                )
                self.further = gr.Button("Show more", visible=False, elem_id="zoo-more")

    def _questions(self) -> None:
        reads = hasattr(self.replies.index.model, "embed_text")
        self.query = gr.Textbox(
            label="Search by text", placeholder="what is in the picture?", max_lines=1,
            max_length=1000, submit_btn=True, autofocus=True, visible=reads, elem_id="zoo-query",
        )  # fmt: skip
        self.chips = gr.HTML(
            cards.chips(self.examples), visible=reads and bool(self.examples),
            js_on_load=CLICKS, apply_default_css=False, elem_id="zoo-examples",
        )  # fmt: skip
        self.picture = Picture(
            label="or by picture" if reads else "Search by picture",
            type="filepath", sources=["upload", "clipboard"], height=190, buttons=[], elem_id="zoo-picture",
        )  # fmt: skip

    def _settings(self) -> None:
        replies = self.replies
        self.rerank = gr.Checkbox(
            label="Re-rank by cross-attention", info=f"looks closely at each of the first {RERANKED}",
            visible=hasattr(replies.index.model, "match"), elem_id="zoo-rerank",
        )  # fmt: skip
        self.folder = gr.Dropdown(
            [("all folders", EVERY), *((folder or "(top folder)", folder) for folder in replies.folders)], value=EVERY,
            label="Folder", visible=bool(replies.folders), elem_id="zoo-folder",
        )  # fmt: skip
        self.where = gr.Textbox(
            label="Filter", placeholder="width > 600 and year = 2019", max_lines=1, max_length=1000, elem_id="zoo-where",
        )  # fmt: skip
        self.language = gr.Dropdown(
            [(label, code) for code, label in replies.languages.items()], label="Names in",
            visible=bool(replies.languages), elem_id="zoo-language",
        )  # fmt: skip

    def connect(self) -> None:
        """Which use of which part asks for what; one at a time: models need not be safe for threads."""
        replies, settings = self.replies, [self.rerank, self.language, self.folder, self.where]
        shown = [self.status, self.state, self.detail, self.named, self.results, self.further]
        common = {"concurrency_id": "model", "concurrency_limit": 1, "show_progress": "hidden"}
        common["api_visibility"] = "private"

        def ask_example(event: gr.EventData, *chosen):
            return {"query": self.examples[event.place], **replies.ask(self.examples[event.place], *chosen)}

        asked = [
            self.query.submit(self._told(replies.ask), [self.query, *settings], [*shown, self.picture], **common),
            self.chips.click(self._told(ask_example), settings, [*shown, self.query, self.picture], **common),
            self.picture.input(self._told(replies.ask_picture), [self.picture, *settings], [*shown, self.query], **common),
        ]
        for event in asked:
            event.then(js=SHOW_RESULTS)
        changes = [self.blocks.load, self.rerank.input, self.language.input, self.folder.input, self.where.submit]
        gr.on(changes, self._told(replies.answer), [self.state, *settings], shown, **common)
        self.further.click(self._told(replies.more), [self.state, *settings], shown, **common)
        self.blocks.load(js=KEYS)
        opened = [self.status, self.detail]

        def open_card(state, language, event: gr.EventData):
            return replies.open_card(state, event.place, language)

        def open_name(state, event: gr.EventData):
            return replies.open_name(state, event.place)

        self.results.click(self._told(open_card), [self.state, self.language], opened, **common).then(js=SHOW_DETAIL)
        self.named.click(self._told(open_name), self.state, opened, **common).then(js=SHOW_DETAIL)
        self.detail.click(lambda: "", None, self.detail, **common)

    def _told(self, reply: Callable) -> Callable:
        """Puts the parts of a reply in their places; an expected error is said in the status line."""

        @wraps(reply)
        def call(*arguments):
            try:
                parts = reply(*arguments)
            except ZooError as error:
                parts = {"status": cards.status(str(error), error=True)}
            if "further" in parts:
                parts["further"] = gr.Button(visible=parts["further"])
            return {getattr(self, name): value for name, value in parts.items()}

        return call
