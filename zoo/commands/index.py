"""index, search, demo: find pictures by text or by picture."""

import os
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from zoo import crew
from zoo.commands.app import Flag, app, carried, out
from zoo.errors import UsageError, ZooError

index_app = cyclopts.App(name="index", help="Embed pictures once, to search them by text or picture.")
app.command(index_app)

DEFAULT_MODEL = "text_image_nano.openmoji"
SHOWN = 30  # problems that verify prints


@index_app.command
def build(
    index: str, source: Path, *, model: str | None = None, store: str | None = None, rebuild: Flag = False, json: Flag = False
) -> int:
    """Embed the pictures of SOURCE (a folder or a table) into INDEX; unchanged ones are not embedded again.

    INDEX is a folder, or the address of one in object storage (s3://bucket/photos.index). A new one takes
    text_image_nano.openmoji unless --model says otherwise. --store numpy, lance or a Milvus server (http://host:19530);
    a new index takes lance from 20,000 pictures on, and an old one moves to what is named. --rebuild embeds all anew;
    the old rows answer until that is done.
    """
    from zoo import retrieval
    from zoo.retrieval.manifest import MANIFEST
    from zoo.retrieval.place import place

    exists = place(index).has(MANIFEST)
    if model is None and (rebuild or not exists):
        model = DEFAULT_MODEL
    if not rebuild and exists:
        known = retrieval.open(index).manifest["source"]
        if known and Path(known) != Path(os.path.abspath(source.expanduser())):
            beside = f"beside them: zoo index add {index} {source}"
            raise UsageError(f"{index} holds the pictures of {known}, not of {source}\n"
                             f"{beside}; instead of them: zoo index build {index} {source} --rebuild")
    options = {"--model": None if exists and not rebuild else model, "--store": store}
    said = "".join(f" {flag} {value}" for flag, value in options.items() if value) + (" --rebuild" if rebuild else "")
    again = f"zoo index build {index} {source}{said}"
    progress = _progress("indexing")
    return _told(index, again, json, lambda: retrieval.build(index, source, model, progress, rebuild=rebuild, store=store))


@index_app.command
def update(index: str, *, model: str | None = None, json: Flag = False) -> int:
    """Look at every source of INDEX again: new pictures come in, changed ones are embedded, vanished ones leave."""
    from zoo import retrieval

    progress = _progress("indexing")
    return _told(index, f"zoo index update {index}", json, lambda: retrieval.update(index, model, progress))


@index_app.command
def add(index: str, *sources: Path, model: str | None = None, json: Flag = False) -> int:
    """Add pictures, folders or tables to INDEX; `zoo index update` looks at them too from then on."""
    from zoo import retrieval

    if not sources:
        raise UsageError(f"index add: name a picture, folder or table, e.g. zoo index add {index} ~/holiday")

    def run():
        total = retrieval.Report()
        for source in sources:
            total += retrieval.add(index, source, model, _progress(f"indexing {source}"))
        return total

    return _told(index, f"zoo index update {index}", json, run)


@index_app.command
def remove(index: str, *keys: str, where: str | None = None, json: Flag = False) -> None:
    """Take pictures out of INDEX, by key, folder, added source or --where; their files stay. `zoo index add` brings them back."""
    from zoo import retrieval

    if not keys and where is None:
        raise UsageError(f"index remove: name keys or give --where, e.g. zoo index remove {index} beach/1.jpg")
    gone = retrieval.remove(index, keys, where)
    out({"index": index, "removed": gone}, json, lambda: "\n".join([*(f"removed {key}" for key in gone), f"{len(gone)} removed"]))


@index_app.command
def verify(index: str, *, contents: Flag = False, json: Flag = False) -> int:
    """Check INDEX: rows against files, weights, counts, doubled rows, damage; each problem with the command that mends it.

    --contents reads every picture and compares its sha256; else size and time are believed.
    """
    from zoo import retrieval, show

    problems = retrieval.verify(index, contents)
    sound = f"{index}: sound, {len(retrieval.open(index))} pictures" if not problems else ""
    more = f"\n... and {len(problems) - SHOWN} more; all of them: --json" if len(problems) > SHOWN else ""
    out({"index": index, "problems": problems}, json, lambda: show.table(problems[:SHOWN]) + more if problems else sound)
    return 1 if problems else 0


@index_app.command(name="info")
def index_info(index: str, *, json: Flag = False) -> None:
    """What INDEX holds: pictures, model, sha256 of its weights, its store."""
    from zoo import retrieval, show

    facts = retrieval.open(index).info()
    out(facts, json, lambda: show.lines(facts))


def _progress(what: str):
    """Of the first process: the others are as far."""
    from zoo import show

    return show.Progress(what) if crew.first() else None


def _told(index: str, again: str, json: bool, run) -> int:
    """Runs what embeds pictures, and says, once, what it did; the exit code tells of bad ones."""
    from zoo import show

    kept = f"finished batches are kept: go on with {again}" + (" (under torchrun or not)" if crew.launched() > 1 else "")
    report, stopped = carried(run, lambda: kept)
    if stopped or not crew.first():
        return stopped or 0
    facts = {"index": index, "added": report.added, "changed": report.changed, "unchanged": report.unchanged,
             "removed": report.removed, "bad": [{"item": key, "reason": why} for key, why in report.bad]}
    out(facts, json, lambda: show.lines({**facts, "bad": len(report.bad)}))
    for key, why in report.bad:
        print(f"bad     {key}: {why}", file=sys.stderr)
    return 1 if report.bad else 0


@app.command
def search(
    index: str, text: str | None = None, *, image: Path | None = None, k: Annotated[int, Parameter(alias="-k")] = 10,
    rerank: int = 0, where: str | None = None, json: Flag = False,
) -> None:
    """Search INDEX by TEXT or by --image FILE; --rerank N orders the first N by cross-attention."""
    if (text is None) == (image is None) or text is not None and not text.strip():
        raise UsageError('search: give a text or --image FILE, one of them, e.g. zoo search photos.index "a dog on a beach"')
    if where is not None and not where.strip():
        raise UsageError("search: --where is empty; leave it out, or write it like: folder = 'beach' and year > 2019")
    if rerank and image:
        raise UsageError("search: --rerank reads the query's words; leave it out with --image")
    from zoo import retrieval, show

    if image is not None and not image.expanduser().is_file():
        raise ZooError(f"{image}: no such file")
    opened = retrieval.open(index)
    note = opened.note()
    if note:
        print(f"note: {note}", file=sys.stderr)
    hits = opened.search(text, image=image, k=k, rerank=rerank, where=where)
    rows = show.hits(hits)
    if not rows:
        print(f"no picture{f' matches --where {where!r}' if where else ''} ({len(opened):,} in the index)", file=sys.stderr)
    if rows or json:
        out(rows, json, lambda: show.table([{key: row[key] for key in ("rank", "score", "match", "key")} for row in rows]))


@app.command
def demo(
    target: str | None = None, *, model: str = DEFAULT_MODEL, port: int | None = None, browser: bool = True,
    host: str = "127.0.0.1",
) -> None:
    """Search page on this machine: the OpenMoji gallery, or TARGET (a folder of pictures or an index).

    --host ADDRESS serves it on a network too (0.0.0.0: on all of them): whoever reaches it can see the indexed pictures.
    """
    from zoo.retrieval import app as page

    page.serve(target, model=model, port=port, open_browser=browser, host=host)
