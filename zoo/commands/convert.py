"""convert: public weights in."""

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from zoo.commands.app import Flag, app
from zoo.commands.app import out as answer
from zoo.errors import UsageError


@app.command
def convert(
    source: str, file: str, /, *, out: Path, window: int | None = None, in_chans: int | None = None,
    source_window: Annotated[str | None, Parameter(help="HEIGHTxWIDTH")] = None, licence: str | None = None, json: Flag = False,
) -> None:
    """Write the public weights in FILE as a checkpoint of zoo, and say what was renamed, dropped and changed.

    SOURCE: timm-swin, torchvision-swin, hf-swin (these also with -v2), swin (the authors' files), clap, graphormer, blip, bert;
    auto finds out. FILE: .safetensors, .pt, .pth, .bin or a folder of this machine; or hf:OWNER/NAME, timm:NAME, which are
    downloaded. --out NAME.safetensors.

    --window and --in-chans fit a Swin to other windows (v1: bicubic) and channels; --source-window 7x5 says the file's own
    where it leaves that open. --licence: of the weights, for the card.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"--out {out}: expected a name that ends in .safetensors")
    if out.exists() and Path(file).exists() and out.samefile(file):
        raise UsageError(f"--out {out}: the file that is read; give another name")
    from zoo import checkpoint, foreign, show
    from zoo.convert.sources import Wanted

    model, report = foreign.convert(source, file, Wanted(window, in_chans, _window(source_window)))
    model.card.name = out.stem
    model.card.licence = licence or model.card.licence
    checkpoint.save(model, out)
    facts = {"file": str(out), "model": model.card.model, "layout": report.layout, "parameters": model.card.parameters,
             "renamed": report.renamed, "dropped": report.dropped, "left over": 0, "changed": report.changed}
    dropped = [f"{len(keys)} ({why}; first: {keys[0]})" for why, keys in report.dropped_by_reason().items()]
    short = {**facts, "renamed": len(report.renamed), "dropped": ", ".join(dropped) or 0,
             "changed": "; ".join(report.changed) or "nothing"}
    answer(facts, json, lambda: show.lines(short))


def _window(text: str | None) -> tuple[int, int] | None:
    """7x5 -> (7, 5)."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)):
        raise UsageError(f"--source-window {text}: expected HEIGHTxWIDTH, such as 7x5")
    return int(found[1]), int(found[2])
