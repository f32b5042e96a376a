"""export, card: models out, and what they say about themselves."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import zoo
from zoo.commands.app import Flag, app
from zoo.commands.app import out as answer
from zoo.errors import UsageError


@app.command
def export(
    model: str, /, *, to: Annotated[str, Parameter(help="torch, onnx or hf")], out: Path, int8: Flag = False,
    check: Path | None = None, split: str | None = None, split_column: str | None = None, items: int | None = None,
    json: Flag = False,
) -> None:
    """Write MODEL for use without this package, and try what was written against it.

    --to torch: NAME.pt2 of torch.export; onnx: NAME.onnx for onnxruntime and others, with --int8 also NAME.int8.onnx; hf: a
    folder for the Hugging Face hub, which zoo.load reads. Batch and sizes stay free. Of a text-image model --out is a folder
    with the programs text, image and match. Beside each program a .json says what goes in and comes out.

    --check DATA (onnx): score, size and time per item of model and programs on a split (--split; --items N: only so many,
    evenly spread). Exit code 1, and no file, where a program answers otherwise than the model.
    """
    if check and to != "onnx":
        raise UsageError("--check goes with --to onnx: it measures what onnxruntime makes of the model")
    if items is not None and items < 1:
        raise UsageError(f"--items {items}: expected a number of items, 1 or more")
    from zoo import show
    from zoo.export import files

    loaded = zoo.load(model)
    written = files.export(loaded, to, out, int8)
    rows = [{"file": str(part.file), "bytes": part.bytes, "largest difference": part.difference} for part in written]
    found = {"files": rows}
    if check:
        from zoo.evaluate import Options
        from zoo.export import measure

        print("measuring; one thread", file=sys.stderr, flush=True)
        found["check"] = measure.compare(loaded, written, check, Options(split, split_column, limit=items))
    answer(found, json, lambda: "\n\n".join(show.table(_plain(part)) for part in found.values()))


@app.command
def card(model: str, /, *, output: Annotated[Path | None, Parameter(name="--out")] = None) -> None:
    """The model card of MODEL as Markdown: use, labels, scores, data, licence, preprocessing, recipe, limits.

    Reads the header only. --out FILE.md writes it into a file.
    """
    from zoo import checkpoint
    from zoo.export import page

    file = checkpoint.locate(model)
    found = checkpoint.read_card(file)
    found.sha256 = checkpoint.sha256(file)
    text = page.markdown(found, model)
    if output:
        checkpoint.write(output, text.encode())
    else:
        print(text, end="")


def _plain(rows: list[dict]) -> list[dict]:
    return [{key: f"{value:.2g}" if key == "largest difference" and value is not None else value for key, value in row.items()}
            for row in rows]
