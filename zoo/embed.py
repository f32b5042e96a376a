"""`zoo embed`: vectors of pictures, sounds, graphs or texts, piece by piece into one Parquet file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from zoo import crew, inference
from zoo.data.folders import printable
from zoo.data.tables import TABLES, Table
from zoo.errors import UsageError, ZooError
from zoo.features import vectors
from zoo.pieces import Piece, Pieces, digest, stamp

TEXT_COLUMNS = ("text", "caption", "captions", "sentence")
PIECE = 256  # items that are finished together


@dataclass(frozen=True)
class Asked:
    """text: ITEMS are texts (of a text-image model). column: of texts in a table. layer: see zoo.features.vectors."""

    text: bool = False
    column: str | None = None
    layer: int | None = None
    batch_size: int = 64


@dataclass
class Result:
    """items written, their dim, and (item, reason) of those that could not be read."""

    items: int
    dim: int
    bad: list[tuple[str, str]]


def embed(model, items: list[str], out: Path, asked: Asked = Asked(), progress: Callable = lambda done: None) -> Result:
    """Writes `out`: item (string), vector (list of dim float32, unit length); the whole file or none.

    items: files, folders and tables of the model's modality, or SMILES; texts, .txt files with one text a line, or tables with a
    column of texts. Of a model at level "node": one row a node of each network. One batch is in memory at a time. What is
    finished is kept beside `out` till all is: the same call goes on there after a kill; several processes (torchrun) share it,
    each its pieces. UsageError where the model has no such items; ZooError where nothing can be written.
    """
    side = _side(model, asked)
    bad: list[tuple[str, str]] = []
    size = 1 if getattr(model, "level", None) == "node" else asked.batch_size
    length = max(PIECE // size, 1) * size
    facts = _facts(model, asked)
    about = [facts, side, asked.column, length, [(item, _stamp(item)) for item in items]]
    sources = _sources(model, items, side, asked.column, bad)
    with Pieces(out, facts).opened() as pieces, inference.evaluating(model):

        def finish() -> tuple[str, ...] | UsageError:
            files, done, todo = [], 0, 0
            while chunk := list(islice(sources, length)):
                files.append(pieces.file(len(files), digest(about, chunk)))
                if files[-1] not in pieces.finished:
                    if todo % crew.launched() == crew.number():
                        try:
                            pieces.put(files[-1], _piece(model, chunk, side, asked, size))
                        except UsageError as error:  # so will the others find
                            return error
                    todo += 1
                done += len(chunk)
                progress(done)
            return tuple(files)

        files = _agreed(out, crew.everyone(finish()))
        rows, dim, unread = crew.lead(lambda: pieces.join(files))
    return Result(rows, dim, unread + bad)


def _agreed(out: Path, found: list[tuple[str, ...] | UsageError]) -> tuple[str, ...]:
    for files in found:
        if isinstance(files, UsageError):
            raise files
    if len(set(found)) > 1:
        raise ZooError(f"{out}: the items changed while they were looked through; give the same command again")
    return found[0]


def _stamp(item: str) -> list:
    return stamp(Path(item)) if len(item) < 256 else []


def _piece(model, chunk: list, side: str, asked: Asked, size: int) -> Piece:
    piece = Piece([], [], [])
    for start in range(0, len(chunk), size):
        names, ready = _prepared(model, chunk[start : start + size], side, piece.bad)
        if ready:
            found = _vectors(model, ready, side, asked)
            if model.card.modality == "graph" and model.level == "node":
                names = [f"{name}:{i}" for name, graph in zip(names, ready) for i in range(len(graph.x_cat))]
            piece.names.extend(names)
            piece.vectors.append(found.numpy())
    return piece


def _side(model, asked: Asked) -> str:
    """What the items are: "text", or what the model is for."""
    card = model.card
    name = card.name or card.model
    if asked.text and card.modality not in ("text", "text_image"):
        raise UsageError(f"--text: {name}, a model of {card.modality}s, reads no texts")
    side = "text" if asked.text or card.modality == "text" else "image" if card.modality == "text_image" else card.modality
    if asked.column and side != "text":
        raise UsageError("--column names a column of texts; of a text-image model give --text with it")
    if getattr(model, "level", None) == "edge":
        raise UsageError(f"{name} scores links; it has no vectors of graphs or nodes")
    return side


def _sources(model, items: list[str], side: str, column: str | None, bad: list) -> Iterator[tuple[str, object]]:
    """(name, source) of everything that the items stand for; what cannot be opened goes to `bad`."""
    for item in items:
        try:
            yield from _open(model, item, side, column)
        except ZooError as error:
            bad.append((item, str(error).removeprefix(f"{item}: ")))


def _open(model, item: str, side: str, column: str | None) -> Iterator[tuple[str, object]]:
    if side == "text":
        return _texts(item, column)
    if side == "graph":
        from zoo.graph_answers import opened

        found = opened(model, item)
        return ((source if isinstance(source, str) else key, source) for key, source in zip(found.keys, found.sources))
    if side == "audio":
        from zoo.data.sounds import open_clips

        found = open_clips(item)
    else:
        from zoo.data.images import open_pictures

        found = open_pictures(item)
    named = [printable(str(source)) if isinstance(source, Path) else key for key, source in zip(found.keys, found.sources)]
    return zip(named, found.sources)


def _texts(item: str, column: str | None) -> Iterator[tuple[str, str]]:
    """The text itself; the lines of a .txt; the rows of a table, each its own name."""
    path = Path(item)
    suffix = path.suffix.lower()
    if suffix != ".txt" and suffix not in TABLES or len(item) > 255:
        return iter([(item, item)])
    if not path.is_file():
        raise ZooError(f"{item}: no such file")
    if suffix == ".txt":
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ZooError(f"{item}: not UTF-8 text (byte {error.start})") from error
        return ((line.strip(), line.strip()) for line in lines if line.strip())
    table = Table(path, (column,) if column else TEXT_COLUMNS)
    rows = table.column(table.need(*([column] if column else TEXT_COLUMNS)))
    return ((text, text) for row in rows for text in (row if isinstance(row, list) else [row]) if text)


def _prepared(model, chunk: list, side: str, bad: list) -> tuple[list[str], list]:
    """Names and model inputs of what can be read."""
    prepare = model.preprocess_text if side == "text" and model.card.modality == "text_image" else model.preprocess
    names, ready = [], []
    for name, source in chunk:
        try:
            ready.append(prepare(source))
            names.append(name)
        except ZooError as error:
            reason = str(error)
            for known in (name, "picture in memory", "sound in memory"):
                reason = reason.removeprefix(f"{known}: ")
            bad.append((name, reason))
    return names, ready


def _vectors(model, ready: list, side: str, asked: Asked) -> torch.Tensor:
    """(items dim), in order."""
    if side == "text" and model.card.modality == "text_image":
        return vectors(model, inference.text_inputs(model, ready), asked.layer, side).float().cpu()
    found: list = [None] * len(ready)
    for places, inputs in inference.batches(model, ready, asked.batch_size, prepare=lambda one: one):
        part = vectors(model, inputs, asked.layer).float().cpu()
        if side == "graph":
            return part
        for place, vector in zip(places, part):
            found[place] = vector
    return torch.stack(found)


def _facts(model, asked: Asked) -> dict:
    card = model.card
    return {"model": card.name or card.model, "sha256": card.sha256, "layer": asked.layer, "unit length": True}
