"""The `zoo` command. Results on stdout, progress on stderr; exit 0 done, 1 failed, 2 wrong usage or recipe, 130/143 stopped."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

import zoo
from zoo.errors import UsageError, ZooError

app = cyclopts.App(name="zoo", help=__doc__.split(".")[0] + ": models, recipes and search.", version=zoo.__version__)
index_app = cyclopts.App(name="index", help="Embed pictures once, to search them by text or picture.")
app.command(index_app)

DEFAULT_MODEL = "text_image_nano.openmoji"
Json = Annotated[bool, Parameter(negative=())]
Flag = Annotated[bool, Parameter(negative=())]


@app.command(name="list")
def list_(pattern: str = "*", *, json: Json = False) -> None:
    """Models and checkpoints whose name matches the wildcard PATTERN."""
    from zoo import show

    rows = show.models(pattern)
    if not rows:
        raise ZooError(f"no model matches {pattern!r}; all of them: zoo list")
    _out(rows, json, lambda: show.table(rows))


@app.command
def info(model: str, *, json: Json = False) -> None:
    """What a model (registry name, checkpoint name, file or run folder) is: reads the header only."""
    from zoo import show

    facts = show.info(model)
    _out(facts, json, lambda: show.lines(facts))


@app.command
def recipes(name: str | None = None, *, keys: Flag = False, json: Json = False) -> None:
    """Shipped recipes; with NAME the recipe itself (zoo recipes image_finetune > mine.yaml); --keys: every key."""
    from zoo import show
    from zoo.train import recipe

    if keys:
        rows = [dict(zip(("key", "default", "meaning"), row)) for row in recipe.keys()]
        _out(rows, json, lambda: show.table(rows))
    elif name:
        print(recipe.find(name).read_text(encoding="utf-8"), end="")
    else:
        rows = [{"recipe": name, "what": file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")}
                for name, file in recipe.shipped().items()]
        _out(rows, json, lambda: show.table(rows))


@app.command
def train(
    recipe: str | None = None, /, *, runs: Path = Path("runs"), resume: Path | None = None, dry_run: Flag = False,
    skip_bad: Flag = False, **keys: Any,
) -> int:
    """Train by RECIPE (a file or a shipped name) into a new folder below RUNS.

    Any key of the recipe can be given as a flag: --data DIR --epochs 5 --lr 1e-3 (all of them: zoo recipes --keys).
    --resume RUN continues exactly where a run stopped. --dry-run shows device, data, what would be loaded, one step.
    """
    if (recipe is None) == (resume is None):
        raise UsageError("train: give a recipe (zoo recipes), or --resume RUN")
    from zoo.train import recipe as recipes
    from zoo.train import run

    overrides = {name.replace("-", "_"): value for name, value in keys.items()}
    if resume:
        if overrides:
            raise UsageError(f"train: --resume takes the recipe of the run as it is; drop --{', --'.join(overrides)}")
        settings = run.load_recipe(resume)
    else:
        settings = recipes.read(recipe, overrides)
    if dry_run:
        return run.dry_run(settings, skip_bad)
    result = run.train(settings, runs, skip_bad, resume)
    print(result.folder)
    return 128 + result.stopped if result.stopped else 0


@app.command(name="eval")
def eval_(
    model: str, data: Path, *, split: str | None = None, captions: str = "", skip_bad: Flag = False,
    save_score: Flag = False, json: Json = False,
) -> None:
    """Score of MODEL on DATA (accuracy, or recall in both directions); SPLIT where the data has splits.

    --save-score writes the score into the card of the checkpoint.
    """
    from zoo import evaluate, show

    result = evaluate.evaluate(zoo.load(model), data, split, [c for c in captions.split(",") if c], skip_bad)
    if save_score:
        evaluate.save_scores(model, result)
    _out(result, json, lambda: show.lines(result))


@app.command
def predict(model: str, items: Annotated[list[Path], Parameter(negative=())], /, *, json: Json = False) -> int:
    """Labels for ITEMS: pictures, or folders of them. A file that cannot be read is reported and makes the exit code 1."""
    from zoo import evaluate

    good, bad = evaluate.predict_paths(zoo.load(model), items)
    if json:
        print(_dumps({"results": good, "bad": [{"item": item, "reason": why} for item, why in bad]}))
    else:
        for row in good:
            print(f"{row['item']}  {row['label']}  {row['probability']:.3f}")
    for item, why in bad:
        print(f"bad     {item}: {why}", file=sys.stderr)
    return 1 if bad else 0


@index_app.command
def build(
    index: Path, source: Path, *, model: str | None = None, rebuild: Flag = False, json: Json = False
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
    _out(facts, json, lambda: show.lines({**facts, "bad": len(report.bad)}))
    for key, why in report.bad:
        print(f"bad     {key}: {why}", file=sys.stderr)
    return 1 if report.bad else 0


@index_app.command(name="info")
def index_info(index: Path, *, json: Json = False) -> None:
    """What INDEX holds: pictures, model, sha256 of its weights."""
    from zoo import retrieval, show

    facts = retrieval.open(index).info()
    _out(facts, json, lambda: show.lines(facts))


@app.command
def search(
    index: Path, text: str | None = None, *, image: Path | None = None, k: Annotated[int, Parameter(alias="-k")] = 10,
    rerank: int = 0, where: str | None = None, json: Json = False,
) -> None:
    """Search INDEX by TEXT or by --image FILE; --rerank N orders the first N by cross-attention."""
    if (text is None) == (image is None):
        raise UsageError('search: give a text or --image FILE, e.g. zoo search photos.index "a dog on a beach"')
    from zoo import retrieval, show

    hits = retrieval.open(index).search(text, image=image, k=k, rerank=rerank, where=where)
    rows = show.hits(hits)
    _out(rows, json, lambda: show.table([{key: row[key] for key in ("rank", "score", "match", "key")} for row in rows]))


@app.command
def demo(
    target: str | None = None, *, model: str = DEFAULT_MODEL, port: int | None = None, browser: bool = True
) -> None:
    """Search page on this machine: the OpenMoji gallery, or TARGET (a folder of pictures or an index)."""
    from zoo.retrieval import app as page

    page.serve(target, model=model, port=port, open_browser=browser)


@app.command
def check(*, json: Json = False) -> int:
    """Versions, device, checksums and licences of what is installed."""
    from zoo import show

    rows, fine = show.check()
    _out(rows, json, lambda: show.table(rows))
    return 0 if fine else 1


def _out(value, as_json: bool, text) -> None:
    print(_dumps(value) if as_json else text())


def _dumps(value) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    try:
        text.encode()
        return text
    except UnicodeEncodeError:  # a file name that is no UTF-8
        return json.dumps(value, indent=2, default=str)


def main(tokens: list[str] | None = None) -> int:
    """Runs one command; returns the exit code. Expected errors are one or two lines on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name still gets its line
    try:
        result = app(tokens, exit_on_error=False, print_error=True, result_action="return_value")
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except cyclopts.CycloptsError:
        return 2
    except ZooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except BrokenPipeError:  # the reader of the pipe has left: `zoo list | head`
        sys.stderr.close()
        return 1
    except OSError as error:  # not writable, disk full, output closed
        print(f"error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def entry() -> None:
    """The installed command: expected warnings are one line, not Python's two."""
    warnings.formatwarning = lambda message, *_rest, **_more: f"note: {message}\n"
    sys.exit(main())
