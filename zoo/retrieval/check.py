"""`zoo index verify`: is the index what it says it is? Each problem comes with the command that mends it."""

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator

import numpy as np

from zoo import checkpoint
from zoo.errors import ZooError
from zoo.retrieval.index import Index
from zoo.retrieval.manifest import NEXT
from zoo.retrieval.parts import parts
from zoo.retrieval.store import matrix

GONE = "a source is gone"
OFF = 1e-3  # how far from 1 the length of a vector may be


def verify(path, contents: bool = False) -> list[dict]:
    """Problems as {"what", "item", "mend"}, empty for a sound index. Nothing is changed, no model is loaded.

    Looks at the weights (sha256), the store's files, vectors and keys, and at each picture's file: size and time,
    and with `contents` also its sha256. Raises ZooError where there is no index.
    """
    return list(_problems(Index(path), contents))


def _problems(index: Index, contents: bool) -> Iterator[dict]:
    name = shlex.quote(str(index.path))
    update = f"zoo index update {name}"
    rebuild = f"zoo index build {name} {shlex.quote(index.manifest['source'] or 'SOURCE')} --rebuild"
    yield from _weights(index, rebuild)
    writer = index.place.writer()
    if writer is not None:
        yield _problem("being written", writer, f"wait, then: zoo index verify {name}")
    elif index.manifest["doing"] is not None:
        yield _problem("interrupted", index.manifest["doing"], update)
    elif index.place.has(NEXT):
        yield _problem("interrupted", "rebuild", rebuild)
    for file, reason in index.store.ignored:
        yield _problem(f"not counted: {reason}", file, update)
    try:
        rows, found = index.store.rows().to_pylist(), index.store.rows(["key", "vector"])
    except ZooError as error:
        yield _problem("the rows cannot be read", str(error), rebuild)
        return
    yield from _vectors(found, index.manifest["dim"], rebuild)
    if len(rows) != len(index):
        yield _problem("rows and count differ", f"{len(rows)} and {len(index)}", rebuild)
    sources = list(_sources(index, rows, update))
    yield from sources
    if any(problem["what"] == GONE for problem in sources):
        return  # said once, not again for every picture of it
    for row in rows:
        reason = _difference(index, row, contents)
        if reason:
            yield _problem(reason, row["key"], update)


def _problem(what: str, item: str, mend: str) -> dict:
    return {"what": what, "item": item, "mend": mend}


def _weights(index: Index, rebuild: str) -> Iterator[dict]:
    """The file of the model, where there is one, against the sha256 in the manifest."""
    wanted, load = index.manifest["sha256"], index.manifest["load"]
    try:
        file = checkpoint.locate(load)
    except ZooError as error:
        yield _problem("its model is not here", str(load), f"put it back ({str(error).splitlines()[0]})")
        return
    found = checkpoint.sha256(file)
    if found != wanted:
        yield _problem(f"other weights: sha256 {found[:12]}, the index has {wanted[:12]}", str(file), rebuild)


def _vectors(found, dim: int, rebuild: str) -> Iterator[dict]:
    keys = found["key"].to_pylist()
    for key, count in Counter(keys).items():
        if count > 1:
            yield _problem(f"{count} rows of one key", key, rebuild)
    lengths = np.linalg.norm(matrix(found, dim), axis=1) if keys else np.zeros(0)
    for place in np.flatnonzero(~(np.abs(lengths - 1) < OFF)):  # NaN too
        yield _problem(f"vector of length {lengths[place]:.3g}", keys[place], rebuild)


def _sources(index: Index, rows: list[dict], update: str) -> Iterator[dict]:
    """Pictures that are there and not in the index."""
    try:
        there = [key for part in parts(index.manifest) for key in part.items.keys]
    except ZooError as error:
        yield _problem(GONE, str(error).splitlines()[0], "put it back, or build the index of another folder")
        return
    known = {row["key"] for row in rows} | {key for key, _ in index.manifest["unreadable"]}
    for key in there:
        if key not in known:
            yield _problem("not in the index", key, update)


def _difference(index: Index, row: dict, contents: bool) -> str | None:
    file = index.file(row)
    if file is None:
        data = index.store.blob(row["key"]) if row["held"] else None
        return "the bytes kept of it differ" if data is not None and _hash(data) != row["sha256"] else None
    try:
        status = os.stat(file)
        if contents or (status.st_size, status.st_mtime_ns) != (row["size"], row["mtime"]):
            with open(file, "rb") as stream:
                same = hashlib.file_digest(stream, "sha256").hexdigest() == row["sha256"]
            return None if same else "the file has changed"
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
