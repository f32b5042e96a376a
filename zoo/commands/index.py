"""index, search, demo: find pictures by text or by picture."""

import os
import sys
from pathlib import Path
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from zoo.commands.app import Flag, app, out
from zoo.errors import UsageError

index_app = cyclopts.App(name="index", help="Embed pictures once, to search them by text or picture.")
app.command(index_app)

DEFAULT_MODEL = "text_image_nano.openmoji"


@index_app.command
def build(
    index: Path, source: Path, *, model: str | None = None, rebuild: Flag = False, json: Flag = False
) -> int:
    """Embed the pictures of SOURCE (a folder or a table) into INDEX; unchanged ones are not embedded again.

    A new index takes text_image_nano.openmoji unless --model says otherwise; --rebuild starts it anew.
    """
    from zoo import retrieval, show

    if model is None and (rebuild or not index.exists()):
        model = DEFAULT_MODEL
    if not rebuild and index.exists():
        known = retrieval.open(index).manifest["source"]
        if known and Path(known) != Path(os.path.abspath(source.expanduser())):
            raise UsageError(f"{index} holds the pictures of {known}, not of {source}\n"
                             f"another index for those, or: zoo index build {index} {source} --rebuild")
    try:
        report = retrieval.build(index, source, model, progress=show.Progress("indexing"), rebuild=rebuild)
    except KeyboardInterrupt:
        print(f"\nstopped; what is done is kept: go on with zoo index build {index} {source}", file=sys.stderr)
        return 130
    facts = {"index": str(index), "added": report.added, "changed": report.changed, "unchanged": report.unchanged,
             "removed": report.removed, "bad": [{"item": key, "reason": why} for key, why in report.bad]}
    out(facts, json, lambda: show.lines({**facts, "bad": len(report.bad)}))
    for key, why in report.bad:
        print(f"bad     {key}: {why}", file=sys.stderr)
    return 1 if report.bad else 0


@index_app.command(name="info")
def index_info(index: Path, *, json: Flag = False) -> None:
    """What INDEX holds: pictures, model, sha256 of its weights."""
    from zoo import retrieval, show

    facts = retrieval.open(index).info()
    out(facts, json, lambda: show.lines(facts))


@app.command
def search(
    index: Path, text: str | None = None, *, image: Path | None = None, k: Annotated[int, Parameter(alias="-k")] = 10,
    rerank: int = 0, where: str | None = None, json: Flag = False,
) -> None:
    """Search INDEX by TEXT or by --image FILE; --rerank N orders the first N by cross-attention."""
    if (text is None) == (image is None):
        raise UsageError('search: give a text or --image FILE, e.g. zoo search photos.index "a dog on a beach"')
    from zoo import retrieval, show

    hits = retrieval.open(index).search(text, image=image, k=k, rerank=rerank, where=where)
    rows = show.hits(hits)
    out(rows, json, lambda: show.table([{key: row[key] for key in ("rank", "score", "match", "key")} for row in rows]))


@app.command
def demo(
    target: str | None = None, *, model: str = DEFAULT_MODEL, port: int | None = None, browser: bool = True
) -> None:
    """Search page on this machine: the OpenMoji gallery, or TARGET (a folder of pictures or an index)."""
    from zoo.retrieval import app as page

    page.serve(target, model=model, port=port, open_browser=browser)
