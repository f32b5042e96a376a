"""predict, embed, explain: what a trained model says about files, their vectors, and what it looked at."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import zoo
from zoo.commands.app import Flag, app, carried, dumps, need_files, out, refuse_empty
from zoo.errors import UsageError


@app.command
def predict(
    model: str, /, *items: str, frames: Flag = False, threshold: float = 0.5,
    window: float | None = None, output: Annotated[Path | None, Parameter(name="--out")] = None, json: Flag = False,
) -> int:
    """Answers for ITEMS: pictures, sounds, folders of them, tables; of molecules also SMILES, or a table with them.

    Sounds: --frames says when each label fired (probability >= THRESHOLD); --window S hears long ones in overlapping
    windows of S seconds and averages. --out FILE.csv writes a table, values under their units. A file that cannot be
    read is reported and makes the exit code 1.
    """
    from zoo import predict as predictions

    if not items:
        raise UsageError("predict: give files, folders, tables or SMILES")
    refuse_empty("predict", items)
    if not json:  # which lists each of them
        need_files(model, items)
    asked = predictions.Asked(frames, threshold, window)
    loaded = zoo.load(model)
    good, bad = predictions.predict(loaded, list(items), asked)
    units = predictions.units(loaded.card)
    if output:
        predictions.write_csv(good, output, units)
    elif json:
        print(dumps({"results": good, "bad": [{"item": item, "reason": why} for item, why in bad], "units": units}))
    else:
        print("\n".join(predictions.lines(good, units)))
    for item, why in bad:
        print(f"bad     {item}: {why}", file=sys.stderr)
    return 1 if bad else 0


@app.command
def embed(
    model: str, /, *items: str, output: Annotated[Path, Parameter(name="--out")],
    text: Flag = False, column: str | None = None, layer: int | None = None, batch_size: int = 64, json: Flag = False,
) -> int:
    """Vectors of ITEMS into a Parquet file (--out): item, vector (float32, unit length), row by row.

    ITEMS: pictures, sounds, folders and tables of them, SMILES, networks; of a text model, or with --text of a text-image
    model, texts, .txt files with one text a line, or tables with a --column of texts. --layer N: the mean over the tokens
    after stage N (0 the first, -1 the last) instead of the model's own vector. A file that cannot be read is reported and
    makes the exit code 1. What is finished is kept beside --out till all is: after a stop the same command goes on.
    """
    from zoo import crew, pieces, show
    from zoo import embed as embedding

    if not items:
        raise UsageError("embed: give files, folders or tables, SMILES, or texts")
    refuse_empty("embed", items)
    if output.suffix.lower() != ".parquet":
        raise UsageError(f"embed: --out {output}; the vectors are written as Parquet, give a name that ends in .parquet")
    if not 1 <= batch_size <= 10**6:
        raise UsageError(f"--batch-size {batch_size}: expected 1 to 1000000")
    if not (text or json):
        need_files(model, items)
    asked = embedding.Asked(text, column, layer, batch_size)
    again = "the same command goes on" + (" (under torchrun or not)" if crew.launched() > 1 else "")
    result, stopped = carried(lambda: embedding.embed(zoo.load(model), list(items), output, asked),
                              lambda: f"{pieces.kept(output)}: {again}")
    if stopped or not crew.first():
        return stopped or 0
    facts = {"file": str(output) if result.items else None, "items": result.items, "dim": result.dim}
    bad = [{"item": item, "reason": why} for item, why in result.bad]
    out({**facts, "bad": bad}, json, lambda: show.lines({**facts, "bad": len(bad)}))
    for item, why in result.bad:
        print(f"bad     {item}: {why}", file=sys.stderr)
    return 1 if result.bad else 0


@app.command
def explain(
    model: str, item: str, /, *, text: str | None = None, layer: str | None = None, head: int | None = None,
    query: str | None = None, grid: Flag = False, output: Annotated[Path, Parameter(name="--out")] = Path("explain.png"),
) -> None:
    """Draw what MODEL looked at in ITEM (--out): attention of LAYER (default: the last) and HEAD (default: the mean).

    Pictures: heat over the picture. Sounds: the spectrogram, the attention below. Texts: word pieces. Graphs and SMILES:
    attention on the edges. Text-image models: heat per word of TEXT; in the layers image_asks, or with --query, what the
    patches looked at in the words. Names of the layers: give a wrong one. --query: the token that is asked: ROW,COL
    of a picture, or a pixel of the model's input, 12,8px; 1.5s of a sound; a number from 0.
    --layer rollout: through all layers, --grid: all layers and heads at once; neither of text-image models.
    """
    from zoo.explain import draw
    from zoo.explain import grid as draw_grid

    if not item.strip():
        raise UsageError("explain: ITEM is empty; give a file, a SMILES or a text")
    if grid and (layer, head, text) != (None, None, None):
        raise UsageError("--grid shows all layers and heads; leave --layer, --head, --text out (text-image models have no grid)")
    need_files(model, [item])
    if grid:
        draw_grid(zoo.load(model), item, output, query=query)
    else:
        draw(zoo.load(model), item, output, text=text, layer=layer, head=head, query=query)
    print(output)
